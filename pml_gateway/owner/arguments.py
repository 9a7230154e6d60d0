"""A tool's arguments from the words of a command line: options by its schema, JSON, NAME=VALUE pairs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pml_gateway.catalog.pointers import local_target
from pml_gateway.errors import InvalidInputError
from pml_gateway.text import did_you_mean, nearest, shortened
from pml_gateway.types import JsonObject

MAX_REFERENCES = 8
MAX_NESTING = 3
MAX_SHOWN = 80

_EXAMPLE = """write '{"path": "a.txt"}' or --path a.txt"""
"""Maximum number of references followed in a row, and depth of objects that become dotted flags (deeper: JSON)."""

_KINDS_WITHOUT_TEXT = ("null", "boolean", "integer", "number", "array", "object")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Flag:
    """One parameter as an option: where its value goes, and what may stand there."""

    path: tuple[str, ...]
    kinds: frozenset[str]
    choices: tuple[Any, ...]
    required: bool
    description: str
    item: Flag | None = None

    @property
    def option(self) -> str:
        """The option as it is shown, `--max-lines` or `--filter.name`."""
        return "--" + ".".join(_kebab(part) for part in self.path)

    @property
    def is_switch(self) -> bool:
        """Return True if the option needs no value: `--flag` and `--no-flag`."""
        return self.kinds - {"null"} == {"boolean"} and not self.choices

    @property
    def values(self) -> str:
        """Return the permitted values in a few words."""
        if self.item is not None:
            return f"{self.item.values}, may be repeated"
        if self.choices:
            return " | ".join(_shown(choice) for choice in self.choices)
        return " or ".join(sorted(self.kinds)) or "any JSON"


def flags_of(schema: JsonObject) -> list[Flag]:
    """Return the options of a tool's input schema; required ones first."""
    return sorted(_flags(schema, schema, (), MAX_NESTING), key=lambda flag: not flag.required)


def read_flags(schema: JsonObject, words: Sequence[str], given: JsonObject | None = None) -> JsonObject:
    """Arguments from words such as `--path a.txt --tag a --tag b --no-recursive`, put over those `given`.

    Raises:
        InvalidInputError: an option the tool does not have, one without its value, or a value of another type.
    """
    flags = flags_of(schema)
    arguments: JsonObject = json.loads(json.dumps(given or {}))
    fresh: set[tuple[str, ...]] = set()
    waiting = list(reversed(words))
    while waiting:
        word = waiting.pop()
        name, equals, value = word.partition("=")
        if not name.startswith("--") or len(name) < 3:
            raise InvalidInputError(f"{word!r} is no option", hint="options are written --name VALUE")
        flag, negated = _find(flags, name)
        if negated and equals:
            raise InvalidInputError(f"{name} takes no value", hint=f"write {name}, or {flag.option}={value}")
        if flag.is_switch and not equals:
            stated = waiting.pop() if not negated and waiting and waiting[-1] in ("true", "false") else None
            converted: Any = not negated if stated is None else stated == "true"
        else:
            if not equals:
                if not waiting:
                    raise InvalidInputError(f"{name} needs a value", hint=f"{flag.option}: {flag.values}")
                value = waiting.pop()
            converted = converted_value(flag, value)
        _put(arguments, flag, converted, fresh)
    return arguments


def converted_value(flag: Flag, text: str) -> Any:
    """Return the value that `text` stands for where this parameter stands.

    Raises:
        InvalidInputError: it is none of the choices, or of no type the schema allows.
    """
    if flag.item is not None and not text.lstrip().startswith("["):
        return [converted_value(flag.item, text)]
    if flag.choices:
        for choice in flag.choices:
            if text == choice or text == _shown(choice):
                return choice
        raise InvalidInputError(
            f"{flag.option}: {text!r} is none of its choices", hint=f"use {flag.values}", details={"value": text}
        )
    if flag.kinds and flag.kinds <= {"string", "null"}:
        return text
    for kind in _KINDS_WITHOUT_TEXT:
        if not flag.kinds or kind in flag.kinds:
            value, fits = _as_kind(text, kind)
            if fits:
                return value
    if not flag.kinds or "string" in flag.kinds:
        return text
    raise InvalidInputError(f"{flag.option}: {text!r} is no {' or '.join(sorted(flag.kinds))}")


def _as_kind(text: str, kind: str) -> tuple[Any, bool]:
    if kind == "boolean":
        lowered = text.lower()
        return lowered in _TRUE, lowered in (*_TRUE, *_FALSE)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None, False
    match kind:
        case "null":
            return value, value is None
        case "integer":
            return value, isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return value, isinstance(value, int | float) and not isinstance(value, bool)
        case "array":
            return value, isinstance(value, list)
        case _:
            return value, isinstance(value, dict)


