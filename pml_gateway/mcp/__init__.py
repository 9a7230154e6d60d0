"""The client side of the protocol: transports and sessions to one server, and an adapter for the SDK."""
