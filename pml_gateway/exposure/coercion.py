"""Coercion of argument values to the type that a schema declares, if there is only one way to do it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pml_gateway.catalog.pointers import escaped, local_target
from pml_gateway.exposure.schema_cost import parts_of
from pml_gateway.exposure.shallow_check import TYPES, is_of_type, json_type, undeclared_names
from pml_gateway.exposure.vocabulary import same_parameter
from pml_gateway.types import JsonObject

MAX_PARTS = 5_000
"""Maximum number of values in arguments that are processed, in a few milliseconds; further ones stay as they are."""

MAX_TEXT = 64 * 1024
"""Maximum characters of JSON text that is parsed as a list or an object."""

MAX_SCHEMAS = 5_000
"""Maximum number of schemas that are processed: references can name each other in exponentially many ways."""

MAX_DEPTH = 32

MAX_RESPELLED = 20
"""Maximum number of names that are compared with the declared ones."""

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,17})?(?:[eE][+-]?[0-9]{1,2})?")
_TRUTHS = {"true": True, "True": True, "false": False, "False": False}
_COMBINED = ("anyOf", "oneOf")
_BESIDE_COMBINED = frozenset({"anyOf", "oneOf", "title", "description", "default", "examples", "deprecated"})
"""Keywords that may stand next to a choice of schemas without adding a constraint."""


def coerced(
    schema: JsonObject, arguments: JsonObject, unknown: frozenset[str] = frozenset()
) -> tuple[JsonObject, dict[str, str]]:
    """Return the arguments with coerced values, and a description of each change by JSON pointer.

    A value of an admitted type stays as it is, and so does one that is ambiguous, or whose schema has further keywords.
    Values at the `unknown` pointers are not known yet, and are skipped.
    """
    if parts_of(arguments, MAX_PARTS) >= MAX_PARTS:
        return arguments, {}
    reader = _Reader(schema, unknown)
    fields = reader.object_of(schema, arguments, "", 0)
    return (fields, reader.done) if reader.done else (arguments, {})


def respelled(schema: JsonObject, arguments: JsonObject) -> tuple[JsonObject, dict[str, str]]:
    """Return the arguments under the names that their schema declares, and the declared name for each changed one.

    A name is taken for another spelling of a declared one (`readOnly`, `read-only`) or for a synonym that tools use
    (`file_path` for `path`) only if one parameter fits, and that has no value yet.
    """
    properties = schema.get("properties")
    names: dict[str, str] = {}
    for name in undeclared_names(schema, arguments)[:MAX_RESPELLED]:
        fits = [target for target in properties or () if same_parameter(name, target)]
        if len(fits) == 1 and fits[0] not in arguments:
            names[name] = fits[0]
    # If two names were given for the same parameter, neither is changed.
    names = {name: target for name, target in names.items() if list(names.values()).count(target) == 1}
    return ({names.get(name, name): value for name, value in arguments.items()} if names else arguments), names


@dataclass(slots=True)
class _Reader:
    root: JsonObject
    unknown: frozenset[str]
    done: dict[str, str] = field(default_factory=dict)
    left: int = MAX_SCHEMAS

    def value_of(self, schema: Any, value: Any, pointer: str, depth: int) -> Any:
        """Return the value in a type that the schema admits, or unchanged."""
        if pointer in self.unknown or depth > MAX_DEPTH:
            return value
        choices = self._choices(schema, depth)
        if choices is None:
            return value
        fitting = [choice for kinds, choice in choices if any(is_of_type(value, kind) for kind in kinds)]
        if fitting:
            # It is ambiguous which of several schemas applies to the members.
            if len(fitting) > 1:
                return value
            return self._members(fitting[0], self._choice(fitting[0], value, pointer), pointer, depth)
        readings = [(kind, choice) for kinds, choice in choices for kind in kinds]
        found = [
            (read, choice) for kind, choice in readings for read in self._readings(kind, choice, value, pointer, depth)
        ]
        distinct = {json.dumps(read, sort_keys=True): (read, choice) for read, choice in found}
        if len(distinct) != 1:
            return value
        [(read, choice)] = distinct.values()
        self.done[pointer] = f"{_named(json_type(value))} read as {_named(json_type(read))}"
        return self._members(choice, read, pointer, depth)

    def _choice(self, schema: JsonObject, value: Any, pointer: str) -> Any:
        """Return the enum value that equals a text except for its case; else the text."""
        choices = schema.get("enum")
        if not isinstance(value, str) or not isinstance(choices, list) or value in choices:
            return value
        asked = value.strip().casefold()
        same = [each for each in choices if isinstance(each, str) and each.casefold() == asked]
        if len(same) != 1:
            return value
        self.done[pointer] = f"read as {same[0]!r}"
        return same[0]

    def object_of(self, schema: JsonObject, value: JsonObject, pointer: str, depth: int) -> JsonObject:
        """Return the object with coerced values of its declared properties."""
        properties = schema.get("properties")
        known: JsonObject = properties if isinstance(properties, dict) else {}
        required = schema.get("required")
        needed = required if isinstance(required, list) else []
        fields: JsonObject = {}
        for name, item in value.items():
            at = f"{pointer}/{escaped(name)}"
            if item is None and name in known and name not in needed and at not in self.unknown:
                choices = self._choices(known[name], depth)
                if choices is not None and not any("null" in kinds for kinds, _ in choices):
                    self.done[at] = "null left out"
                    continue
            fields[name] = self.value_of(known[name], item, at, depth + 1) if name in known else item
        return fields

    def _members(self, schema: JsonObject, value: Any, pointer: str, depth: int) -> Any:
        if isinstance(value, dict):
            return self.object_of(schema, value, pointer, depth + 1)
        items = schema.get("items")
        if isinstance(value, list) and isinstance(items, dict) and "prefixItems" not in schema:
            return [self.value_of(items, item, f"{pointer}/{at}", depth + 1) for at, item in enumerate(value)]
        return value

    def _choices(self, schema: Any, depth: int) -> list[tuple[tuple[str, ...], JsonObject]] | None:
        """Return the types that a schema admits, each with its schema; None if the schema does not simply list them."""
        self.left -= 1
        schema = self._followed(schema, depth) if self.left > 0 else None
        if schema is None:
            return None
        kinds = schema.get("type")
        if kinds is None and isinstance(schema.get("enum"), list):
            kinds = sorted({json_type(each) for each in schema["enum"]})
        if kinds is not None:
            named = tuple(kinds) if isinstance(kinds, list) else (kinds,)
            if not named or any(not isinstance(kind, str) or kind not in TYPES for kind in named):
                return None
            return None if any(key in schema for key in (*_COMBINED, "allOf")) else [(named, schema)]
        combined = [key for key in _COMBINED if key in schema]
        if len(combined) != 1 or not schema.keys() <= _BESIDE_COMBINED or depth > MAX_DEPTH:
            return None
        branches = schema[combined[0]]
        if not isinstance(branches, list):
            return None
        choices: list[tuple[tuple[str, ...], JsonObject]] = []
        for branch in branches:
            found = self._choices(branch, depth + 4)
            if found is None:
                return None
            choices += found
        return choices

    def _followed(self, schema: Any, depth: int) -> JsonObject | None:
        """Follow references; return the schema at their end, or None."""
        for _ in range(MAX_DEPTH - min(depth, MAX_DEPTH - 1)):
            if not isinstance(schema, dict):
                return None
            pointer = schema.get("$ref")
            if pointer is None:
                return schema
            schema = local_target(pointer, self.root) if isinstance(pointer, str) else None
        return None

    def _readings(self, kind: str, schema: JsonObject, value: Any, pointer: str, depth: int) -> Iterator[Any]:
        """Yield the value converted to a type; nothing if that is not possible."""
        if kind == "array":
            yield from self._lists(schema, value, pointer, depth)
        elif kind == "object":
            read = _from_json(value)
            if isinstance(read, dict):
                yield read
        elif kind == "boolean" and isinstance(value, str) and value in _TRUTHS:
            yield _TRUTHS[value]
        elif kind == "integer" and isinstance(value, str) and _INTEGER.fullmatch(value):
            yield int(value)
        elif kind == "number" and isinstance(value, str) and _NUMBER.fullmatch(value):
            yield json.loads(value)

    def _lists(self, schema: JsonObject, value: Any, pointer: str, depth: int) -> Iterator[Any]:
        read = _from_json(value)
        if isinstance(read, list):
            yield read
            return
        # A text with a separator may be one value or several, and an empty one may be none.
        if value is None or value == "" or (isinstance(value, str) and any(mark in value for mark in ",;\n")):
            return
        items = schema.get("items")
        choices = None if "prefixItems" in schema else self._choices(items, depth)
        if choices is None:
            if items is None or items is True or items == {}:
                yield [value]
            return
        alone = _Reader(self.root, self.unknown, left=self.left)
        member = alone.value_of(items, value, f"{pointer}/0", depth + 1)
        self.left = alone.left
        if any(is_of_type(member, kind) for kinds, _ in choices for kind in kinds):
            yield [value]


def _from_json(value: Any) -> Any:
    if not isinstance(value, str) or len(value) > MAX_TEXT or value[:64].lstrip()[:1] not in ("[", "{"):
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _named(kind: str) -> str:
    return {"string": "text", "array": "list"}.get(kind, kind)
