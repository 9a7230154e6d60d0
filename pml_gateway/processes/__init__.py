"""Servers that run as child processes: started, read within limits, logged, and ended for certain."""
