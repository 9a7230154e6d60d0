"""The servers of the office with the state that each task begins in, and those of others around them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.office import company, correspondence, customers, knowledge, work
from benchmarks.office.system import Office, System, Table, text, whole
from tests.support.scripted_server import Definition, ScriptedServer, text_result

DATA = Path(__file__).resolve().parent / "data"
OTHERS = Path(__file__).resolve().parents[2] / "tests" / "data"
SYSTEMS: tuple[System, ...] = tuple(
    system for module in (correspondence, customers, knowledge, work, company) for system in module.SYSTEMS
)

_READS = re.compile(r"(^|[_-])(get|list|search|describe|read|find|fetch|show|query|status|log|diff)([_-]|$)", re.I)


def fresh_tables() -> dict[str, Table]:
    """The tables as every task finds them."""
    return {
        path.stem: {record["id"]: record for record in map(json.loads, path.read_text(encoding="utf-8").splitlines())}
        for path in sorted(DATA.glob("*.jsonl"))
    }


def office_servers(office: Office) -> dict[str, ScriptedServer]:
    """A server for each system, all on the same tables."""
    return {system.name: system.server(office) for system in SYSTEMS}


def other_servers(tools: int) -> dict[str, ScriptedServer]:
    """Servers of others, whole ones, with at least so many tools: to them nobody has connected an account."""
    servers: dict[str, ScriptedServer] = {}
    count = 0
    for server, definitions in _others():
        if count >= tools:
            return servers
        count += len(definitions)
        servers[server] = ScriptedServer(tools=definitions, handler=_inert, name=server)
    if count < tools:
        raise ValueError(f"there are {count} tools of others, not {tools}")
    return servers


def _others() -> Iterator[tuple[str, list[Definition]]]:
    """Published tools of `servers`, then those of `cloud`, whose parameters are not published."""
    for folder in ("servers", "cloud"):
        found: dict[str, list[Definition]] = {}
        for line in (OTHERS / folder / "tools.jsonl").read_text(encoding="utf-8").splitlines():
            tool = json.loads(line)
            found.setdefault(tool["server"], []).append(_definition(tool))
        yield from found.items()


def _definition(tool: dict[str, Any]) -> Definition:
    schema = tool.get("input_schema") or {"type": "object", "properties": _guessed(tool["name"])}
    kept: Definition = {key: tool[key] for key in ("title", "annotations") if key in tool}
    return {"name": tool["name"], "description": tool["description"], "inputSchema": schema, **kept}


def _guessed(name: str) -> dict[str, Any]:
    region = text("the region; default: that of the account")
    if _READS.search(name):
        return {"region": region, "filter": text("only resources that match"), "limit": whole("at most so many")}
    return {"region": region, "resource_id": text("the resource's id or name"), "tags": {"type": "object"}}


async def _inert(_: Any, call: dict[str, Any]) -> dict[str, Any]:
    """Find nothing, and refuse whatever changes something."""
    if _READS.search(call["name"]):
        return text_result(json.dumps({"results": [], "total": 0}))
    return {**text_result(f"{call['name']}: no account is connected"), "isError": True}
