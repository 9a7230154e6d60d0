"""Recorded sessions under $PML_DATA: requests, and calls with their results."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.labelled_sets import REPOSITORY
from pml_gateway.catalog.model import CatalogTool
from pml_gateway.results.shapes import infer, merge
from pml_gateway.types import JsonObject

SOURCES = ("bfcl_multi_turn", "tooltalk", "workbench", "tau_airline", "nestful", "toolbench_cot")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a session with its result, as text."""

    tool: str
    result: str
    is_ok: bool

    @property
    def value(self) -> Any:
        """The result as a reference reads it; what was cut in the middle stays text.

        NESTFUL adds a field for the whole, `"var3": "$var3$"`, and that alone where no call took a field.
        """
        try:
            value = json.loads(self.result)
        except ValueError:
            return self.result
        if isinstance(value, dict):
            value = {name: each for name, each in value.items() if each != f"${name}$"}
        return value


@dataclass(frozen=True, slots=True)
class Session:
    """One session: `requests` are what the user asked, each with the calls until the next."""

    requests: tuple[tuple[str, tuple[Call, ...]], ...]

    @property
    def calls(self) -> tuple[Call, ...]:
        """All calls in order."""
        return tuple(call for _, calls in self.requests for call in calls)


@dataclass(frozen=True)
class Source:
    """The tools and sessions of one source."""

    name: str
    tools: Mapping[str, CatalogTool]
    sessions: tuple[Session, ...] = field(repr=False)

    def outputs(self) -> dict[str, JsonObject]:
        """Return the shapes that results show, as the gateway learns them."""
        shapes: dict[str, JsonObject] = {}
        for session in self.sessions:
            for call in session.calls:
                if call.is_ok and call.result and call.value != {} and call.tool in self.tools:
                    shapes[call.tool] = merge(shapes.get(call.tool, {}), infer(call.value))
        return shapes


def read_source(name: str, directory: Path | None = None) -> Source:
    """One source, from `sessions` of $PML_DATA or of `shared/data` beside the repository."""
    data = Path(os.environ.get("PML_DATA", REPOSITORY.parent / "shared" / "data"))
    folder = (directory or data / "sessions") / name
    tools = [_tool(row) for row in _rows(folder / "tools.jsonl")]
    sessions = (_session(row) for row in _rows(folder / "sessions.jsonl"))
    return Source(name, {tool.qualified_name: tool for tool in tools}, tuple(sessions))


def _session(row: JsonObject) -> Session:
    requests: list[tuple[str, list[Call]]] = []
    for event in row["events"]:
        if event["kind"] == "search":
            requests.append((event["query"], []))
            continue
        if not requests:
            requests.append((str(row.get("task") or ""), []))
        result = str(event.get("result") or "")
        requests[-1][1].append(Call(event["tool"].replace("::", "__"), result, event.get("ok", True)))
    return Session(tuple((text, tuple(calls)) for text, calls in requests))


def _tool(row: JsonObject) -> CatalogTool:
    schema = _sound(row.get("input_schema") or {"type": "object", "properties": {}})
    definition = {"name": row["name"], "description": row.get("description") or "", "inputSchema": schema}
    return CatalogTool(row["id"].replace("::", "__"), row["server"], row["name"], definition, schema)


def _sound(schema: JsonObject) -> JsonObject:
    """Some sources mark each parameter as required, instead of naming those that are."""
    marked = [name for name, each in schema["properties"].items() if each.get("required") is True]
    return {**schema, "required": marked} if marked and not schema.get("required") else schema


def _rows(path: Path) -> list[JsonObject]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
