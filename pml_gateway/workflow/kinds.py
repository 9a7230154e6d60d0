"""What is known of a value before it is there: of which kinds it may be, and what is in it, as a schema says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from pml_gateway.results.content import WRAPPED
from pml_gateway.text import shortened
from pml_gateway.types import JsonObject

MAX_DEPTH = 8
MAX_NODES = 2000
"""Of a schema that are read, in 10 ms; what is further in is taken for unknown."""

MAX_SHOWN = 120
"""Characters of a type in a message."""


class Kind(StrEnum):
    """What JSON tells apart."""

    NULL = "null"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    NUMBER = "number"
    STRING = "string"
    ARRAY = "array"
    OBJECT = "object"


EVERY = frozenset(Kind)
NUMBERS = frozenset({Kind.INTEGER, Kind.NUMBER})
NO_FIELDS: Mapping[str, Type] = MappingProxyType({})


class Presence(StrEnum):
    """Whether an object has a field."""

    CERTAIN = "certain"
    POSSIBLE = "possible"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Type:
    """What a value may be.

    Args:
        kinds: of which kinds.
        fields: of an object, those that are named.
        required: those of them that every object has.
        others: what other fields hold; None where nothing says that there are any.
        items: of a list; None where nothing is known of them.
        least: items that every list has.
        limits: keywords that refuse some values of these kinds.
        choices: the only values there are, where they are named.
        is_sure: whether this was declared. What was learned from results is no ground for refusing anything.
        beside: what the gateway makes of some results, under names that the tool did not declare.
    """

    kinds: frozenset[Kind] = EVERY
    fields: Mapping[str, Type] = field(default_factory=lambda: NO_FIELDS)
    required: frozenset[str] = frozenset()
    others: Type | None = None
    items: Type | None = None
    least: int = 0
    limits: tuple[str, ...] = ()
    choices: tuple[Any, ...] = ()
    is_sure: bool = True
    beside: Mapping[str, Type] = field(default_factory=lambda: NO_FIELDS)

    @property
    def item(self) -> Type:
        """What an item of a list is."""
        return self.items or ANYTHING

    def member(self, name: str) -> tuple[Type, Presence]:
        """What an object's field of this name holds, and whether it is there."""
        if name in self.fields:
            return self.fields[name], Presence.CERTAIN if name in self.required else Presence.POSSIBLE
        if name in self.beside:
            return self.beside[name], Presence.POSSIBLE
        if self.others is not None or not self.fields:
            return self.others or ANYTHING, Presence.POSSIBLE
        return NULL, Presence.NEVER

    def without_null(self) -> Type:
        """The same where it is there."""
        return replace(self, kinds=self.kinds - {Kind.NULL}) if Kind.NULL in self.kinds else self

    def or_null(self) -> Type:
        """The same, which may also be null."""
        return self if Kind.NULL in self.kinds else replace(self, kinds=self.kinds | {Kind.NULL})

    def __str__(self) -> str:
        return shortened(_written(self, 3), MAX_SHOWN)


ANYTHING = Type(is_sure=False)
NULL = Type(frozenset({Kind.NULL}))
BOOLEAN = Type(frozenset({Kind.BOOLEAN}))
INTEGER = Type(frozenset({Kind.INTEGER}))
NUMBER = Type(NUMBERS)
STRING = Type(frozenset({Kind.STRING}))
OBJECT = Type(frozenset({Kind.OBJECT}))


def list_of(items: Type, least: int = 0) -> Type:
    """A list of these."""
    return Type(frozenset({Kind.ARRAY}), items=items, least=least, is_sure=True)


def record_of(fields: Mapping[str, Type]) -> Type:
    """An object with exactly these fields."""
    return Type(frozenset({Kind.OBJECT}), fields, frozenset(fields))


