"""One MCP endpoint in front of many MCP servers, with control over how many tools a model sees."""

__version__ = "0.1.0"
