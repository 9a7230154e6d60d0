"""Edits of configuration files that leave comments and everything else as they are: presets, servers, names."""
