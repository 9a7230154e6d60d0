"""JSON Schema keywords and the values each may have in dialect 2020-12, which the protocol and model APIs assume."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

MAX_VALUE_DEPTH = 64
"""Nesting kept in values that are no schemas (defaults, examples, `_meta`): JSON readers stop at 200 in all."""

SINGLE = (
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
_PATTERNS: Mapping[str, re.Pattern[str]] = {
    "$id": re.compile(r"[^#]*#?\Z"),
    "$anchor": re.compile(r"[A-Za-z_][-A-Za-z0-9._]*\Z"),
    "$dynamicAnchor": re.compile(r"[A-Za-z_][-A-Za-z0-9._]*\Z"),
    "$recursiveAnchor": re.compile(r"[A-Za-z_][-A-Za-z0-9._]*\Z"),
}
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


def fault(key: str, value: object) -> str:
    """Why a keyword may not have this value; empty when it may. Sub-schemas are not looked into."""
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
    return _value_fault(key, value) or ("" if is_plain(value) else "not JSON, or nested absurdly deep")


def _value_fault(key: str, value: object) -> str:
    if key == "required":
        return "" if _are_unique_strings(value) else "not a list of different names"
    if key in ("enum", "examples"):
        return "" if isinstance(value, list) else "not a list"
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
    """Whether a value can be written as JSON that every reader accepts: finite numbers, bounded nesting."""
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
    """The JSON type of a value, with its article."""
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
