"""Usage: what clients called, searched and listed, kept on this machine, and what can be told from it."""
