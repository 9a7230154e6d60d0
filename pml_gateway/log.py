"""Loggers by module; where records go is set once, by the command that runs."""

from __future__ import annotations

import logging

ROOT = "pml_gateway"


def get_logger(name: str) -> logging.Logger:
    """The logger of one module."""
    return logging.getLogger(name)
