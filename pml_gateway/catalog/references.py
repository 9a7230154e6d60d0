"""References within a schema: rewritten as plain pointers, without those that lead nowhere or round in a circle.

Clients compile the schemas of many servers with one validator, which remembers schemas by `$id` and anchor as long as
it exists. So references to either become pointers, and only an anchor that occurs once in its schema is shown.
"""

from __future__ import annotations

import marshal
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urljoin

from pml_gateway.catalog.keywords import subschemas, with_subschemas
from pml_gateway.catalog.pointers import MAX_REFERENCE, document_target, escaped, unescaped
from pml_gateway.types import JsonObject

REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
ANCHORS = ("$anchor", "$dynamicAnchor")
NAMES = frozenset({"$id", "id", *ANCHORS, "$recursiveAnchor"})
"""Keywords that name a schema for references; `id` is that of draft 4, which some validators refuse to compile."""

PLAIN_FORMAT = 2
"""Version of the marshal format that has no references."""

MAX_DEPTH = 24
"""Maximum nesting of schemas that are read; deeper parts are not kept."""

MAX_MOVED = 200
"""Maximum number of schemas that are moved to `$defs` so that references reach them."""

_MARKS = tuple(
    len(name).to_bytes(4, "little") + name.encode() for name in ("$ref", "$dynamicRef", "$recursiveRef", *sorted(NAMES))
)
"""The keywords about references as `marshal` writes them."""

_PLAIN = re.compile(r"#(?:/[\w$.~-]+)*", re.ASCII)
_LIKE_A_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
_IN_PLACE = frozenset({"allOf", "anyOf", "dependencies", "dependentSchemas", "else", "if", "not", "oneOf", "then"})
"""Keywords whose schemas apply to the same value as the schema that contains them."""


def with_pointers(schema: JsonObject) -> JsonObject:
    """Return the schema without names, and with a pointer for every reference within it; the same object if unchanged.

    A target in a place that is not for schemas (`#/components/schemas/X`), or under a name that pointers have to
    escape, is moved to `$defs`.
    """
    if not _may_refer(schema):
        return schema
    document = _Document(schema)
    document.read(schema, (), "", 0)
    if not document.has_names and all(document.is_plain(reference) for reference in document.references):
        return schema
    rewritten = document.rewritten()
    return schema if rewritten == schema else rewritten


def _may_refer(schema: JsonObject) -> bool:
    """Return False if a schema certainly has neither references nor names; far faster than visiting every part."""
    try:
        written = marshal.dumps(schema, PLAIN_FORMAT)
    except ValueError:
        return True  # nested deep, or no plain values
    return any(mark in written for mark in _MARKS)


