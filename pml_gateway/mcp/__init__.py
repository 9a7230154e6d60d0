"""The client side of the protocol: transports and sessions to one server; and one adapter of what the SDK hides."""
