"""The MCP servers behind the gateway: each with its connection, its calls, and its whole life."""
