"""Limits for HTTP clients: connections, time to send a request, sessions."""
