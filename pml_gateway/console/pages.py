"""The pages: what each shows, from the answers of operations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio
import anyio.to_thread

from pml_gateway.activity.accesses import OUTCOMES, AccessFilter, read_accesses, read_gaps, read_way
from pml_gateway.console.source import GatewaySource
from pml_gateway.errors import GatewayError
from pml_gateway.owner.operations import EXPLAIN, SCHEMA, SEARCH, STATS, TOKENS, TOOLS
from pml_gateway.reports.token_costs import TokenReport
from pml_gateway.reports.verdicts import reason_in_words
from pml_gateway.text import shown_score
from pml_gateway.types import ExposureMode, JsonObject

PAGE_ROWS = 100
"""Rows of a list on one page."""

MAX_PARAMETER = 500
"""Characters of a parameter of a page that are read."""

CONTEXT_WINDOW = 200_000

SPANS = {"hour": 3600.0, "day": 86400.0}

MAX_DIGITS = 18
"""Digits of the number of a record: more do not fit into the database."""

MAX_ACCESSES = 2_000
"""The latest accesses that the activity page leads to."""

RowT = TypeVar("RowT")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The parameters in the address of a page."""

    source: GatewaySource
    parameters: Mapping[str, str]
    costs: MutableMapping[str, TokenReport]
    """The counted tokens of lists, by the servers that they were counted for."""

    def text(self, name: str) -> str:
        """Return a parameter; an empty text if it is not given."""
        return self.parameters.get(name, "")[:MAX_PARAMETER].strip()

    def page(self, rows: Sequence[RowT]) -> RowsPage[RowT]:
        """Return the rows of the page that is asked for."""
        given = self.text("page")
        number = int(given) if given.isascii() and given.isdecimal() else 1
        last = max(-(-len(rows) // PAGE_ROWS), 1)
        number = min(max(number, 1), last)
        return RowsPage(rows[(number - 1) * PAGE_ROWS : number * PAGE_ROWS], number, last, len(rows))


@dataclass(frozen=True, slots=True)
class RowsPage(Generic[RowT]):
    """Some rows of a list."""

    rows: Sequence[RowT]
    number: int
    last: int
    total: int


async def overview(request: PageRequest) -> JsonObject:
    """Return what runs, what needs the owner, who is connected, and what lists cost."""
    found: JsonObject = {}

    async def ask_costs(servers: str) -> None:
        try:
            if servers not in request.costs:
                request.costs[servers] = await request.source.ask(TOKENS, {"query": None, "window": CONTEXT_WINDOW})
            found["costs"] = request.costs[servers]
        except GatewayError as error:
            found["costs_error"] = str(error)

    async def ask_calls(name: str, seconds: float) -> None:
        try:
            asked = {"seconds": seconds, "client": None, "upstream": None}
            found["calls"][name] = await request.source.ask(STATS, asked)
        except GatewayError as error:
            found["calls_error"] = str(error)

    found["status"], found["calls"] = await request.source.status(), {}
    counted_for = [(row["server"], row["state"], row["tools"]) for row in found["status"]["servers"]]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask_costs, repr(counted_for))
        for name, seconds in SPANS.items():
            tasks.start_soon(ask_calls, name, seconds)
    servers = found["status"]["servers"]
    return {**found, "needs": [row for row in servers if row["needs"]], "clients": _clients(found["status"])}


async def servers(request: PageRequest) -> JsonObject:
    """Return all servers, those that need something first."""
    status = await request.source.status()
    rows = sorted(status["servers"], key=lambda row: (row["needs"] is None, row["server"]))
    return {"status": status, "rows": request.page(rows), "processes": _processes(status)}


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
    return {"name": name, "states": rows, "processes": _processes(status).get(name, []), "rows": request.page(tools)}


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


async def activity(request: PageRequest) -> JsonObject:
    """Return what clients used lately, the latest first, and since when records may be missing."""
    source = request.source
    asked = {name: request.text(name) for name in ("client", "tool", "server", "outcome")}
    client, tool, server, outcome = (text or None for text in asked.values())
    wanted = AccessFilter(source.identity, client, tool, server, outcome)
    found = await anyio.to_thread.run_sync(read_accesses, source.activity_file, wanted, MAX_ACCESSES)
    gaps = await anyio.to_thread.run_sync(read_gaps, source.activity_file, found[0].at if found else None)
    return {"asked": asked, "outcomes": OUTCOMES, "rows": request.page(found[::-1]), "gaps": gaps}


async def waiting(request: PageRequest) -> JsonObject:
    """Return the calls that wait for the owner's approval, and the servers that need something."""
    status = await request.source.status()
    needs = [row for row in status["servers"] if row["needs"]]
    return {"approvals": await request.source.approvals(), "needs": needs}


async def access(request: PageRequest) -> JsonObject:
    """Return one access with its whole way, and the others of its request."""
    given = request.text("id")
    number = int(given) if given.isascii() and given.isdecimal() and len(given) < MAX_DIGITS else 0
    way = await anyio.to_thread.run_sync(read_way, request.source.activity_file, number)
    if way is None:
        raise GatewayError(f"no record {given!r}", hint="it was forgotten, or never there")
    return {"access": way.access, "others": way.request}


Page = Callable[[PageRequest], Awaitable[JsonObject]]

PAGES: Mapping[str, Page] = {
    "overview": overview,
    "servers": servers,
    "server": server,
    "lists": lists,
    "tools": tools,
    "tool": tool,
    "waiting": waiting,
    "activity": activity,
    "access": access,
}
"""The pages by the name of their template."""


def _clients(status: JsonObject) -> list[JsonObject]:
    machine = status["machine"] or {}
    clients: list[JsonObject] = machine.get("clients", [])
    return clients


def _processes(status: JsonObject) -> dict[str, list[JsonObject]]:
    """Return the processes of each server that the shared gateway runs."""
    machine = status["machine"] or {}
    return {row["server"]: row["processes"] for row in machine.get("servers", [])}


def _score(score: float | None) -> str:
    return "" if score is None else shown_score(score)
