"""State: what the gateway remembers between requests as data, in a store that several gateways can share later."""
