"""Serving: the gateway as an MCP server over HTTP and stdio, and its control socket."""
