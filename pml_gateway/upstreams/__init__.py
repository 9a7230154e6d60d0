"""The MCP servers behind the gateway: transports, sessions, and their whole life."""
