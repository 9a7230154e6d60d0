"""The shallow check of arguments: required ones are present, and values have the declared types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pml_gateway.exposure.schema_text import required_names
from pml_gateway.types import JsonObject

TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int, float),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}

_OPEN = ("anyOf", "oneOf", "allOf", "$ref", "if", "patternProperties", "dependentSchemas", "unevaluatedProperties")
"""Keywords through which a schema may have more parameters than its `properties`."""


def missing_names(schema: JsonObject, arguments: Mapping[str, Any]) -> list[str]:
    """Return the required arguments that are missing."""
    return sorted(required_names(schema) - arguments.keys())


def undeclared_names(schema: JsonObject, arguments: Mapping[str, Any]) -> list[str]:
    """Return arguments that a schema admits without declaring them: most servers ignore them silently.

    Empty if the schema declares no parameters, or admits others in any way.
    """
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties or arguments.keys() <= properties.keys():
        return []
    if schema.get("additionalProperties") not in (None, False) or is_open(schema):
        return []
    return [name for name in arguments if name not in properties]


def is_open(schema: JsonObject) -> bool:
    """Return True if more than its `properties` says which members an object of this schema has."""
    return any(key in schema for key in _OPEN)


def wrong_types(schema: JsonObject, arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return a message for each argument whose type differs from a plain declaration."""
    properties = schema.get("properties")
    known: JsonObject = properties if isinstance(properties, dict) else {}
    wrong = {}
    for name, value in arguments.items():
        expected = _declared_types(known.get(name))
        if expected and not any(is_of_type(value, kind) for kind in expected):
            wrong[name] = f"{json_type(value)} instead of {' or '.join(expected)}"
    return wrong


def json_type(value: object) -> str:
    """Return the JSON Schema name of a value's type."""
    if isinstance(value, bool):
        return "boolean"
    return next(name for name, types in TYPES.items() if isinstance(value, types) and name != "boolean")


def _declared_types(schema: object) -> list[str]:
    if not isinstance(schema, dict) or "$ref" in schema:
        return []
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    names = [one for one in kinds if isinstance(one, str) and one in TYPES]
    return names if len(names) == len(kinds) else []


def is_of_type(value: object, kind: str) -> bool:
    """Return True if a value has the type of this name."""
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES[kind])
