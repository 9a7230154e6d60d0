"""The bundled demo: three MCP servers, and a client's tour of the gateway in front of them."""
