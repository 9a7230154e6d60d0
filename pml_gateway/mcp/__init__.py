"""The client side of the protocol: transports and sessions to one server, with all that the SDK leaves to us."""
