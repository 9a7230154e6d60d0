"""Configuration files of MCP clients: where they lie, what they say, and how to change them without a trace."""
