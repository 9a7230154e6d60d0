"""Tests of the console: access to it, and what its pages show of a real gateway."""
