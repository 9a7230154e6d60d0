"""Exposure: what a client may see becomes what one request lists, and tools become text and token counts."""
