"""Pasted text that is no block of a client: command lines that add servers, and documents of registries."""
