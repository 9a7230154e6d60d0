"""A system of the office: tables of records, and tools that read and change them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jsonschema import Draft202012Validator

from pml_gateway.types import Effect
from tests.support.scripted_server import Definition, ScriptedServer

Record = dict[str, Any]
Table = dict[str, Record]
Arguments = dict[str, Any]

NOW = "2026-11-30T09:00:00"
"""A Monday; no clock of the office goes on."""

LIMIT = 20
"""Records of an answer, where a call asks for no number."""


class RefusedError(Exception):
    """A call that the system does not carry out, with the reason that the caller reads."""


@dataclass(slots=True)
class Office:
    """The tables of all systems, by `system.table`, and the numbers of new records."""

    tables: dict[str, Table]
    numbers: dict[str, itertools.count[int]] = field(default_factory=dict)

    def record(self, table: str, key: str) -> Record:
        """One record.

        Raises:
            RefusedError: there is none of this id.
        """
        found = self.tables[table].get(key)
        if found is None:
            raise RefusedError(f"{table.rpartition('.')[2]}: nothing has the id {key!r}")
        return found

    def reset(self, tables: dict[str, Table]) -> None:
        """Begin anew."""
        self.tables = tables
        self.numbers.clear()

    def rows(self, table: str) -> list[Record]:
        """All records of a table, in order."""
        return list(self.tables[table].values())

    def add(self, table: str, prefix: str, record: Record) -> Record:
        """Store a new record under the next number."""
        numbers = self.numbers.setdefault(prefix, itertools.count(901))
        added = {"id": f"{prefix}-{next(numbers)}", **record}
        self.tables[table][added["id"]] = added
        return added


Handler = Callable[[Office, Arguments], Any]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as it is listed, and what a call of it does."""

    name: str
    description: str
    effect: Effect
    schema: Mapping[str, Any]
    handler: Handler

    def definition(self, *, with_effect: bool) -> Definition:
        """What `tools/list` says of it."""
        annotations = {"annotations": dict(self.effect.hints)} if with_effect else {}
        return {"name": self.name, "description": self.description, "inputSchema": dict(self.schema), **annotations}


@dataclass(frozen=True, slots=True)
class System:
    """One server of the office; some, as in life, declare no effects."""

    name: str
    instructions: str
    tools: tuple[Tool, ...]
    declares_effects: bool = True

    def server(self, office: Office) -> ScriptedServer:
        """The MCP server in front of the office's tables."""
        tools = {tool.name: tool for tool in self.tools}

        async def handle(_: Any, call: dict[str, Any]) -> dict[str, Any]:
            return called(tools[call["name"]], office, call.get("arguments") or {})

        listed = [tool.definition(with_effect=self.declares_effects) for tool in self.tools]
        return ScriptedServer(tools=listed, handler=handle, name=self.name, instructions=self.instructions)


def called(tool: Tool, office: Office, arguments: Arguments) -> dict[str, Any]:
    """The result of one call; wrong arguments and refusals are errors that say why."""
    wrong = [
        f"{'/'.join(map(str, each.path)) or 'arguments'}: {each.message}"
        for each in Draft202012Validator(tool.schema).iter_errors(arguments)
    ]
    if wrong:
        return _error(f"invalid arguments: {'; '.join(wrong)}")
    try:
        data = tool.handler(office, arguments)
    except RefusedError as exc:
        return _error(str(exc))
    text = json.dumps(data, ensure_ascii=False)
    return {"content": [{"type": "text", "text": text}], **({"structuredContent": data} if type(data) is dict else {})}