def either(types: Iterable[Type]) -> Type:
    """What a value may be that is one of these."""
    every = list(types)
    if not every:
        return ANYTHING
    if len(every) == 1:
        return every[0]
    if any(each.kinds == EVERY and not each.fields for each in every):
        return replace(ANYTHING, is_sure=all(each.is_sure for each in every))
    objects = [each for each in every if Kind.OBJECT in each.kinds]
    lists = [each for each in every if Kind.ARRAY in each.kinds]
    names = dict.fromkeys(name for each in objects for name in each.fields)
    open_ones = [each.others or ANYTHING for each in objects if each.others is not None or not each.fields]
    return Type(
        kinds=frozenset[Kind]().union(*(each.kinds for each in every)),
        fields={name: either(each.fields[name] for each in objects if name in each.fields) for name in names},
        required=frozenset.intersection(*(each.required for each in objects)) if objects else frozenset(),
        others=either(open_ones) if open_ones else None,
        items=either(each.item for each in lists) if lists else None,
        least=min((each.least for each in lists), default=0),
        limits=tuple(dict.fromkeys(limit for each in every for limit in each.limits)),
        choices=tuple(choice for each in every for choice in each.choices) if all(e.choices for e in every) else (),
        is_sure=all(each.is_sure for each in every),
    )


def type_of(value: Any, depth: int = 0) -> Type:
    """The type of a value that is there."""
    match value:
        case None:
            return NULL
        case bool():
            return replace(BOOLEAN, choices=(value,))
        case int():
            return replace(INTEGER, choices=(value,))
        case float():
            return replace(INTEGER if value.is_integer() else NUMBER, choices=(value,))
        case str():
            return replace(STRING, choices=(value,))
        case list() if depth < MAX_DEPTH and len(value) < MAX_NODES:
            return list_of(either(type_of(each, depth + 1) for each in value), len(value))
        case dict() if depth < MAX_DEPTH and len(value) < MAX_NODES:
            return record_of({str(key): type_of(each, depth + 1) for key, each in value.items()})
        case list() | dict():
            return Type(frozenset({Kind.ARRAY if isinstance(value, list) else Kind.OBJECT}))
        case _:
            return ANYTHING


def declared(schema: JsonObject) -> Type:
    """What a schema says."""
    return _Reader(schema, is_sure=True).read(schema, 0)


def learned(schema: JsonObject) -> Type:
    """What the results so far were; the next one may be another."""
    return _Reader(schema, is_sure=False).read(schema, 0)


def declared_output(schema: JsonObject, inner: JsonObject | None) -> Type:
    """What references read of the results of a tool that declares its output, and `inner` as that of the wrapped value.

    The field of a Python server's wrapper may be named or left out. A result that has media beside its structure is
    addressed as both.
    """
    output = declared(schema if inner is None else inner)
    beside = {"structuredContent": output, "content": ANYTHING}
    if inner is not None:
        beside[WRAPPED] = output
    return replace(output, beside={name: each for name, each in beside.items() if name not in output.fields})


_LIMITS = (
    *("const", "enum", "exclusiveMaximum", "exclusiveMinimum", "maximum", "maxItems", "maxLength"),
    *("maxProperties", "minimum", "minItems", "minLength", "minProperties", "multipleOf", "not", "pattern"),
    *("contains", "dependentRequired", "dependentSchemas", "else", "if", "patternProperties", "prefixItems"),
    *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties", "uniqueItems"),
)
"""Keywords of which only the value itself shows whether it keeps them."""

_OPENING = frozenset({"patternProperties", "if", "then", "else", "dependentSchemas", "unevaluatedProperties"})
"""Keywords by which an object may have fields that `properties` does not name."""


