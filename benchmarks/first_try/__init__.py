"""Calls as models write them, the servers that they are for, and a second try made from an answer alone."""
