"""Recorded sessions under $PML_DATA: calls with their results, and what of a result an argument took later."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.labelled_sets import REPOSITORY
from pml_gateway.catalog.model import CatalogTool
from pml_gateway.results.shapes import infer, merge
from pml_gateway.types import JsonObject

SOURCES = ("bfcl_multi_turn", "tooltalk", "workbench", "tau_airline", "nestful", "toolbench_cot")
MIN_TEXT = 4
MIN_DIGITS = 3
"""Shorter values meet by chance."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a session, with its result as JSON where it is some; `said` is what the user had said before it."""

    tool: str
    arguments: JsonObject
    result: str
    is_ok: bool
    said: str

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

    task: str
    requests: tuple[tuple[str, tuple[Call, ...]], ...]

    @property
    def calls(self) -> tuple[Call, ...]:
        """All calls in order."""
        return tuple(call for _, calls in self.requests for call in calls)

    @property
    def is_for_test(self) -> bool:
        """Tasks are halved by a hash, so that no task is learned from and tested on."""
        return hashlib.sha256(self.task.encode()).digest()[0] % 2 == 1


@dataclass(frozen=True, slots=True)
class Flow:
    """A value of a call's argument that an earlier result holds; `is_fresh` where nobody had written it before."""

    producer: int
    consumer: int
    parameter: str
    value: str
    is_fresh: bool


@dataclass(frozen=True)
class Source:
    """The tools and sessions of one source."""

    name: str
    tools: Mapping[str, CatalogTool]
    sessions: tuple[Session, ...] = field(repr=False)

    def outputs(self, *, of_test: bool = False) -> dict[str, JsonObject]:
        """The shapes that the results of one half of the tasks show, as the gateway learns them."""
        shapes: dict[str, JsonObject] = {}
        for session in self.sessions:
            for call in session.calls if session.is_for_test is of_test else ():
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


def flows(calls: tuple[Call, ...]) -> Iterator[Flow]:
    """What flows between calls: to each argument from the earliest result that holds its value."""
    for at, call in enumerate(calls):
        for parameter, argument in call.arguments.items():
            for value in {value for value in _leaves(argument) if _is_telling(value)}:
                producer = next((before for before in range(at) if value in calls[before].result), None)
                if producer is not None:
                    earlier = json.dumps([each.arguments for each in calls[: producer + 1]], ensure_ascii=False)
                    yield Flow(producer, at, parameter, value, value not in call.said and value not in earlier)


def _session(row: JsonObject) -> Session:
    requests: list[tuple[str, list[Call]]] = []
    said = str(row.get("task") or "")
    for event in row["events"]:
        if event["kind"] == "search":
            requests.append((event["query"], []))
            said += "\n" + event["query"]
            continue
        if not requests:
            requests.append((said, []))
        result = str(event.get("result") or "")
        arguments = event.get("arguments") or {}
        requests[-1][1].append(Call(event["tool"].replace("::", "__"), arguments, result, event.get("ok", True), said))
    return Session(str(row["task_id"]), tuple((text, tuple(calls)) for text, calls in requests))


def _tool(row: JsonObject) -> CatalogTool:
    schema = _sound(row.get("input_schema") or {"type": "object", "properties": {}})
    definition = {"name": row["name"], "description": row.get("description") or "", "inputSchema": schema}
    return CatalogTool(row["id"].replace("::", "__"), row["server"], row["name"], definition, schema)


def _sound(schema: JsonObject) -> JsonObject:
    """Some sources mark each parameter as required, instead of naming those that are."""
    marked = [name for name, each in schema["properties"].items() if each.get("required") is True]
    return {**schema, "required": marked} if marked and not schema.get("required") else schema


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)


def _is_telling(value: str) -> bool:
    is_number = value.replace(".", "", 1).lstrip("-").isdecimal()
    return sum(map(str.isdigit, value)) >= MIN_DIGITS if is_number else len(value) >= MIN_TEXT


def _rows(path: Path) -> list[JsonObject]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
