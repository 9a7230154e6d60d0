"""JSON Schema keywords and their legal values in dialect 2020-12, which the protocol and model APIs assume."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pml_gateway.catalog.pointers import escaped
from pml_gateway.types import JsonObject

MAX_VALUE_DEPTH = 64
"""Maximum nesting of values that are not schemas (defaults, examples, `_meta`): JSON readers stop at 200 in total."""

SINGLE = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
MAPS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")

TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
STRINGS = frozenset(
    {
        "$comment",
        "$dynamicRef",
        "$recursiveRef",
        "$ref",
        "$schema",
        "contentEncoding",
        "contentMediaType",
        "description",
        "format",
        "pattern",
        "title",
    }
)
FORMAT_LIMITS = frozenset({"formatExclusiveMaximum", "formatExclusiveMinimum", "formatMaximum", "formatMinimum"})
"""Keywords of a validator that clients use; it refuses to compile them next to a format without an order."""

ORDERED_FORMATS = frozenset({"date", "date-time", "iso-date-time", "iso-time", "time"})
SAYS_NOTHING_OF_VALUES = FORMAT_LIMITS | {
    "$async",
    "$comment",
    "$vocabulary",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "default",
    "deprecated",
    "description",
    "examples",
    "format",
    "readOnly",
    "title",
    "writeOnly",
}
"""Keywords that do not affect which values JSON Schema 2020-12 admits."""

_PATTERNS: Mapping[str, re.Pattern[str]] = {
    "$id": re.compile(r"[^#]*#?\Z"),
    "$anchor": re.compile(r"[A-Za-z_][-A-Za-z0-9._]*\Z"),
    "$dynamicAnchor": re.compile(r"[A-Za-z_][-A-Za-z0-9._]*\Z"),
    "$recursiveAnchor": re.compile(r"[A-Za-z_][-A-Za-z0-9._]*\Z"),
}
_INHERITED = frozenset(
    {
        "__defineGetter__",
        "__defineSetter__",
        "__lookupGetter__",
        "__lookupSetter__",
        "__proto__",
        "constructor",
        "hasOwnProperty",
        "isPrototypeOf",
        "propertyIsEnumerable",
        "toLocaleString",
        "toString",
        "valueOf",
    }
)
"""Names that every JavaScript object inherits; clients that look up a format with such a name find something."""

_NUMBERS = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"})
_COUNTS = frozenset(
    {
        "maxContains",
        "maxItems",
        "maxLength",
        "maxProperties",
        "minContains",
        "minItems",
        "minLength",
        "minProperties",
    }
)
_BOOLEANS = frozenset({"deprecated", "readOnly", "uniqueItems", "writeOnly"})


def subschemas(schema: JsonObject) -> Iterator[tuple[str, str | int | None, Any]]:
    """Yield every subschema of a schema: its keyword, its name or index there, and the subschema."""
    for key, value in schema.items():
        if isinstance(value, dict):
            if key in SINGLE:
                yield key, None, value
            elif key in MAPS or key == "dependencies":
                yield from ((key, name, each) for name, each in value.items())
        elif isinstance(value, list):
            if key in LISTS or key == "items":
                yield from ((key, index, each) for index, each in enumerate(value))
        elif key in SINGLE:
            yield key, None, value


def with_subschemas(schema: JsonObject, change: Callable[[Any, str], Any]) -> JsonObject:
    """Return the schema with each part replaced by `change(subschema, pointer)`; the same object if none changes."""
    changed: JsonObject = {}
    for key, place, part in subschemas(schema):
        new = change(part, f"/{key}" if place is None else f"/{key}/{escaped(str(place))}")
        if new is part:
            continue
        if place is None:
            changed[key] = new
            continue
        if key not in changed:
            changed[key] = schema[key].copy()
        changed[key][place] = new
    return {**schema, **changed} if changed else schema


def fault(key: str, value: object) -> str:
    """Return the reason why a keyword may not have this value; empty if it may. Subschemas are not checked."""
    if key == "type":
        kinds = value if isinstance(value, list) else [value]
        if kinds and _are_unique_strings(kinds) and TYPES.issuperset(kinds):
            return ""
        return f"{value[:40]!r} is no JSON Schema type" if isinstance(value, str) else "not a list of JSON Schema types"
    if key in MAPS:
        return "" if isinstance(value, dict) else f"{kind_of(value)}, not an object"
    if key in LISTS:
        return "" if isinstance(value, list) and value else "not a list of schemas"
    if key in SINGLE:
        return ""
    if key == "$async":
        return "makes validators of clients answer later"
    return _value_fault(key, value) or ("" if is_plain(value) else "not JSON, or nested absurdly deep")


def _value_fault(key: str, value: object) -> str:
    if key == "required":
        return "" if _are_unique_strings(value) else "not a list of different names"
    if key in ("enum", "examples"):
        return "" if isinstance(value, list) and (value or key == "examples") else "not a list of values"
    if key == "format" and isinstance(value, str) and value in _INHERITED:
        return f"{value!r} is not a format"
    if key in STRINGS:
        return "" if isinstance(value, str) else f"{kind_of(value)}, not a string"
    if key in _PATTERNS:
        return "" if isinstance(value, str) and _PATTERNS[key].match(value) else "not a legal identifier"
    if key in _NUMBERS:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return "" if number and (key != "multipleOf" or value > 0) else "not a legal number"  # type: ignore[operator]
    if key in _COUNTS:
        whole = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value % 1 == 0
        return "" if whole else "not a count"
    if key in _BOOLEANS:
        return "" if isinstance(value, bool) else f"{kind_of(value)}, not a boolean"
    if key == "dependentRequired":
        sound = isinstance(value, dict) and all(_are_unique_strings(names) for names in value.values())
        return "" if sound else "not lists of names"
    if key == "dependencies":
        sound = isinstance(value, dict) and all(
            isinstance(item, dict | bool) or _are_unique_strings(item) for item in value.values()
        )
        return "" if sound else "neither schemas nor lists of names"
    if key == "$vocabulary":
        sound = isinstance(value, dict) and all(isinstance(item, bool) for item in value.values())
        return "" if sound else "not an object of booleans"
    return ""


def is_plain(value: object) -> bool:
    """Return True if a value can be written as JSON that every reader accepts: finite numbers, bounded nesting."""
    if isinstance(value, str | bool):
        return True  # what most values are
    level: list[object] = [value]
    for _ in range(MAX_VALUE_DEPTH):
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, float) and not math.isfinite(item):
                return False
        if not below:
            return True
        level = below
    return False


def kind_of(value: object) -> str:
    """Return the JSON type of a value, with its article."""
    match value:
        case None:
            return "missing"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case _:
            return "an object"


def _are_unique_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value) and len(set(value)) == len(value)
