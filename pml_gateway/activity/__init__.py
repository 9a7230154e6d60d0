"""Activity: calls, searches and lists of clients, kept on this machine, and figures made of them."""