@dataclass(slots=True)
class _Document:
    root: JsonObject
    has_names: bool = False
    references: list[str] = field(default_factory=list)
    resources: dict[str, tuple[str, ...]] = field(default_factory=lambda: {"": ()})
    anchors: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    anchored: Counter[str] = field(default_factory=Counter)
    positions: set[tuple[str, ...]] = field(default_factory=set)
    moved: dict[tuple[str, ...], str] = field(default_factory=dict)
    waiting: list[tuple[str, Any, str]] = field(default_factory=list)
    definitions: set[str] = field(default_factory=set)

    def read(self, schema: JsonObject, at: tuple[str, ...], base: str, depth: int) -> None:
        """Record the positions of schemas, and their names."""
        self.positions.add(at)
        if not schema.keys().isdisjoint(NAMES):
            self.has_names = True
            base = self._read_names(schema, at, base)
        self.references += [schema[key] for key in REFERENCES if isinstance(schema.get(key), str)]
        self.has_names = self.has_names or "$dynamicRef" in schema or "$recursiveRef" in schema
        if depth < MAX_DEPTH:
            for key, place, part in subschemas(schema):
                below = (*at, key) if place is None else (*at, key, str(place))
                if isinstance(part, dict):
                    self.read(part, below, base, depth + 1)
                else:
                    self.positions.add(below)

    def _read_names(self, schema: JsonObject, at: tuple[str, ...], base: str) -> str:
        own = _own_name(schema)
        if own.startswith("#"):
            self.anchors.setdefault((base, own[1:]), at)
        elif own:
            base = _joined(base, own)
            self.resources.setdefault(base, at)
        for key in ANCHORS:
            if isinstance(schema.get(key), str):
                self.anchored[schema[key]] += 1
                self.anchors.setdefault((base, schema[key]), at)
        return base

    def is_plain(self, reference: str) -> bool:
        """Return True for a pointer to a schema that clients read as it is written; call it after `read`."""
        if _PLAIN.fullmatch(reference) is None:
            return False
        return tuple(map(unescaped, reference.split("/")[1:])) in self.positions

    def rewritten(self) -> JsonObject:
        """Return the document with pointers; call it after `read`."""
        defined = self.root.get("$defs")
        self.definitions = set(defined) if isinstance(defined, dict) else set()
        schema: JsonObject = self._rewrite(self.root, "", 0)
        found: JsonObject = {}
        while self.waiting:
            name, target, base = self.waiting.pop()
            found[name] = self._rewrite(target, base, 1)
        if found:
            own = schema.get("$defs")
            schema = {**schema, "$defs": {**(own if isinstance(own, dict) else {}), **found}}
        return schema

    def _rewrite(self, schema: Any, base: str, depth: int) -> Any:
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return schema
        own = _own_name(schema)
        if own and not own.startswith("#"):
            base = _joined(base, own)
        rewritten = {
            key: value
            for key, value in with_subschemas(schema, lambda part, _: self._rewrite(part, base, depth + 1)).items()
            if key not in NAMES or (key == "$anchor" and isinstance(value, str) and self.anchored[value] == 1)
        }
        pointers: list[str] = []
        for key in REFERENCES:
            reference = rewritten.get(key)
            pointer = self._pointer(reference, base) if isinstance(reference, str) else None
            if pointer is not None:
                del rewritten[key]
                pointers.append(pointer)
        if pointers and "$ref" not in rewritten:
            rewritten["$ref"] = pointers.pop(0)
        if pointers:
            others = rewritten.get("allOf")
            rewritten["allOf"] = [*(others if isinstance(others, list) else []), *({"$ref": each} for each in pointers)]
        return rewritten

    def _pointer(self, reference: str, base: str) -> str | None:
        """Return a plain pointer to the target of a reference, or None if it is not in this document."""
        if len(reference) > MAX_REFERENCE:
            return None
        url, _, fragment = reference.partition("#")
        document = _joined(base, url) if url else base
        start = self.resources.get(document)
        if start is None:
            return None
        if not fragment:
            at = start
        elif fragment.startswith("/"):
            parts = tuple(unescaped(part) for part in fragment[1:].split("/"))
            decoded = tuple(unescaped(unquote(part)) for part in fragment[1:].split("/"))
            # Also from the root: a name that is not an identifier in the schema's draft is no base of pointers.
            tried = ((*start, *parts), (*start, *decoded), parts, decoded)
            at = next((each for each in tried if _at(self.root, each) is not None), parts)
        elif (document, fragment) in self.anchors:
            at = self.anchors[document, fragment]
        else:
            return None
        target = _at(self.root, at)
        if not isinstance(target, dict | bool):
            return None
        plain = "#" + "".join(f"/{escaped(part)}" for part in at)
        if at in self.positions and _PLAIN.fullmatch(plain):
            return plain
        return self._moved(at, target, document)

    def _moved(self, at: tuple[str, ...], target: Any, base: str) -> str | None:
        if at not in self.moved:
            if len(self.moved) >= MAX_MOVED:
                return None
            wanted = _LIKE_A_NAME.sub("_", at[-1])[:60] if at else "root"
            name = next(each for each in _numbered(wanted or "schema") if each not in self.definitions)
            self.definitions.add(name)
            self.moved[at] = name
            self.waiting.append((name, target, base))
        return f"#/$defs/{self.moved[at]}"