def _find(flags: Sequence[Flag], name: str) -> tuple[Flag, bool]:
    """Return the flag of this name, and whether it was negated; exact names go before other spellings."""
    exact = {".".join(flag.path): flag for flag in flags}
    spelled = {_kebab(path): flag for path, flag in reversed(exact.items())}
    asked = name.removeprefix("--")
    for known, key in ((exact, asked), (spelled, _kebab(asked))):
        if key in known:
            return known[key], False
    positive = _kebab(asked).removeprefix("no-")
    if positive in spelled and positive != _kebab(asked) and spelled[positive].is_switch:
        return spelled[positive], True
    options = [flag.option for flag in flags]
    known_options = ", ".join(options) or "none"
    raise InvalidInputError(
        f"the tool has no parameter {name}",
        hint=did_you_mean(nearest(name, options)) or f"its parameters: {known_options}",
    )


def _put(arguments: JsonObject, flag: Flag, value: Any, fresh: set[tuple[str, ...]]) -> None:
    """Put a value at its path; a repeated list option goes on with its list, and replaces one given otherwise."""
    node = arguments
    for part in flag.path[:-1]:
        inner = node.get(part)
        if not isinstance(inner, dict):
            inner = node[part] = {}
        node = inner
    last = flag.path[-1]
    if flag.item is not None and flag.path in fresh and isinstance(value, list):
        node[last] = [*node[last], *value]
    else:
        node[last] = value
    fresh.add(flag.path)


def _flags(schema: JsonObject, root: JsonObject, path: tuple[str, ...], depth: int) -> Iterator[Flag]:
    properties = schema.get("properties")
    required = schema.get("required")
    needed = required if isinstance(required, list) else []
    for name, raw in properties.items() if isinstance(properties, dict) else ():
        resolved = _resolved(raw, root)
        inner = isinstance(resolved.get("properties"), dict) and depth > 0
        yield _flag((*path, str(name)), resolved, root, name in needed)
        if inner:
            yield from _flags(resolved, root, (*path, str(name)), depth - 1)


def _flag(path: tuple[str, ...], schema: JsonObject, root: JsonObject, required: bool) -> Flag:
    kinds = _kinds(schema, root)
    item = None
    if kinds - {"null"} == {"array"}:
        of_items = next((each["items"] for each in _branches(schema, root) if "items" in each), None)
        item = _flag(path, _resolved(of_items, root), root, False) if of_items is not None else None
    choices = schema.get("enum")
    if "const" in schema:
        choices = [schema["const"]]
    description = str(schema.get("description") or "")
    return Flag(path, kinds, tuple(choices) if isinstance(choices, list) else (), required, description, item)


def _kinds(schema: JsonObject, root: JsonObject) -> frozenset[str]:
    """Return the JSON types a schema allows; none where it does not say."""
    kinds: set[str] = set()
    for branch in _branches(schema, root):
        kind = branch.get("type")
        if kind is None and "properties" in branch:
            kind = "object"
        if kind is None and "enum" not in branch and "const" not in branch:
            return frozenset()
        kinds.update(kind if isinstance(kind, list) else [kind] if isinstance(kind, str) else [])
    return frozenset(kinds)


def _branches(schema: JsonObject, root: JsonObject) -> list[JsonObject]:
    """Return the schema itself, or the alternatives it consists of."""
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), list):
            return [_resolved(branch, root) for branch in schema[keyword]]
    return [schema]


def _resolved(schema: object, root: JsonObject) -> JsonObject:
    """Return the schema with its local reference followed; anything that is no schema allows everything."""
    own: Mapping[str, Any] = {}
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, dict):
            break
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return {**schema, **own}
        own = {**{key: value for key, value in schema.items() if key != "$ref"}, **own}
        schema = local_target(reference, root)
    return dict(own)


def _kebab(name: str) -> str:
    return _CAMEL.sub("-", name).replace("_", "-").lower()


def _shown(choice: object) -> str:
    return choice if isinstance(choice, str) else json.dumps(choice)


def given_arguments(text: str | None, pairs: list[str], schema: JsonObject | None = None) -> JsonObject:
    """Arguments from a JSON object and NAME=VALUE pairs; a schema says which type a value has, else JSON does.

    Raises:
        InvalidInputError: one of them is neither, or of a type the schema does not allow.
    """
    given: Any = {}
    if text:
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(
                f"the arguments are not JSON: {shortened(text, MAX_SHOWN)!r} ({error})", hint=_EXAMPLE
            ) from None
    if not isinstance(given, dict):
        raise InvalidInputError(
            f"the arguments are not a JSON object: {shortened(text or '', MAX_SHOWN)!r}", hint=_EXAMPLE
        )
    flags = {flag.path: flag for flag in flags_of(schema or {})}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise InvalidInputError(f"--arg {pair!r} is not NAME=VALUE")
        flag = flags.get((key,))
        given[key] = converted_value(flag, value) if flag is not None else _json_or_text(value)
    return given


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