class _Reader:
    """Reads one schema, up to so many nodes."""

    def __init__(self, root: JsonObject, *, is_sure: bool) -> None:
        self._root = root
        self._is_sure = is_sure
        self._left = MAX_NODES

    def read(self, schema: Any, depth: int) -> Type:
        self._left -= 1
        if not isinstance(schema, dict) or depth > MAX_DEPTH or self._left < 0:
            return ANYTHING
        own = self._own(schema, depth)
        parts = []
        if isinstance(schema.get("$ref"), str):
            parts.append(self.read(self._referred(schema["$ref"]), depth + 1))
        if isinstance(schema.get("allOf"), list):
            parts += [self.read(each, depth + 1) for each in schema["allOf"]]
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list) and schema[key]:
                parts.append(either(self.read(each, depth + 1) for each in schema[key]))
        for part in parts:
            own = _both(own, part)
        return own

    def _own(self, schema: JsonObject, depth: int) -> Type:
        kinds, choices = _kinds(schema), _choices(schema)
        if choices:
            kinds &= either(type_of(each) for each in choices).kinds | (NUMBERS if kinds & NUMBERS else frozenset())
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        required, additional = schema.get("required"), schema.get("additionalProperties")
        others = None if additional in (None, False) else self.read(additional, depth + 1)
        if not _OPENING.isdisjoint(schema) and additional is not False:
            others = ANYTHING
        least = schema.get("minItems")
        says_nothing = not properties and "items" not in schema and kinds == EVERY and not choices
        return Type(
            kinds=kinds,
            fields={name: self.read(each, depth + 1) for name, each in properties.items()},
            required=frozenset(each for each in required if each in properties)
            if isinstance(required, list)
            else frozenset(),
            others=others,
            items=self.read(schema["items"], depth + 1) if isinstance(schema.get("items"), dict) else None,
            least=least if isinstance(least, int) else 0,
            limits=(*_limits(schema, required, properties), *(["additionalProperties"] if additional is False else [])),
            choices=choices,
            is_sure=self._is_sure and not says_nothing,
        )

    def _referred(self, pointer: str) -> Any:
        node: Any = self._root
        if not pointer.startswith("#"):
            return None
        for part in pointer[1:].split("/")[1:]:
            node = node.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(node, dict) else None
        return node


def _kinds(schema: JsonObject) -> frozenset[Kind]:
    written = schema.get("type")
    named = {written} if isinstance(written, str) else set(written) if isinstance(written, list) else set()
    kinds = frozenset(Kind(each) for each in named if each in list(Kind))
    if Kind.NUMBER in kinds:
        kinds |= NUMBERS
    return kinds or EVERY


def _choices(schema: JsonObject) -> tuple[Any, ...]:
    if "const" in schema:
        return (schema["const"],)
    return tuple(schema["enum"]) if isinstance(schema.get("enum"), list) else ()


def _limits(schema: JsonObject, required: Any, properties: JsonObject) -> Iterator[str]:
    yield from (key for key in _LIMITS if key in schema)
    if isinstance(required, list) and any(each not in properties for each in required):
        yield "required"


def _both(one: Type, other: Type) -> Type:
    """What a value is of which both are said."""
    if one == ANYTHING or other == ANYTHING:
        return other if one == ANYTHING else replace(one, limits=(*one.limits, "allOf"))
    names = dict.fromkeys((*one.fields, *other.fields))
    members = {
        name: _both(one.fields[name], other.fields[name])
        if name in one.fields and name in other.fields
        else (one.fields.get(name) or other.fields[name])
        for name in names
    }
    items = [each for each in (one.items, other.items) if each is not None]
    return Type(
        kinds=one.kinds & other.kinds,
        fields=members,
        required=one.required | other.required,
        others=one.others or other.others,
        items=items[0] if items else None,
        least=max(one.least, other.least),
        limits=tuple(dict.fromkeys((*one.limits, *other.limits))),
        choices=one.choices or other.choices,
        is_sure=one.is_sure or other.is_sure,
    )


def _written(value: Type, depth: int) -> str:
    kinds = value.kinds
    if kinds == EVERY:
        return "anything"
    names = []
    for kind in Kind:
        if kind not in kinds or (kind is Kind.INTEGER and Kind.NUMBER in kinds):
            continue
        if kind is Kind.ARRAY and value.items is not None and depth and value.items.kinds != EVERY:
            names.append(f"list of {_written(value.items, depth - 1)}")
        elif kind is Kind.OBJECT and value.fields and depth:
            names.append(f"{{{', '.join(value.fields)}}}")
        else:
            names.append(_WORDS.get(kind, kind.value))
    return " or ".join(names) or "nothing"


