"""The page of one tool: its definition, its calls, what waits of it, and a form that calls it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import anyio
import anyio.to_thread

from pml_gateway.activity.accesses import AccessFilter, read_accesses
from pml_gateway.console.change import ChangeRequest, MadeChange, PlannedChange
from pml_gateway.console.forms import FormField
from pml_gateway.console.request import PageRequest
from pml_gateway.console.waiting import known_cases
from pml_gateway.errors import GatewayError, InvalidInputError
from pml_gateway.owner.arguments import Flag, converted_value, flags_of
from pml_gateway.owner.operations import CALL, DESCRIBE
from pml_gateway.owner.results import CalledTool
from pml_gateway.text import shortened
from pml_gateway.trust.verdict import SubjectKind
from pml_gateway.types import Effect, JsonObject

ARGUMENT = "argument."
"""Start of the names of the fields with arguments, which continue with a number."""

MAX_FIELDS = 40
"""Fields of a form; further parameters are given as JSON."""

MAX_JSON = 100_000
MAX_SHOWN = 50_000
"""Characters of a result that are shown."""

MAX_SCHEMA = 40_000
"""Characters of a schema that are shown."""

MAX_DESCRIPTION, MAX_ABOUT = 10_000, 600
"""Characters that are shown of the description of a tool, and of a parameter."""

MAX_CHOICES, MAX_CHOICE = 50, 100
"""Values of a parameter that are offered, and their characters; more are typed."""

MAX_NAME = 200
"""Characters of the name of a parameter that are shown."""

CALL_SECONDS = 300.0
"""Time limit in seconds for a call, which has limits of its own."""

RECENT_CALLS, SHOWN_CALLS = 1_000, 10

ASKED = frozenset({Effect.DESTRUCTIVE, Effect.UNKNOWN})
"""Effects of tools that are not called without a question."""

CALL_FIELDS = {"name": FormField(), "json": FormField("Arguments as JSON", MAX_JSON, is_required=False, is_long=True)}


@dataclass(frozen=True, slots=True)
class ArgumentField:
    """A parameter of a tool as a field of a form.

    Args:
        name: name of the field.
        path: keys of the parameter from the root of the arguments.
        flag: the parameter.
        default: its default as text; empty if it has none.
    """

    name: str
    path: tuple[str, ...]
    flag: Flag
    default: str

    @property
    def label(self) -> str:
        """Return the name of the parameter."""
        return shortened(".".join(self.path), MAX_NAME)

    @property
    def about(self) -> str:
        """Return the description of the parameter."""
        return shortened(self.flag.description, MAX_ABOUT)

    @property
    def choices(self) -> tuple[str, ...]:
        """Return the values that there are, as texts; none if there are many."""
        if self.flag.is_switch:
            return ("true", "false")
        found = tuple(each if isinstance(each, str) else json.dumps(each) for each in self.flag.choices)
        return found if len(found) <= MAX_CHOICES and all(len(each) <= MAX_CHOICE for each in found) else ()

    @property
    def is_long(self) -> bool:
        """Return True if it is written as JSON, or in several lines."""
        return not (self.flag.choices or self.choices) and not self.flag.kinds - {"array", "object", "null"}

    @property
    def takes(self) -> str:
        """Return its types in a few words."""
        if self.flag.choices:
            return f"one of {len(self.flag.choices)} values"
        return " or ".join(sorted(self.flag.kinds)) or "any JSON"


def argument_fields(schema: JsonObject) -> list[ArgumentField]:
    """Return the parameters of an input schema as fields, required ones first; of objects, their members.

    What is deeper, and what comes after `MAX_FIELDS`, is given as JSON.
    """
    flags = flags_of(schema)
    objects = {flag.path[:1] for flag in flags if len(flag.path) == 2}
    shown = [flag for flag in flags if (len(flag.path) == 1 and flag.path not in objects) or len(flag.path) == 2]
    return [
        ArgumentField(f"{ARGUMENT}{place}", flag.path, flag, _default(schema, flag.path))
        for place, flag in enumerate(shown[:MAX_FIELDS])
    ]


def _default(schema: JsonObject, path: tuple[str, ...]) -> str:
    found: Any = schema
    for part in path:
        properties = found.get("properties") if isinstance(found, dict) else None
        found = properties.get(part) if isinstance(properties, dict) else None
    default = found.get("default") if isinstance(found, dict) else None
    if default is None:
        return ""
    text = default if isinstance(default, str) else json.dumps(default, ensure_ascii=False)
    # A server has it anyway, and a shortened one would be another.
    return text if len(text) <= MAX_ABOUT else ""


def given_arguments(schema: JsonObject, values: Mapping[str, str]) -> JsonObject:
    """Return the arguments that a form gives; an empty field gives none.

    Raises:
        InvalidInputError: a value is none that its parameter takes, or the JSON is none.
    """
    try:
        arguments = json.loads(values.get("json") or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"Arguments as JSON: {error}", hint='for example {"path": "a.txt"}') from None
    if not isinstance(arguments, dict):
        raise InvalidInputError("Arguments as JSON: not an object", hint='for example {"path": "a.txt"}')
    for field in argument_fields(schema):
        text = values.get(field.name, "")
        if not text:
            continue
        node = arguments
        for part in field.path[:-1]:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise InvalidInputError(f"{part} is given as JSON and by a field", hint="leave one of them empty")
        try:
            # A browser sends the ends of lines as \r\n.
            node[field.path[-1]] = converted_value(field.flag, text.replace("\r\n", "\n"))
        except InvalidInputError as error:
            message, hint = (each.replace(field.flag.option, field.label) for each in (error.message, error.hint))
            raise InvalidInputError(message, hint=hint) from None
    return arguments


async def tool(request: PageRequest) -> JsonObject:
    """Return the definition of one tool, its calls, and the fields of the form that calls it."""
    source, name = request.source, request.text("name")
    described = await source.ask(DESCRIBE, {"name": name})
    wanted = AccessFilter(source.identity, tool=described["name"])
    calls = await anyio.to_thread.run_sync(read_accesses, source.paths.activity_file, wanted, RECENT_CALLS)
    known, key = await anyio.to_thread.run_sync(known_cases, source), (SubjectKind.TOOL, described["tool"])
    schema = json.dumps(described["inputSchema"], indent=2, ensure_ascii=False)
    return {
        "name": described["name"],
        "described": described,
        "description": shortened(described["description"], MAX_DESCRIPTION),
        "schema": shortened(schema, MAX_SCHEMA),
        "fields": argument_fields(described["inputSchema"]),
        "asks": described["effect"] in ASKED,
        "calls": calls[::-1][:SHOWN_CALLS],
        "count": len(calls),
        "is_bounded": len(calls) == RECENT_CALLS,
        "median": median(each.seconds for each in calls) if calls else None,
        "outcomes": dict(Counter(each.code for each in calls).most_common()),
        "held": [case for case in known if case.is_waiting and case.key == key and case.server == described["server"]],
    }


async def call_tool(request: ChangeRequest) -> PlannedChange:
    """Plan to call a tool, as `pml call` does; one that may destroy something asks first."""
    source, values = request.source, request.values
    described = await source.ask(DESCRIBE, {"name": values["name"]})
    name, effect = described["name"], described["effect"]
    try:
        text = json.dumps(given_arguments(described["inputSchema"], values), ensure_ascii=False)
    except InvalidInputError as error:
        wrong = f"{error.message}; {error.hint}" if error.hint else error.message

        async def refuse() -> MadeChange:
            return MadeChange(f"{name} was not called: {wrong}.", given=values)

        return PlannedChange(f"Call {name}?", refuse, asks=False)

    async def make() -> MadeChange:
        with anyio.move_on_after(CALL_SECONDS):
            called = await source.ask(CALL, {"name": name, "text": text, "words": [], "pairs": []})
            said, shown = _outcome(name, called)
            return MadeChange(said, shown=shown, given=values)
        raise GatewayError(f"{name} has not answered within {CALL_SECONDS:.0f} s", hint="the activity says how it ends")

    effects = "may destroy something" if effect == Effect.DESTRUCTIVE else "does not say whether it destroys something"
    notes = [f"{name} {effects}.", f"Arguments: {shortened(text, MAX_SHOWN)}"]
    return PlannedChange(f"Call {name}?", make, "Call it", notes=notes, asks=effect in ASKED)


def _outcome(name: str, called: CalledTool) -> tuple[str, str]:
    """Return the outcome of a call in a line, and its result as text."""
    if (wrong := called.get("wrong")) is not None:
        return f"{name} was not called: {wrong['message']}", str(wrong.get("hint", ""))
    result = called["answer"]
    parts = [
        str(item["text"]) if item.get("type") == "text" else f"[{item.get('type')} {item.get('mimeType', '')}]"
        for item in result.get("content", ())
    ]
    shown = "\n".join(parts)
    if len(shown) > MAX_SHOWN:
        shown = f"{shown[:MAX_SHOWN]}\n… {len(shown) - MAX_SHOWN:,} more characters"
    return f"{name} {'failed.' if result.get('isError') else 'answered.'}", shown
