"""The pages: what each shows, from the answers of operations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import anyio.to_thread

from pml_gateway.console.activity import access, activity
from pml_gateway.console.overview import overview
from pml_gateway.console.request import PageRequest
from pml_gateway.console.server_figures import figures_of, log_of
from pml_gateway.console.waiting import approval, held, waiting
from pml_gateway.errors import GatewayError
from pml_gateway.owner.operations import EXPLAIN, SCHEMA, SEARCH, TOOLS
from pml_gateway.reports.verdicts import reason_in_words
from pml_gateway.text import shown_score
from pml_gateway.types import ExposureMode, JsonObject


async def servers(request: PageRequest) -> JsonObject:
    """Return all servers, those that need something first."""
    status = await request.source.status()
    rows = sorted(status["servers"], key=lambda row: (row["needs"] is None, row["server"]))
    return {"status": status, "rows": request.page(rows), "processes": _processes(status), **await figures_of(request)}


async def server(request: PageRequest) -> JsonObject:
    """Return one server: its state, its processes and its tools."""
    name = request.text("name")
    status = await request.source.status()
    rows = [row for row in status["servers"] if row["server"] == name]
    if not rows:
        raise GatewayError(f"no server {name!r}", hint="the list of servers has all names")
    listed = await request.source.ask(
        TOOLS, {"query": None, "client": None, "is_mode_given": False, "as_client": False}
    )
    tools = [row for row in listed["tools"] if row["server"] == name]
    return {
        "name": name,
        "states": rows,
        "processes": _processes(status).get(name, []),
        "rows": request.page(tools),
        **await figures_of(request, name),
        "log": await anyio.to_thread.run_sync(log_of, request.source, name),
    }


async def lists(request: PageRequest) -> JsonObject:
    """Return every tool, with the reason why a client is listed it or not."""
    mode, client, intent = request.text("mode"), request.text("client"), request.text("intent")
    if mode and mode not in [*ExposureMode]:
        raise GatewayError(f"unknown mode {mode!r}", hint=f"known are {', '.join(ExposureMode)}")
    asked: JsonObject = {
        "query": intent or None,
        "client": client or None,
        "is_mode_given": bool(mode),
        "searched": [],
        "sets": [],
        "tried": {},
    }
    explained = await request.source.ask(EXPLAIN, asked, mode=mode or None)
    rows: list[JsonObject] = [
        {**row, "score": _score(row["score"]), "why": reason_in_words(row)} for row in explained["tools"]
    ]
    part = request.text("tool")
    return {
        **explained,
        "modes": [*ExposureMode],
        "asked": {"mode": mode, "client": client, "intent": intent, "tool": part},
        "listed": sum(row["listed"] for row in rows),
        "total": len(rows),
        "rows": request.page([row for row in rows if part.casefold() in row["name"].casefold()]),
    }


async def tools(request: PageRequest) -> JsonObject:
    """Return what a search finds, with the evidence; without words, all tools."""
    words = request.text("q")
    if not words:
        asked = {"query": None, "client": None, "is_mode_given": False, "as_client": False}
        listed = await request.source.ask(TOOLS, asked)
        return {"words": "", "rows": request.page(listed["tools"]), "unlisted": listed["unlisted"]}
    result = await request.source.ask(SEARCH, {"query": words, "limit": 50, "detail": None, "explain": True})
    found = result["structuredContent"]
    if "error" in found:
        raise GatewayError(found["error"]["message"], hint=found["error"].get("hint"))
    hits = [hit if isinstance(hit, dict) else {"name": str(hit)} for hit in found.get("hits", [])]
    return {"words": words, "hits": hits, "found": found, "rows": request.page(hits)}


async def tool(request: PageRequest) -> JsonObject:
    """Return the definition of one tool."""
    name = request.text("name")
    result = await request.source.ask(SCHEMA, {"names": [name], "format": "json"})
    found = result.get("structuredContent", {})
    if "error" in found:
        raise GatewayError(found["error"]["message"], hint=found["error"].get("hint"))
    [described] = found["tools"]
    return {"name": name, "described": described}


Page = Callable[[PageRequest], Awaitable[JsonObject]]

PAGES: Mapping[str, Page] = {
    "overview": overview,
    "servers": servers,
    "server": server,
    "lists": lists,
    "tools": tools,
    "tool": tool,
    "waiting": waiting,
    "approval": approval,
    "held": held,
    "activity": activity,
    "access": access,
}
"""The pages by the name of their template."""


def _processes(status: JsonObject) -> dict[str, list[JsonObject]]:
    """Return the processes of each server that the shared gateway runs."""
    machine = status["machine"] or {}
    return {row["server"]: row["processes"] for row in machine.get("servers", [])}


def _score(score: float | None) -> str:
    return "" if score is None else shown_score(score)
