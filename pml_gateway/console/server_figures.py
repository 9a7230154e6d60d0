"""Figures of servers: calls, speed, the last fault, and the end of the log."""

from __future__ import annotations

from pml_gateway.console.request import PageRequest
from pml_gateway.console.source import GatewaySource
from pml_gateway.errors import GatewayError
from pml_gateway.processes.child_log import LogReader, log_path
from pml_gateway.text import shortened
from pml_gateway.types import JsonObject

LOG_LINES, LOG_CHARACTERS = 60, 500
"""Latest lines of a log on a page, and the characters of each; `pml upstreams logs` shows all."""


async def figures_of(request: PageRequest, server: str | None = None) -> JsonObject:
    """Return the figures of the last day of each server, or of one; or why there are none."""
    try:
        figures = await request.figures.servers()
    except GatewayError as error:
        return {"figures": {}, "figures_error": str(error)}
    return {"figures": figures if server is None else {name: each for name, each in figures.items() if name == server}}


def log_of(source: GatewaySource, server: str) -> list[str]:
    """Return the latest lines that a server wrote to stderr, without its secrets; none if it has no log. Blocking."""
    try:
        definition = source.load().settings.servers.get(server)
    except GatewayError:
        return []
    if definition is None or definition.command is None:
        return []
    reader = LogReader(log_path(source.paths.logs_dir, server), definition)
    return [shortened(line, LOG_CHARACTERS) for line in reader.last(LOG_LINES)]
