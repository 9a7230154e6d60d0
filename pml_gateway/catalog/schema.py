"""Schemas as upstreams send them become schemas that every client accepts, with the reason for each repair."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pml_gateway.types import JsonObject

MAX_DEPTH = 24
"""Nesting of sub-schemas that is kept; model APIs refuse far less than recursive validators survive."""

MAX_BYTES = 256 * 1024
"""JSON size of one input schema that is kept whole; a larger one keeps only its top-level parameters."""

_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_SINGLE = (
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_ROOT_ALTERNATIVES = ("allOf", "anyOf", "oneOf")


@dataclass(slots=True)
class _Repairs:
    reasons: list[str] = field(default_factory=list)

    def note(self, pointer: str, reason: str) -> None:
        if len(self.reasons) < 20:
            self.reasons.append(f"{pointer or '/'}: {reason}")


def repair_input_schema(schema: object) -> tuple[JsonObject, tuple[str, ...]]:
    """A root object schema that describes the same arguments, and what had to be changed.

    A schema without faults is returned as the same object, so that it reaches clients byte for byte.
    """
    repairs = _Repairs()
    if not isinstance(schema, dict):
        repairs.note("", f"inputSchema is {_kind(schema)}, not an object; any arguments are accepted")
        return {"type": "object"}, tuple(repairs.reasons)
    repaired = _repair_root(_too_large(schema, repairs), repairs)
    cleaned = _clean(repaired, "", 0, repairs)
    result = cleaned if isinstance(cleaned, dict) else {"type": "object"}
    return (result if repairs.reasons else schema), tuple(repairs.reasons)


def check_output_schema(schema: object) -> tuple[JsonObject | None, tuple[str, ...]]:
    """The output schema when it is sound, else nothing and why: clients that compile it would fail on the list."""
    if schema is None:
        return None, ()
    repairs = _Repairs()
    if not isinstance(schema, dict):
        repairs.note("", f"outputSchema is {_kind(schema)}, not an object")
    elif _exceeds(schema, MAX_BYTES):
        repairs.note("", f"outputSchema is larger than {MAX_BYTES} bytes")
    else:
        _clean(schema, "", 0, repairs)
    if repairs.reasons:
        return None, tuple(f"outputSchema dropped: {reason}" for reason in repairs.reasons)
    return schema if isinstance(schema, dict) else None, ()


def _too_large(schema: JsonObject, repairs: _Repairs) -> JsonObject:
    if not _exceeds(schema, MAX_BYTES):
        return schema
    repairs.note("", f"inputSchema is larger than {MAX_BYTES} bytes; only top-level parameter names are kept")
    properties = schema.get("properties")
    names = list(properties)[:500] if isinstance(properties, dict) else []
    required = schema.get("required")
    kept = [name for name in required if name in names] if isinstance(required, list) else []
    return {"type": "object", "properties": {name: {} for name in names}, **({"required": kept} if kept else {})}


def _exceeds(schema: JsonObject, limit: int) -> bool:
    try:
        return len(json.dumps(schema, ensure_ascii=False)) > limit
    except RecursionError:
        return False


def _repair_root(schema: JsonObject, repairs: _Repairs) -> JsonObject:
    root = schema
    if isinstance(root.get("$ref"), str):
        repairs.note("/$ref", f"root reference {root['$ref']!r} replaced by what it refers to")
        root = _inline_root_reference(root)
    if any(key in root for key in _ROOT_ALTERNATIVES):
        repairs.note("", "root oneOf/anyOf/allOf merged into one object")
        root = _merge_root_alternatives(root)
    kind = root.get("type")
    if kind is None:
        repairs.note("/type", "missing; set to object")
        root = {"type": "object", **root}
    elif isinstance(kind, list) and "object" in kind:
        repairs.note("/type", f"{kind!r} narrowed to object")
        root = {**root, "type": "object"}
    elif kind != "object":
        repairs.note("/type", f"root is {kind!r}, not object; any arguments are accepted")
        root = {"type": "object"}
    return root


def _inline_root_reference(schema: JsonObject) -> JsonObject:
    root, seen = schema, set[str]()
    while isinstance(reference := root.get("$ref"), str):
        target = _local_target(schema, reference)
        if reference in seen or not isinstance(target, dict):
            return {"type": "object", **{key: value for key, value in root.items() if key != "$ref"}}
        seen.add(reference)
        siblings = {key: value for key, value in root.items() if key != "$ref"}
        root = {**target, **siblings}
    return root


def _local_target(schema: JsonObject, reference: str) -> object:
    if not reference.startswith("#/"):
        return None
    node: Any = schema
    for part in reference[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, dict) or key not in node:
            return None
        node = node[key]
    return node


def _merge_root_alternatives(schema: JsonObject) -> JsonObject:
    merged = {key: value for key, value in schema.items() if key not in _ROOT_ALTERNATIVES}
    properties = dict(schema["properties"]) if isinstance(schema.get("properties"), dict) else {}
    required = _names(schema.get("required"))
    for keyword in _ROOT_ALTERNATIVES:
        branches = [_resolved(schema, branch) for branch in _dicts(schema.get(keyword))]
        for branch in branches:
            if isinstance(branch.get("properties"), dict):
                properties = {**branch["properties"], **properties}
        needed = [_names(branch.get("required")) for branch in branches]
        if not needed:
            continue
        combine: Callable[[set[str], set[str]], set[str]] = set.union if keyword == "allOf" else set.intersection
        common = set(needed[0])
        for names in needed[1:]:
            common = combine(common, set(names))
        required += [name for names in needed for name in names if name in common]
    merged["properties"] = properties
    if required:
        merged["required"] = list(dict.fromkeys(required))
    merged["type"] = "object"
    return merged


def _resolved(schema: JsonObject, branch: JsonObject) -> JsonObject:
    reference = branch.get("$ref")
    target = _local_target(schema, reference) if isinstance(reference, str) else None
    return {**target, **branch} if isinstance(target, dict) else branch


def _clean(schema: object, pointer: str, depth: int, repairs: _Repairs) -> object:
    """Drop what is not JSON Schema at any depth; booleans are schemas too."""
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        repairs.note(pointer, f"{_kind(schema)} is no schema; anything is accepted")
        return {}
    if depth > MAX_DEPTH:
        repairs.note(pointer, f"nested deeper than {MAX_DEPTH} levels; anything is accepted below")
        return {}
    cleaned = {key: value for key, value in schema.items() if _is_sound(key, value, pointer, repairs)}
    for key in _SINGLE:
        if key in cleaned and not (key == "items" and isinstance(cleaned[key], list)):
            cleaned[key] = _clean(cleaned[key], f"{pointer}/{key}", depth + 1, repairs)
    for key in (*_LISTS, "items"):
        if isinstance(cleaned.get(key), list):
            cleaned[key] = [
                _clean(item, f"{pointer}/{key}/{index}", depth + 1, repairs) for index, item in enumerate(cleaned[key])
            ]
    for key in _MAPS:
        if isinstance(cleaned.get(key), dict):
            cleaned[key] = {
                str(name): _clean(item, f"{pointer}/{key}/{name}", depth + 1, repairs)
                for name, item in cleaned[key].items()
            }
    return cleaned


def _is_sound(key: str, value: object, pointer: str, repairs: _Repairs) -> bool:
    reason = ""
    if key == "type":
        kinds = value if isinstance(value, list) else [value]
        if not kinds or not all(isinstance(kind, str) and kind in _TYPES for kind in kinds):
            reason = f"{value!r} is no JSON Schema type"
    elif key == "required":
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            reason = "not a list of names"
    elif key == "enum":
        reason = "" if isinstance(value, list) else "not a list"
    elif key in _MAPS:
        reason = "" if isinstance(value, dict) else f"{_kind(value)}, not an object"
    elif key in _LISTS:
        reason = "" if isinstance(value, list) and value else "not a list of schemas"
    elif key in ("$ref", "pattern", "description", "title"):
        reason = "" if isinstance(value, str) else f"{_kind(value)}, not a string"
    if reason:
        repairs.note(f"{pointer}/{key}", f"{reason}; dropped")
    return not reason


def _dicts(value: object) -> list[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _names(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _kind(value: object) -> str:
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
