"""Skills of the owner: folders with a SKILL.md, read within limits, watched, and served as an MCP server in memory."""