_WORDS = {Kind.ARRAY: "list", Kind.STRING: "text"}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Where a value does not fit what is wanted; certainly, or perhaps."""

    reason: str
    is_certain: bool


def mismatches(found: Type, wanted: Type, at: str = "it", depth: int = 0) -> Iterator[Mismatch]:
    """Where a value of one type would be refused as another, as far as their schemas show."""
    if (wanted.kinds == EVERY and not wanted.choices and not wanted.limits) or depth > MAX_DEPTH:
        return
    fits = found.kinds & wanted.kinds
    if not fits:
        is_sure, may_be_read = found.is_sure and wanted.is_sure, _may_be_read(found, wanted, depth)
        reason = f"whether {at} can be read as {wanted}: it is {found}" if may_be_read else ""
        yield Mismatch(reason or f"{at} is {found}, and {wanted} is wanted", is_sure and not may_be_read)
        return
    if fits != found.kinds:
        if not (found.kinds == NUMBERS and fits == {Kind.INTEGER}):
            reason = f"{at} may be {replace(found, kinds=found.kinds - fits)}, and {wanted} is wanted"
        else:
            reason = f"{at} may be no whole number"
        yield Mismatch(reason if found.kinds != EVERY else f"{at} may be anything, and {wanted} is wanted", False)
    elif not found.is_sure and found.kinds == EVERY:
        yield Mismatch(f"{at} may be anything, and {wanted} is wanted", False)
    yield from _limited(found, wanted, at)
    if Kind.ARRAY in fits and wanted.items is not None:
        certain = fits == {Kind.ARRAY}
        for each in mismatches(found.item, wanted.items, f"an item of {at}", depth + 1):
            yield replace(each, is_certain=each.is_certain and certain)
    if Kind.OBJECT in fits:
        certain = fits == {Kind.OBJECT}
        for each in _of_objects(found, wanted, at, depth):
            yield replace(each, is_certain=each.is_certain and certain)


def _may_be_read(found: Type, wanted: Type, depth: int) -> bool:
    """Whether a call could read a value as another type: what a text holds, or one value for a list of it."""
    if Kind.STRING in found.kinds and wanted.kinds - {Kind.NULL, Kind.STRING}:
        return True
    alone = found.without_null()
    return (
        Kind.ARRAY in wanted.kinds
        and bool(alone.kinds)
        and not any(each.is_certain for each in mismatches(alone, wanted.item, depth=depth + 1))
    )


def _limited(found: Type, wanted: Type, at: str) -> Iterator[Mismatch]:
    if wanted.choices:
        if found.choices:
            taken = [_as_compared(each) for each in wanted.choices]
            outside = [each for each in found.choices if _as_compared(each) not in taken]
            if outside:
                reason = f"{at} may be {shortened(repr(outside[0]), 60)}, which is none of its values"
                yield Mismatch(reason, len(outside) == len(found.choices) and found.is_sure)
            return
        yield Mismatch(f"whether {at} is one of {shortened(', '.join(map(repr, wanted.choices)), 80)}", False)
        return
    limits = [each for each in wanted.limits if each not in found.limits and each != "additionalProperties"]
    if limits:
        yield Mismatch(f"whether {at} keeps {', '.join(limits)}", False)


def _as_compared(choice: Any) -> Any:
    return choice.strip().casefold() if isinstance(choice, str) else choice


def _of_objects(found: Type, wanted: Type, at: str, depth: int) -> Iterator[Mismatch]:
    for name in sorted(wanted.required):
        _, presence = found.member(name)
        if presence is Presence.NEVER:
            yield Mismatch(f"{at} has no field {name!r}, which is wanted", found.is_sure and wanted.is_sure)
        elif presence is Presence.POSSIBLE:
            yield Mismatch(f"{at} may have no field {name!r}", False)
    for name, each in found.fields.items():
        if name in wanted.fields:
            yield from mismatches(each, wanted.fields[name], f"{name!r} of {at}", depth + 1)
        elif "additionalProperties" in wanted.limits:
            yield Mismatch(f"{at} has a field {name!r}, which is not taken", found.is_sure and name in found.required)
        elif wanted.others is not None:
            yield from mismatches(each, wanted.others, f"{name!r} of {at}", depth + 1)
    is_open = found.others is not None or not found.fields
    if is_open and ("additionalProperties" in wanted.limits or wanted.fields):
        yield Mismatch(f"what other fields {at} has", False)
