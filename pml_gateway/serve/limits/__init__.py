"""What clients may hold of this process over HTTP: connections, time to send a request, sessions."""
