"""Exposure: what one request lists of what a client may see, and tools as text and token counts."""
