"""Exposure: the list for one request out of all tools that a client may see, and tools as text and token counts."""
