"""Answers: one function for each operation of one gateway, which returns its result."""
