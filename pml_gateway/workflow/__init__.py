"""Workflows: plans of several calls, parsed, checked, run and reported."""
