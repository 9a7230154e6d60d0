"""Pages of servers: all of them, one with its tools, and what the configuration says of one tool."""

from __future__ import annotations

import anyio.to_thread

from pml_gateway.config.masked import masked_start
from pml_gateway.config.settings import SKILLS_SERVER, Settings
from pml_gateway.console.request import PageRequest
from pml_gateway.console.server_figures import figures_of, log_of
from pml_gateway.errors import GatewayError
from pml_gateway.owner.operations import REACH, TOOLS
from pml_gateway.setup.servers import OVERRIDES
from pml_gateway.types import JsonObject


async def servers(request: PageRequest) -> JsonObject:
    """Return all servers, those that need something first."""
    status = await request.source.status()
    rows = sorted(status["servers"], key=lambda row: (row["needs"] is None, row["server"]))
    return {"status": status, "rows": request.page(rows), "processes": _processes(status), **await figures_of(request)}


async def add(_: PageRequest) -> JsonObject:
    """Return the form that adds servers."""
    return {}


async def server(request: PageRequest) -> JsonObject:
    """Return one server: its state, its processes, its tools, its log, and who sees it."""
    name, source = request.text("name"), request.source
    status = await source.status()
    rows = [row for row in status["servers"] if row["server"] == name]
    if not rows:
        raise GatewayError(f"no server {name!r}", hint="the list of servers has all names")
    found, listed, reach, problem = Settings(), [], None, ""
    try:
        found = (await anyio.to_thread.run_sync(source.load)).settings
        asked = {"query": None, "client": None, "is_mode_given": False, "as_client": False}
        listed = [row for row in (await source.ask(TOOLS, asked))["tools"] if row["server"] == name]
        reach = await source.ask(REACH, {"server": name, "tool": None})
    except GatewayError as error:
        problem = str(error)
    definition = found.servers.get(name)
    return {
        "name": name,
        "states": rows,
        "processes": _processes(status).get(name, []),
        "rows": request.page(listed),
        "reach": reach,
        "problem": problem,
        "start": None if definition is None else masked_start(definition),
        "is_enabled": definition is None or definition.enabled,
        "is_own": definition is not None and not (found.skills and name == SKILLS_SERVER),
        "disabled_tools": sorted(definition.disabled_tools) if definition is not None else [],
        **await figures_of(request, name),
        "log": await anyio.to_thread.run_sync(log_of, source, name),
    }


async def settings_of_tool(request: PageRequest) -> JsonObject:
    """Return what the configuration says of one tool, and which clients, rules and entries are about it."""
    server, tool = request.text("server"), request.text("tool")
    found = (await anyio.to_thread.run_sync(request.source.load)).settings
    reach = await request.source.ask(REACH, {"server": server, "tool": tool})
    if tool not in reach["tools"]:
        raise GatewayError(f"{server} has no tool {tool!r}", hint="the page of the server has all of its tools")
    return {"server": server, "tool": tool, "reach": reach, "given": _overrides(found, server, reach["tools"][tool])}


def _overrides(settings: Settings, server: str, own_name: str) -> JsonObject:
    definition = settings.servers.get(server)
    written = definition.tools.get(own_name) if definition is not None else None
    return {name: getattr(written, name, None) or "" for name in OVERRIDES}


def _processes(status: JsonObject) -> dict[str, list[JsonObject]]:
    """Return the processes of each server that the shared gateway runs."""
    machine = status["machine"] or {}
    return {row["server"]: row["processes"] for row in machine.get("servers", [])}
