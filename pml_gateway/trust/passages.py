"""Passages: every text in a definition, with the path where it stands, within limits that no definition can widen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pml_gateway.index.text import split_words, well_formed
from pml_gateway.types import JsonObject

MAX_CHARACTERS = 200_000
"""Of one definition; a hundred times what long descriptions have. What is larger is no description any more."""

MAX_VALUES = 20_000
"""Of one definition: texts, numbers, lists and objects together."""

DATA_KEYS = frozenset({"default", "enum", "const", "examples", "example"})
"""Keys of a schema whose values are data for the tool, where orders to a model have no business."""

NAMING_KEYS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keys of a schema whose members are named by the server: `description` among them is no description."""

_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
"""Words of JSON Schema, which say nothing to a model; a third of all texts."""

MAX_KEYWORD = 24
"""Longer keys are not keywords of JSON Schema but free text."""

MAX_PATH_PART = 80


@dataclass(frozen=True, slots=True)
class Passage:
    """One text; `where` is its path, `is_name` says that it was a key or a name and is given as words."""

    where: str
    text: str
    is_name: bool = False
    is_data: bool = False


def passages_of(definition: JsonObject) -> tuple[list[Passage], bool]:
    """Every text in the order of the definition, and whether all of it was within the limits."""
    found: list[Passage] = []
    room = MAX_CHARACTERS
    for number, passage in enumerate(_walk(definition)):
        if number >= MAX_VALUES or room <= 0:
            return found, False
        if passage is None:
            continue
        if len(passage.text) > room:
            found.append(Passage(passage.where, passage.text[:room], passage.is_name, passage.is_data))
            return found, False
        room -= len(passage.text)
        found.append(passage)
    return found, True


def _walk(definition: JsonObject) -> Iterator[Passage | None]:
    """Depth first with a stack of its own: nesting costs no recursion. None is a value without text."""
    stack: list[tuple[str, str, Any, bool]] = [("", "", definition, False)]
    while stack:
        where, key, value, is_data = stack.pop()
        match value:
            case str() if value in _TYPES:
                yield None
            case str():
                text = well_formed(value)
                is_name = where in ("name", "title") and "\n" not in text and " " not in text
                yield Passage(where, _as_words(text) if is_name else text, is_name, is_data)
            case dict():
                yield None
                members = [(_joined(where, str(name)), str(name), item) for name, item in value.items()]
                named = key in NAMING_KEYS and not is_data
                stack.extend(
                    (path, name, item, is_data or (name in DATA_KEYS and not named))
                    for path, name, item in reversed(members)
                )
                for path, name, _ in members:
                    if named or len(name) > MAX_KEYWORD or " " in name or not name.isascii():
                        yield Passage(path, _as_words(well_formed(name)), True, is_data)
            case list() | tuple():
                yield None
                stack.extend((f"{where}[{at}]", key, value[at], is_data) for at in range(len(value) - 1, -1, -1))
            case _:
                yield None


def _joined(where: str, name: str) -> str:
    name = well_formed(name)[:MAX_PATH_PART]
    return f"{where}.{name}" if where else name


def _as_words(name: str) -> str:
    return split_words(name) if name.isascii() else name
