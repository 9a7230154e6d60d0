"""The cheap check of arguments: what is required is there, and values have the types that are declared for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pml_gateway.exposure.schema_text import required_names
from pml_gateway.types import JsonObject

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int, float),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def missing_names(schema: JsonObject, arguments: Mapping[str, Any]) -> list[str]:
    """The required arguments that were not given."""
    return sorted(required_names(schema) - arguments.keys())


def wrong_types(schema: JsonObject, arguments: Mapping[str, Any]) -> dict[str, str]:
    """Each argument of another type than declared, with what is wrong; only plain declarations count."""
    properties = schema.get("properties")
    known: JsonObject = properties if isinstance(properties, dict) else {}
    wrong = {}
    for name, value in arguments.items():
        expected = _declared_types(known.get(name))
        if expected and not any(_is(value, kind) for kind in expected):
            wrong[name] = f"{json_type(value)} instead of {' or '.join(expected)}"
    return wrong


def json_type(value: object) -> str:
    """What JSON Schema calls the type of a value."""
    if isinstance(value, bool):
        return "boolean"
    return next(name for name, types in _TYPES.items() if isinstance(value, types) and name != "boolean")


def _declared_types(schema: object) -> list[str]:
    if not isinstance(schema, dict) or "$ref" in schema:
        return []
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    names = [one for one in kinds if isinstance(one, str) and one in _TYPES]
    return names if len(names) == len(kinds) else []


def _is(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind])
