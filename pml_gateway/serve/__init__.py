"""Serving: the gateway as an MCP server over HTTP and stdio; how the processes that serve are found and asked."""
