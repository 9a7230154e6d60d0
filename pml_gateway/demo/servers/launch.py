"""Runs an object whose methods are marked as tools as a FastMCP server, quietly, over stdio."""

from __future__ import annotations

import argparse
import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from fastmcp.exceptions import ToolError
from fastmcp.server import FastMCP
from fastmcp.tools import tool as fastmcp_tool
from mcp.types import ToolAnnotations

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

READS = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False)
SETS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
CHANGES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False)
REPLACES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)


class RefusedError(ToolError):
    """A request that the caller can correct; told to the caller, not to the log."""

    def __init__(self, message: str) -> None:
        super().__init__(message, log_level=logging.DEBUG)


def tool(
    hints: ToolAnnotations, *, plain_text: bool = False
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Mark a method as a tool; `plain_text` leaves out the structured copy of a long text."""

    def mark(method: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(method)
        def answer(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            try:
                return method(*args, **kwargs)
            except OSError as exc:
                # The name only: an absolute path would tell the caller where the folder lies.
                name = Path(str(exc.filename)).name if exc.filename else ""
                raise RefusedError(": ".join(part for part in (name, exc.strerror or str(exc)) if part)) from exc

        if plain_text:
            return fastmcp_tool(annotations=hints, output_schema=None)(answer)
        return fastmcp_tool(annotations=hints)(answer)

    return mark


def server_of(tools: object, name: str, instructions: str) -> FastMCP[None]:
    """A server with every marked method of `tools`, in the order in which the class defines them."""
    server: FastMCP[None] = FastMCP(name, instructions)
    for attribute, value in vars(type(tools)).items():
        if hasattr(value, "__fastmcp__"):
            server.add_tool(getattr(tools, attribute))
    return server


def path_argument(description: str, metavar: str) -> Path:
    """The one path given on the command line of a demo server."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("path", metavar=metavar, type=Path)
    return Path(parser.parse_args().path)


def serve(server: FastMCP[None]) -> None:
    """Serve over stdio until the client closes it. Nothing but the protocol goes to stdout."""
    server.run(show_banner=False, log_level="WARNING")
