"""One example of the arguments of a tool: from its server's definition, or from a recorded call of the same client."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from pml_gateway.activity.arguments import kept_arguments
from pml_gateway.catalog.model import EXAMPLES, CatalogTool
from pml_gateway.errors import GatewayError
from pml_gateway.exposure.schema_text import required_names
from pml_gateway.exposure.validation import fitted
from pml_gateway.json_text.pieces import exceeds
from pml_gateway.secrets.judgement import MASK
from pml_gateway.text import escaped_json
from pml_gateway.types import JsonObject

MAX_EXAMPLE = 1000
"""Maximum JSON characters of an example, some 300 tokens; optional arguments are left out to stay below."""

MAX_TRIED = 4
"""Maximum number of examples of one tool that are checked."""

_WRAPPERS = ("arguments", "input", "value")
"""Keys under which an example has its arguments, next to a name or a description."""


async def example_of(tool: CatalogTool, recorded: Iterable[JsonObject]) -> JsonObject | None:
    """Return arguments that the tool's schema admits, without secrets; None if no example is known.

    Args:
        tool: the tool; examples of its definition are preferred.
        recorded: arguments of calls that the client itself made, newest first.
    """
    for candidate in islice(filter(None, map(_shown, _all_of(tool, recorded))), MAX_TRIED):
        example = _in_size(candidate, required_names(tool.definition["inputSchema"]))
        if example is not None and await _is_valid(tool, example):
            return example
    return None


async def _is_valid(tool: CatalogTool, example: JsonObject) -> bool:
    try:
        fitting, problems = await fitted(tool, example)
    except GatewayError:
        return False
    return not problems and not fitting.coerced


def _all_of(tool: CatalogTool, recorded: Iterable[JsonObject]) -> Iterator[JsonObject]:
    schema = tool.definition["inputSchema"]
    properties = schema.get("properties")
    known: JsonObject = properties if isinstance(properties, dict) else {}
    for given in (*(tool.listed.get(key) for key in EXAMPLES), schema.get("examples")):
        for item in _items(given):
            if isinstance(item, dict):
                yield _unwrapped(item, known)
    if (composed := _of_parameters(known, required_names(schema))) is not None:
        yield composed
    yield from recorded


def _items(given: object) -> Iterator[Any]:
    """Yield the examples of a list, or of an object of named ones."""
    values: Sequence[Any] = given if isinstance(given, list) else [*given.values()] if isinstance(given, dict) else ()
    yield from values[:MAX_TRIED]


def _unwrapped(item: JsonObject, known: JsonObject) -> JsonObject:
    for key in _WRAPPERS:
        if key not in known and isinstance(item.get(key), dict):
            inner: JsonObject = item[key]
            return inner
    return item


def _of_parameters(properties: JsonObject, required: frozenset[str]) -> JsonObject | None:
    """Return arguments made of the parameters' own examples; None if a required one, or every one, has none."""
    found: JsonObject = {}
    has_example = False
    for name, schema in properties.items():
        values = schema.get("examples") if isinstance(schema, dict) else None
        if isinstance(values, list) and values:
            found[name], has_example = values[0], True
        elif name in required and isinstance(schema, dict):
            choices = [schema[key] for key in ("const", "default") if key in schema]
            choices += schema["enum"][:1] if isinstance(schema.get("enum"), list) else []
            if choices:
                found[name] = choices[0]
    return found if has_example and found.keys() >= required else None


def _shown(arguments: JsonObject) -> JsonObject | None:
    """Return arguments with secrets masked; None if they are too large, or have characters that nobody sees."""
    if not arguments or exceeds(arguments, 2 * MAX_EXAMPLE):
        return None
    try:
        kept, masked = kept_arguments(arguments, "masked")
    except RecursionError:
        return None
    is_seen = escaped_json(masked) == json.dumps(masked, ensure_ascii=False)
    return masked if kept == "masked" and is_seen else None


def _in_size(arguments: JsonObject, required: frozenset[str]) -> JsonObject | None:
    """Return the required arguments, and of the others those without secrets that fit into `MAX_EXAMPLE`."""
    kept = {name: value for name, value in arguments.items() if name in required}
    for name, value in arguments.items():
        longer = {**kept, name: value}
        if name not in kept and MASK not in json.dumps(value) and not exceeds(longer, MAX_EXAMPLE):
            kept = longer
    return kept if kept and not exceeds(kept, MAX_EXAMPLE) else None
