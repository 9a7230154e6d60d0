"""Short schemas for many tools: repeated parts are written once, under `$defs`."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pml_gateway.catalog.pointers import document_target
from pml_gateway.types import JsonObject

MIN_SHARED = 60
"""Minimum JSON characters of a sub-schema to become a definition; a reference takes about thirty."""

MAX_NESTING = 12
MAX_DEFINITIONS = 200
_KEPT = frozenset({"type", "enum", "const", "required", "format"})
_SCHEMAS = frozenset({"items", "additionalProperties"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_MAPS = frozenset({"properties", "patternProperties"})
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_]+")


@dataclass(slots=True)
class Compactor:
    """Shortens the schemas of one namespace; their local references end up in one common `$defs`.

    It keeps the shape of arguments: types, names, choices, required fields. It drops descriptions, defaults, bounds and
    extensions such as `x-mcp-header`; arguments are checked against the tool's original schema anyway.
    """

    definitions: dict[str, Any] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _root: JsonObject = field(default_factory=dict)
    _definitions: str = ""
    _identities: dict[int, str] = field(default_factory=dict)

    def compact(self, schema: object, root: JsonObject) -> Any:
        """Return the short form of a schema within the document `root`."""
        return self._schema(schema, root, 0)

    def _schema(self, schema: object, root: JsonObject, depth: int) -> Any:
        if not isinstance(schema, dict):
            return schema if isinstance(schema, bool) else {}
        if depth > MAX_NESTING:
            return {}
        if isinstance(reference := schema.get("$ref"), str):
            return self._reference(reference, root, depth)
        short: JsonObject = {}
        for key, value in schema.items():
            if key in _KEPT:
                short[key] = value
            elif key in _SCHEMAS and isinstance(value, dict | bool):
                if value not in (True, {}):
                    short[key] = self._schema(value, root, depth + 1)
            elif key in _LISTS and isinstance(value, list):
                short[key] = [self._schema(item, root, depth + 1) for item in value]
            elif key in _MAPS and isinstance(value, dict):
                short[key] = {name: self._schema(item, root, depth + 1) for name, item in value.items()}
        if "enum" in short or "const" in short:
            short.pop("type", None)
        if not short.get("required", True):
            del short["required"]
        return short

    def _reference(self, reference: str, root: JsonObject, depth: int) -> Any:
        target = document_target(reference, root)
        if not isinstance(target, dict) or len(self.definitions) >= MAX_DEFINITIONS:
            return {}
        # Equal targets of different tools become one definition, whatever name each tool uses.
        identity = self._identity(target, root)
        if identity not in self._names:
            name = self._free_name(reference.rsplit("/", 1)[-1])
            self._names[identity] = name
            self.definitions[name] = {}
            self.definitions[name] = self._schema(target, root, depth + 1)
        return {"$ref": f"#/$defs/{self._names[identity]}"}

    def _identity(self, target: JsonObject, root: JsonObject) -> str:
        """Return a key for the meaning of a target: its JSON, with its document's definitions if it refers to any."""
        if self._root is not root:
            # Cached for each document and target: many references would otherwise be serialized many times.
            whole = json.dumps([root.get("$defs"), root.get("definitions")], sort_keys=True)
            self._definitions = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()
            self._root, self._identities = root, {}
        if id(target) not in self._identities:
            text = json.dumps(target, sort_keys=True)
            self._identities[id(target)] = f"{text} {self._definitions}" if '"$ref"' in text else text
        return self._identities[id(target)]

    def _free_name(self, wanted: str) -> str:
        base = _ILLEGAL.sub("_", wanted)[:40].strip("_") or "type"
        number = 1
        while (name := base if number == 1 else f"{base}{number}") in self.definitions:
            number += 1
        return name


def share_repeated(properties: JsonObject, compactor: Compactor) -> JsonObject:
    """Return the properties, with large repeated sub-schemas moved to the compactor's `$defs`."""
    counts: Counter[str] = Counter()
    named: dict[str, str] = {}
    for place, schema in [*properties.items(), *compactor.definitions.items()]:
        _count(schema, place, counts, named)
    shared: dict[str, str] = {}
    for text in counts:
        if counts[text] > 1 and len(text) >= MIN_SHARED:
            known = next((key for key, value in compactor.definitions.items() if _text(value) == text), None)
            name = known or compactor._free_name(named[text])
            shared[text] = name
            compactor.definitions[name] = json.loads(text)
    if not shared:
        return properties
    compactor.definitions = {
        name: _replaced(schema, shared, keep=True) for name, schema in compactor.definitions.items()
    }
    replaced = {name: _replaced(schema, shared) for name, schema in properties.items()}
    used = _used(replaced, compactor.definitions)
    compactor.definitions = {name: schema for name, schema in compactor.definitions.items() if name in used}
    return replaced


def _count(schema: object, place: str, counts: Counter[str], named: dict[str, str]) -> None:
    for name, item in _below(schema, place):
        _count(item, name, counts, named)
    if isinstance(schema, dict) and ("properties" in schema or "enum" in schema):
        text = _text(schema)
        counts[text] += 1
        named.setdefault(text, place)


def _below(schema: object, place: str) -> list[tuple[str, Any]]:
    if not isinstance(schema, dict):
        return []
    found: list[tuple[str, Any]] = []
    for key, value in schema.items():
        if key in _SCHEMAS:
            found.append((place, value))
        elif key in _LISTS and isinstance(value, list):
            found += [(place, item) for item in value]
        elif key in _MAPS and isinstance(value, dict):
            found += value.items()
    return found


def _replaced(schema: Any, shared: dict[str, str], *, keep: bool = False) -> Any:
    """Return `schema` with references for shared parts; with `keep`, the outermost schema itself stays in place."""
    if not isinstance(schema, dict):
        return schema
    if not keep and (name := shared.get(_text(schema))) is not None:
        return {"$ref": f"#/$defs/{name}"}
    short: JsonObject = {}
    for key, value in schema.items():
        if key in _SCHEMAS:
            short[key] = _replaced(value, shared)
        elif key in _LISTS and isinstance(value, list):
            short[key] = [_replaced(item, shared) for item in value]
        elif key in _MAPS and isinstance(value, dict):
            short[key] = {name: _replaced(item, shared) for name, item in value.items()}
        else:
            short[key] = value
    return short


def _used(properties: JsonObject, definitions: JsonObject) -> set[str]:
    used: set[str] = set()
    open_ends = [json.dumps(properties)]
    while open_ends:
        text = open_ends.pop()
        for name, schema in definitions.items():
            if name not in used and f'"#/$defs/{name}"' in text:
                used.add(name)
                open_ends.append(json.dumps(schema))
    return used


def _text(schema: object) -> str:
    return json.dumps(schema, separators=(",", ":"))
