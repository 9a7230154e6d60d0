"""MCP servers behind the gateway: connections, calls and lifecycle of each."""
