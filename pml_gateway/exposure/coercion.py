"""Coercion of argument values to the type that a schema declares, if there is only one way to do it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from pml_gateway.catalog.pointers import escaped, local_target
from pml_gateway.exposure.parameter_facts import UNKNOWN
from pml_gateway.exposure.parameter_names import NameReading, Names, ToolSubject
from pml_gateway.exposure.schema_cost import parts_of
from pml_gateway.exposure.shallow_check import (
    TYPES,
    is_of_type,
    is_open,
    json_type,
    missing_names,
    undeclared_names,
)
from pml_gateway.types import JsonObject

MAX_PARTS = 5_000
"""Maximum number of values in arguments that are processed, in a few milliseconds; further ones stay as they are."""

MAX_TEXT = 64 * 1024
"""Maximum characters of JSON text that is parsed as a list or an object."""

MAX_SCHEMAS = 5_000
"""Maximum number of schemas that are processed: references can name each other in exponentially many ways."""

MAX_DEPTH = 32

MAX_BRANCHES = 8
"""Maximum number of schemas of one object whose names are tried."""

MAX_TAKES = 3
"""Names that are told of a nested object that has none of them."""

MAX_UNDECLARED = 20
"""Maximum number of undeclared names that are noted."""

MAX_COMPARISONS = 500
"""Maximum number of pairs of an undeclared and a declared name that are compared, in 50 ms; a usual call has ten."""

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


@dataclass(frozen=True, slots=True)
class Undeclared:
    """A name in arguments, at any depth, that its schema does not declare, and would most likely be ignored.

    `reading` has the parameters that it may stand for, or is None if it was not compared; `missing` are the required
    ones of the same object without a value. `takes` are names of a nested object that has none of them.
    """

    pointer: str
    name: str
    reading: NameReading | None
    missing: tuple[str, ...]
    takes: tuple[str, ...] = ()


def respelled(
    schema: JsonObject, arguments: JsonObject, subject: Callable[[], ToolSubject], unknown: frozenset[str] = frozenset()
) -> tuple[JsonObject, dict[str, str]]:
    """Return the arguments under the names that their schema declares, and the declared name by pointer as it was sent.

    A name is read as another only if it can stand for one parameter alone, and that has no value yet. Nested objects
    are read alike. `subject` is asked for only if a name is undeclared.
    """
    speller = _Speller(schema, subject, unknown)
    return speller.spelled(schema, arguments), speller.names


def undeclared_in(schema: JsonObject, arguments: JsonObject, subject: Callable[[], ToolSubject]) -> list[Undeclared]:
    """Return the names in the arguments that the schema does not declare."""
    speller = _Speller(schema, subject, frozenset())
    speller.spelled(schema, arguments)
    return speller.undeclared


class _Speller:
    """A reader of names in arguments and the objects in them, as far as one schema applies to each."""

    def __init__(self, root: JsonObject, subject: Callable[[], ToolSubject], unknown: frozenset[str]) -> None:
        self.names: dict[str, str] = {}
        self.undeclared: list[Undeclared] = []
        self._subject = subject
        self._unknown = unknown
        self._types = _Reader(root, unknown)
        self._comparisons = MAX_COMPARISONS

    def spelled(self, schema: JsonObject, arguments: JsonObject) -> JsonObject:
        """Return the arguments under the declared names."""
        is_small = parts_of(arguments, MAX_PARTS) < MAX_PARTS
        return self._object(schema, arguments, "", 0 if is_small else MAX_DEPTH, ())

    def _object(
        self, schema: JsonObject, value: JsonObject, pointer: str, depth: int, holders: tuple[str, ...]
    ) -> JsonObject:
        if pointer and not _is_record(schema):
            return value
        properties = schema.get("properties")
        known: JsonObject = properties if isinstance(properties, dict) else {}
        undeclared = undeclared_names(schema, value)
        is_free = not undeclared and schema.get("additionalProperties") is True and not is_open(schema)
        if is_free and missing_names(schema, value):
            undeclared = [name for name in value if name not in known]
        names = self._declared(undeclared, schema, value, pointer, holders, is_free) if undeclared else {}
        self.names |= {f"{pointer}/{escaped(name)}": target for name, target in names.items()}
        fields: JsonObject = {}
        for name, item in value.items():
            target = names.get(name, name)
            # Where several schemas apply to an object, none of them alone says what its members are.
            is_nested = target in known and isinstance(item, dict | list) and not is_open(schema)
            at = f"{pointer}/{escaped(name)}"
            fields[target] = self._value(known[target], item, at, depth + 1, (*holders, target)) if is_nested else item
        return fields if names or any(fields[name] is not item for name, item in value.items()) else value

    def _declared(
        self,
        undeclared: Sequence[str],
        schema: JsonObject,
        value: JsonObject,
        pointer: str,
        holders: tuple[str, ...],
        is_free: bool,
    ) -> dict[str, str]:
        """Return the declared names that undeclared ones stand for; note the others.

        An object that is free to have any name is read for the required ones only.
        """
        subject = self._subject()
        for holder in holders:
            subject = subject.within(holder)
        asked = [name for name in undeclared if not name.startswith("$")]
        properties = schema.get("properties")
        declared = len(properties) if isinstance(properties, dict) else 0
        asked = asked[: self._comparisons // max(declared, 1)]
        self._comparisons -= len(asked) * declared
        given = {name: UNKNOWN if f"{pointer}/{escaped(name)}" in self._unknown else value[name] for name in asked}
        reader = Names(schema, value.keys(), subject, self._admits)
        readings = reader.read(given)
        names = {name: each.target for name, each in readings.items() if each.target is not None}
        if is_free:
            return {name: target for name, target in names.items() if target in reader.missing}
        missing = tuple(name for name in reader.missing if name not in names.values())
        known = schema["properties"]
        is_empty = bool(pointer) and not names and known.keys().isdisjoint(value)
        takes = tuple(islice(known, MAX_TAKES)) if is_empty else ()
        self.undeclared += [
            Undeclared(f"{pointer}/{escaped(name)}", name, readings.get(name), missing, takes)
            for name in undeclared[: max(0, MAX_UNDECLARED - len(self.undeclared))]
            if name not in names
        ]
        return names

    def _admits(self, schema: Any, value: Any) -> bool:
        """Return True if a schema admits a value as it is or coerced, as far as types and choices show."""
        choices = None if value is UNKNOWN else self._types.choices(schema, 0)
        if choices is None:
            return True
        for kinds, choice in choices:
            for kind in kinds:
                values = [value] if is_of_type(value, kind) else self._types.readings(kind, choice, value)
                if any(_is_listed(choice, each) for each in values):
                    return True
        return False

    def _value(self, schema: Any, value: Any, pointer: str, depth: int, holders: tuple[str, ...]) -> Any:
        if pointer in self._unknown or depth > MAX_DEPTH or _is_joined(schema):
            return value
        kind = json_type(value)
        fitting = [choice for kinds, choice in self._types.choices(schema, depth) or () if kind in kinds]
        if isinstance(value, dict) and fitting:
            return self._only(fitting, value, pointer, depth, holders)
        if len(fitting) != 1:
            return value
        items = fitting[0].get("items")
        if not isinstance(value, list) or not isinstance(items, dict) or "prefixItems" in fitting[0]:
            return value
        read = [
            self._value(items, item, f"{pointer}/{at}", depth + 1, holders) if isinstance(item, dict | list) else item
            for at, item in enumerate(value)
        ]
        return read if any(new is not old for new, old in zip(read, value, strict=True)) else value

    def _only(
        self, schemas: Sequence[JsonObject], value: JsonObject, pointer: str, depth: int, holders: tuple[str, ...]
    ) -> JsonObject:
        """Return an object under the names of the only one of several schemas that takes them all."""
        if len(schemas) == 1:
            return self._object(schemas[0], value, pointer, depth, holders)
        names, undeclared = self.names, self.undeclared
        found: list[tuple[JsonObject, dict[str, str]]] = []
        for schema in schemas[:MAX_BRANCHES]:
            self.names, self.undeclared = dict(names), []
            fields = self._object(schema, value, pointer, depth, holders)
            if not self.undeclared and not missing_names(schema, fields):
                found.append((fields, self.names))
        self.names, self.undeclared = names, undeclared
        if len(found) != 1 or len(schemas) > MAX_BRANCHES:
            return value
        fields, self.names = found[0]
        return fields


def _is_listed(schema: JsonObject, value: Any) -> bool:
    """Return True if a value is one of the choices of a schema, in any case; or if that has none."""
    choices = schema.get("enum")
    if not isinstance(choices, list):
        return True
    asked = value.strip().casefold() if isinstance(value, str) else value
    return any(asked == (each.casefold() if isinstance(each, str) else each) for each in choices)


def _is_record(schema: JsonObject) -> bool:
    """Return True if a nested object has the declared names only: a map with an example may have any."""
    properties = schema.get("properties")
    is_several = isinstance(properties, dict) and len(properties) > 1
    return schema.get("additionalProperties") is False or bool(schema.get("required")) or is_several


def _is_joined(schema: Any) -> bool:
    """Return True for a reference to whose target more keywords of the same schema are added."""
    return isinstance(schema, dict) and "$ref" in schema and not schema.keys() <= {"$ref", *_BESIDE_COMBINED}


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
        choices = self.choices(schema, depth)
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
                choices = self.choices(known[name], depth)
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

    def choices(self, schema: Any, depth: int) -> list[tuple[tuple[str, ...], JsonObject]] | None:
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
            found = self.choices(branch, depth + 4)
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

    def readings(self, kind: str, schema: JsonObject, value: Any) -> list[Any]:
        """Return the value converted to a type; nothing if that is not possible."""
        return list(self._readings(kind, schema, value, "", 0))

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
        choices = None if "prefixItems" in schema else self.choices(items, depth)
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