def _error(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": True}


# Schemas of parameters, as short as they are often.


def text(description: str, *choices: str) -> dict[str, Any]:
    """A string, or one of some."""
    return {"type": "string", "description": description, **({"enum": list(choices)} if choices else {})}


def whole(description: str) -> dict[str, Any]:
    """A whole number."""
    return {"type": "integer", "description": description}


def number(description: str) -> dict[str, Any]:
    """Any number."""
    return {"type": "number", "description": description}


def flag(description: str) -> dict[str, Any]:
    """A boolean."""
    return {"type": "boolean", "description": description}


def many(description: str, item: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A list, of strings where nothing else is said."""
    return {"type": "array", "description": description, "items": dict(item or {"type": "string"}), "minItems": 1}


def fields(required: str, /, **properties: Mapping[str, Any]) -> dict[str, Any]:
    """An object; `required` names the properties that it must have."""
    return {
        "type": "object",
        "properties": {name: dict(schema) for name, schema in properties.items()},
        "required": required.split(),
        "additionalProperties": False,
    }


def custom(
    name: str,
    description: str,
    effect: Effect,
    handler: Handler,
    required: str = "",
    /,
    **properties: Mapping[str, Any],
) -> Tool:
    """A tool with a handler of its own."""
    return Tool(name, description, effect, fields(required, **properties), handler)


# Tools that most systems have.


def searching(
    name: str, description: str, table: str, words: str, shown: str = "", /, **filters: Mapping[str, Any]
) -> Tool:
    """A tool that finds records by words in some fields and by equal fields.

    `from_x` and `to_x` bound the day in field `x`, `min_x` and `max_x` its number. With `shown` an answer has only
    these fields of a record.
    """

    def find(office: Office, given: Arguments) -> Any:
        asked = given.get("query", "").casefold().split()
        filters_given = {key: value for key, value in given.items() if key not in ("query", "limit")}
        found = [
            record
            for record in office.rows(table)
            if all(word in _text(record, words) for word in asked)
            and all(_passes(record, key, value) for key, value in filters_given.items())
        ]
        limit = given.get("limit", LIMIT)
        key = table.rpartition(".")[2]
        return {"total": len(found), key: [_only(record, shown) for record in found[:limit]]}

    given = {"query": text(f"words that must all occur in {words.replace(' ', ', ')}")} if words else {}
    limit = whole(f"at most so many (default {LIMIT})")
    return custom(name, description, Effect.READ, find, **given, **filters, limit=limit)


def reading(name: str, description: str, table: str, key: str, /, **parts: tuple[str, str]) -> Tool:
    """A tool that shows one record; `parts` adds the records of other tables whose field holds its id."""

    def read(office: Office, given: Arguments) -> Any:
        record = office.record(table, given[key])
        added = {
            part: [each for each in office.rows(other) if each[by] == record["id"]]
            for part, (other, by) in parts.items()
        }
        return {**record, **added}

    return custom(name, description, Effect.READ, read, key, **{key: text(f"the id, as {_sample(table)}")})


def creating(
    name: str,
    description: str,
    table: str,
    prefix: str,
    required: str,
    /,
    *,
    defaults: Mapping[str, Any] | None = None,
    links: Mapping[str, str] | None = None,
    **properties: Mapping[str, Any],
) -> Tool:
    """A tool that stores a new record; `links` names the tables in which ids that it is given must be."""

    def create(office: Office, given: Arguments) -> Any:
        for key, other in (links or {}).items():
            if key in given:
                office.record(other, given[key])
        return dict(office.add(table, prefix, {**(defaults or {}), **given}))

    return custom(name, description, Effect.WRITE, create, required, **properties)


def updating(
    name: str,
    description: str,
    table: str,
    key: str,
    /,
    *,
    links: Mapping[str, str] | None = None,
    **properties: Mapping[str, Any],
) -> Tool:
    """A tool that replaces fields of a record."""

    def update(office: Office, given: Arguments) -> Any:
        record = office.record(table, given[key])
        changes = {name: value for name, value in given.items() if name != key}
        if not changes:
            raise RefusedError(f"nothing to change: give one of {', '.join(properties)}")
        for name, other in (links or {}).items():
            if name in changes:
                office.record(other, changes[name])
        record.update(changes)
        return dict(record)

    return custom(name, description, Effect.WRITE, update, key, **{key: text("the id")}, **properties)


def setting(
    name: str,
    description: str,
    table: str,
    key: str,
    values: Mapping[str, Any],
    /,
    *,
    only: Mapping[str, Sequence[Any]] | None = None,
    effect: Effect = Effect.WRITE,
    required: str = "",
    **properties: Mapping[str, Any],
) -> Tool:
    """A tool that sets fields of a record to fixed values, and others as given; `only` says what fields must hold."""

    def change(office: Office, given: Arguments) -> Any:
        record = office.record(table, given[key])
        for name, allowed in (only or {}).items():
            if record[name] not in allowed:
                raise RefusedError(f"{record['id']}: {name} is {record[name]!r}, and must be one of {list(allowed)}")
        record.update(values)
        record.update({name: value for name, value in given.items() if name != key})
        return dict(record)

    return custom(name, description, effect, change, f"{key} {required}", **{key: text("the id")}, **properties)


def removing(name: str, description: str, table: str, key: str) -> Tool:
    """A tool that deletes a record for good."""

    def remove(office: Office, given: Arguments) -> Any:
        record = office.record(table, given[key])
        del office.tables[table][record["id"]]
        return {"deleted": record["id"]}

    return custom(name, description, Effect.DESTRUCTIVE, remove, key, **{key: text("the id")})


def _text(record: Record, words: str) -> str:
    return " ".join(str(record.get(name, "")) for name in words.split()).casefold()


def _passes(record: Record, key: str, value: Any) -> bool:
    match key.partition("_"):
        case ("from" | "min", "_", name):
            return bool(record[name] >= value)
        case ("to", "_", name):
            return bool(record[name][: len(value)] <= value)
        case ("max", "_", name):
            return bool(record[name] <= value)
    held = record.get(key)
    if isinstance(held, list):
        return value in held
    return str(held).casefold() == str(value).casefold()


def _only(record: Record, shown: str) -> Record:
    return {name: record[name] for name in ("id", *shown.split()) if name in record} if shown else dict(record)


def _sample(table: str) -> str:
    return f"a search of {table.rpartition('.')[2]} shows it"