def without_lost_references(schema: JsonObject) -> tuple[JsonObject, list[str]]:
    """Return the schema without references that lead nowhere or in a circle, and these; the same object without any.

    Takes a schema as `with_pointers` returns it.
    """
    if not _may_refer(schema):
        return schema, []
    lost = {
        id(part): str(reference)
        for part, key, reference in _references(schema, 0)
        if key != "$ref" or not isinstance(_target(reference, schema), dict | bool)
    }
    circular = _circular(schema)
    if not lost and not circular:
        return schema, []
    return _without(schema, lost | circular, circular, 0), [*(lost | circular).values()]


def _references(schema: JsonObject, depth: int) -> Iterator[tuple[JsonObject, str, Any]]:
    """Yield every reference in a schema: the part that has it, its keyword and its value."""
    yield from ((schema, key, schema[key]) for key in REFERENCES if key in schema)
    if depth <= MAX_DEPTH:
        for _, _, part in subschemas(schema):
            if isinstance(part, dict):
                yield from _references(part, depth + 1)


def _target(reference: object, root: JsonObject) -> object:
    return document_target(reference, root) if isinstance(reference, str) else None


def _without(schema: JsonObject, lost: Mapping[int, str], circular: Mapping[int, str], depth: int) -> JsonObject:
    if depth > MAX_DEPTH:
        return schema
    # An alternative that is the choice itself adds nothing.
    choices = {
        key: [each for each in schema[key] if id(each) not in circular or len(each) > 1]
        for key in ("anyOf", "oneOf")
        if isinstance(schema.get(key), list)
    }
    kept = {key: value for key, value in (schema | choices).items() if value or key not in choices}
    if id(schema) in lost:
        kept = {key: value for key, value in kept.items() if key not in REFERENCES}
    return with_subschemas(
        kept, lambda part, _: _without(part, lost, circular, depth + 1) if isinstance(part, dict) else part
    )


def _circular(root: JsonObject) -> dict[int, str]:
    """Return references, by the `id()` of the schema that has them, whose target already applies to the same value."""
    found: dict[int, str] = {}
    finished: set[int] = set()
    for start, _, _ in _references(root, 0):
        if id(start) in finished:
            continue
        active = {id(start)}
        path = [(start, _applied(start, root), False)]
        while path:
            schema, targets, _ = path[-1]
            target, by_reference = next(targets, (None, False))
            if target is None:
                path.pop()
                active.discard(id(schema))
                finished.add(id(schema))
            elif id(target) in active:
                holder = schema
                if not by_reference:
                    # A reference must be part of the circle: nested schemas alone form none.
                    holder = next(path[at - 1][0] for at in range(len(path) - 1, 0, -1) if path[at][2])
                found[id(holder)] = holder["$ref"]
            elif id(target) not in finished:
                active.add(id(target))
                path.append((target, _applied(target, root), by_reference))
    return found


def _applied(schema: JsonObject, root: JsonObject) -> Iterator[tuple[JsonObject, bool]]:
    """Yield the schemas that apply to the same value, each with True if it is by reference."""
    target = _target(schema.get("$ref"), root)
    if isinstance(target, dict):
        yield target, True
    for key, _, part in subschemas(schema):
        if key in _IN_PLACE and isinstance(part, dict):
            yield part, False


def _own_name(schema: JsonObject) -> str:
    name = schema.get("$id", schema.get("id"))
    return name if isinstance(name, str) else ""


def _joined(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference).partition("#")[0]
    except ValueError:
        return reference


def _at(root: JsonObject, at: tuple[str, ...]) -> Any:
    return document_target("#" + "".join(f"/{escaped(part)}" for part in at), root)


def _numbered(name: str) -> Iterator[str]:
    yield name
    for number in range(2, MAX_MOVED + 2):
        yield f"{name}_{number}"
