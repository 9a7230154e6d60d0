"""State: what is remembered between requests, in a store that several gateways can share later; files that change."""
