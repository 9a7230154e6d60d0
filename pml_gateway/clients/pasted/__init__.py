"""Pasted text that is not a client's block: command lines that add servers, and registry documents."""
