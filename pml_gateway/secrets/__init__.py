"""Secrets: references to them, files and values that hold them, and masking what must not be shown."""
