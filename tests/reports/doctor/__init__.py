"""Findings of doctor."""
