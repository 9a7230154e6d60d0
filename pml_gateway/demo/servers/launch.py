"""Tools of FastMCP servers from plain functions."""

from __future__ import annotations

import functools
import logging
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fastmcp.exceptions import ToolError
from fastmcp.server import FastMCP
from mcp.types import ToolAnnotations

QUIET: Mapping[str, Any] = {"show_banner": False, "log_level": "WARNING"}  # nothing but the protocol goes to stdout
READS = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
REPLACES = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)

Function = Callable[..., object]


def add_tools(server: FastMCP[None], hints: ToolAnnotations, *functions: Function, plain_text: bool = False) -> None:
    """Offer functions as tools; `plain_text` leaves out the structured copy of a long text."""
    schema: dict[str, Any] = {"output_schema": None} if plain_text else {}
    for function in functions:
        server.tool(_explained(function), annotations=hints, **schema)


def _explained(function: Function) -> Function:
    """Wrap a function so that the caller learns why a request was refused, and nothing is logged."""

    @functools.wraps(function)
    def answer(*args: object, **kwargs: object) -> object:
        try:
            return function(*args, **kwargs)
        except (ArithmeticError, LookupError, ValueError, sqlite3.DatabaseError) as exc:
            raise ToolError(str(exc.args[0]) if len(exc.args) == 1 else str(exc), log_level=logging.DEBUG) from exc
        except OSError as exc:
            # The name only: an absolute path would reveal the folder's location to the caller.
            text = f"{Path(str(exc.filename)).name}: {exc.strerror}" if exc.filename else str(exc)
            raise ToolError(text, log_level=logging.DEBUG) from exc

    return answer
