"""Secrets: references to them, files and values that contain them, and masking for display."""
