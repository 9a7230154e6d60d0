"""A tool's JSON schema as a signature of one line, as a programmer would write it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from pml_gateway.types import JsonObject

MAX_PARAMETERS = 24
MAX_CHOICES = 8
MAX_DEPTH = 2
MAX_NAME = 80
MAX_LITERAL = 60
"""Bounds of one signature: past them it says how much it leaves out, and `tool_schema` has the rest."""

_TYPE_NAMES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "null"}
_SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n\s*\n")


def signature(name: str, schema: JsonObject) -> str:
    """`name(owner: str, labels?: str[])`; required parameters first, optional ones marked with `?`."""
    return f"{name}({', '.join(_parameters(schema, schema, 0))})"


def first_sentence(description: str, limit: int = 160) -> str:
    """The first sentence of a description on one line, shortened at a word if it is longer than `limit` characters."""
    sentence = " ".join(_SENTENCE_END.split(description.strip(), maxsplit=1)[0].split())
    if len(sentence) <= limit:
        return sentence
    return sentence[: limit - 1].rsplit(" ", 1)[0].rstrip(",;:") + "…"


def _parameters(schema: JsonObject, root: JsonObject, depth: int) -> list[str]:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return []
    raw_required = schema.get("required")
    required = {name for name in raw_required if isinstance(name, str)} if isinstance(raw_required, list) else set()
    names = sorted(properties, key=lambda name: name not in required)
    parts = [
        f"{_shortened(name, MAX_NAME)}{'' if name in required else '?'}: {_type(properties[name], root, depth)}"
        for name in names[:MAX_PARAMETERS]
    ]
    if len(names) > MAX_PARAMETERS:
        parts.append(f"… {len(names) - MAX_PARAMETERS} more")
    return parts


def _type(schema: object, root: JsonObject, depth: int) -> str:
    if not isinstance(schema, dict):
        return "any"
    if depth > MAX_DEPTH:
        return "…"
    if isinstance(schema.get("$ref"), str):
        target = _target(schema["$ref"], root)
        return "object" if target is None else _type(target, root, depth + 1)
    if "const" in schema:
        return _literal(schema["const"])
    if isinstance(schema.get("enum"), list):
        return _choices(schema["enum"])
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), list):
            return _union(schema[keyword], lambda branch: _type(branch, root, depth + 1))
    if isinstance(schema.get("allOf"), list):
        merged: dict[str, Any] = {}
        for branch in schema["allOf"]:
            merged |= branch if isinstance(branch, dict) else {}
        return _type(merged, root, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union(kind, lambda one: _plain(one, schema, root, depth))
    return _plain(kind, schema, root, depth)


def _plain(kind: object, schema: Mapping[str, Any], root: JsonObject, depth: int) -> str:
    if kind == "array":
        items = schema.get("items", {})
        # Lists of plain values stay readable at any depth; lists of lists count as nesting.
        item = _type(items, root, depth + (isinstance(items, dict) and "items" in items))
        return f"({item})[]" if " | " in item else f"{item}[]"
    if kind == "object" or (kind is None and "properties" in schema):
        fields = _parameters(dict(schema), root, depth + 1)
        return f"{{{', '.join(fields)}}}" if fields and depth < MAX_DEPTH else "object"
    return _TYPE_NAMES.get(kind, "any") if isinstance(kind, str) else "any"


def _choices(values: list[Any]) -> str:
    return _union(values, _literal)


def _union(branches: list[Any], render: Callable[[Any], str]) -> str:
    shown = list(dict.fromkeys(render(branch) for branch in branches[:MAX_CHOICES]))
    more = [f"… {len(branches) - MAX_CHOICES} more"] if len(branches) > MAX_CHOICES else []
    return " | ".join(shown + more) or "any"


def _literal(value: object) -> str:
    if isinstance(value, dict | list):
        return "object" if isinstance(value, dict) else "any[]"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_LITERAL else f'{text[: MAX_LITERAL - 2]}…"'


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _target(reference: str, root: JsonObject) -> object:
    node: Any = root
    if not reference.startswith("#/"):
        return None
    for part in reference[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, dict) or key not in node:
            return None
        node = node[key]
    return node
