"""Configuration files of MCP clients: their locations, their contents, and reversible edits."""
