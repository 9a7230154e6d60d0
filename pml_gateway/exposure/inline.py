"""A parameter's JSON schema as a type of a few words, or nothing where that would leave something out."""

from __future__ import annotations

import json
import re
from typing import Any

from pml_gateway.catalog.schema import local_target
from pml_gateway.types import JsonObject

MAX_INLINE = 120
"""Characters of a type written into an action's line; a longer one is declared as a schema instead."""

MAX_NESTING = 4
_FORMATS = frozenset({"date", "date-time", "time", "duration", "email", "uri", "uuid"})
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_PLAIN_NAME = re.compile(r"[\w$.@-]+")
UNION = "|"
_NAMES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "null"}
_RESERVED_WORDS = frozenset({*_NAMES.values(), *_FORMATS, "any", "object", "true", "false"})
_COMBINED = ("allOf", "not", "if", "prefixItems", "patternProperties", "dependentRequired", "dependentSchemas")
"""Keywords that change what is admitted in ways a few words cannot say."""


def inline_type(schema: object, root: JsonObject) -> str | None:
    """The type as text, complete in its names, types and choices; None where that takes a schema."""
    text = _type(schema, root, 0)
    return text if text is not None and len(text) <= MAX_INLINE else None


def field(name: str, type_text: str | None, *, required: bool) -> str:
    """One field of a line: `limit?: int`; strings, the most common type, go without saying."""
    plain = name if _PLAIN_NAME.fullmatch(name) else json.dumps(name)
    shown = f"{plain}{'' if required else '?'}"
    return shown if type_text in (None, "str") else f"{shown}: {type_text}"


def resolve_reference(schema: object, root: JsonObject) -> object:
    """The schema that a chain of local references ends at; None for one that leads nowhere or round in circles."""
    seen: set[str] = set()
    while isinstance(schema, dict) and isinstance(reference := schema.get("$ref"), str):
        if reference in seen:
            return None
        seen.add(reference)
        schema = document_target(reference, root)
    return schema


def document_target(reference: str, root: JsonObject) -> object:
    """What a reference within the same document points at, or None; `#` is the whole of it."""
    return root if reference == "#" else local_target(reference, root)


def _type(schema: object, root: JsonObject, depth: int) -> str | None:
    schema = resolve_reference(schema, root)
    if schema is True:
        return "any"
    if not isinstance(schema, dict) or depth > MAX_NESTING or any(keyword in schema for keyword in _COMBINED):
        return None
    if "const" in schema:
        return _literals([schema["const"]])
    if isinstance(schema.get("enum"), list):
        return _literals(schema["enum"])
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), list):
            return _union([_type(branch, root, depth) for branch in schema[keyword]])
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union([_plain(one, schema, root, depth) for one in kind])
    if kind is None:
        kind = "object" if "properties" in schema else "array" if "items" in schema else None
    return _plain(kind, schema, root, depth)


def _plain(kind: object, schema: JsonObject, root: JsonObject, depth: int) -> str | None:
    match kind:
        case None:
            return "any"
        case "array":
            item = _type(schema.get("items", True), root, depth + 1)
            if item is None:
                return None
            return f"({item})[]" if "|" in item else f"{item}[]"
        case "object":
            return _object(schema, root, depth)
        case "string" if schema.get("format") in _FORMATS:
            return str(schema["format"])
        case str() if kind in _NAMES:
            return _NAMES[kind]
        case _:
            return None


def _object(schema: JsonObject, root: JsonObject, depth: int) -> str | None:
    properties, others = schema.get("properties"), schema.get("additionalProperties")
    if not properties:
        if not isinstance(others, dict) or not others:
            return "object"
        value = _type(others, root, depth + 1)
        return None if value is None else f"{{[key]: {value}}}"
    if not isinstance(properties, dict) or (isinstance(others, dict) and others):
        return None
    required = required_names(schema)
    fields = []
    for name, inner in properties.items():
        text = _type(inner, root, depth + 1)
        if text is None:
            return None
        fields.append(field(name, text, required=name in required))
    return f"{{{', '.join(fields)}}}"


def _union(branches: list[str | None]) -> str | None:
    known = list(dict.fromkeys(branch for branch in branches if branch is not None))
    return UNION.join(known) if known and None not in branches else None


def _literals(values: list[Any]) -> str | None:
    return UNION.join(_literal(value) for value in values) or None


def _literal(value: object) -> str:
    """A choice; plain words go without quotes, which take two tokens each inside JSON."""
    if isinstance(value, str) and _WORD.fullmatch(value) and value not in _RESERVED_WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)


def required_names(schema: JsonObject) -> frozenset[str]:
    """The names an object schema requires."""
    names = schema.get("required")
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()
