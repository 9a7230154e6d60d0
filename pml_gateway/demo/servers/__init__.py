"""Three MCP servers worth having, each started as `python -m pml_gateway.demo.servers.NAME ARGUMENT`."""

import os

# FastMCP reads `.env` of the working directory when it is imported; a demo must not pick up a stranger's settings.
os.environ["FASTMCP_ENV_FILE"] = os.devnull
