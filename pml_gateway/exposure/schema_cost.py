"""What a schema may cost to check with, told from the schema alone: nothing costly is begun on the event loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pml_gateway.catalog.pointers import document_target
from pml_gateway.processes.budget import CHARACTERS_PER_PART
from pml_gateway.types import JsonObject

UNCLEAR = 10**9
"""More than any limit: what nests too deeply, or refers by names that take a search to find."""

_NO_SCHEMAS = frozenset({"enum", "const", "default", "examples", "$defs", "definitions"})
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

_SEARCHED: list[Any] = [{} for _ in range(100)]


@dataclass(frozen=True, slots=True)
class SchemaCost:
    """What one pass over a schema evaluates.

    Args:
        expanded: its parts with every reference followed, each time it stands there; what multiplies shows here.
        is_recursive: whether it refers to itself, so that the arguments decide how often it is gone through.
    """

    expanded: int
    is_recursive: bool

    def most_steps(self, parts: int) -> int:
        """No check of arguments of so many parts takes more; recursive schemas have no such number."""
        return UNCLEAR if self.is_recursive else self.expanded * parts


def cost_of(schema: JsonObject) -> SchemaCost:
    """What a schema may cost, in time linear to its size."""
    counting = _Counting(schema)
    try:
        return SchemaCost(counting.expanded(schema), counting.is_recursive)
    except RecursionError:
        return SchemaCost(UNCLEAR, is_recursive=True)


def parts_of(value: Any, most: int) -> int:
    """How many values a value is made of, a long text counting as several; counting ends past `most`."""
    parts, pending = 0, [value]
    while pending and parts <= most:
        item = pending.pop()
        parts += 1
        kind = type(item)
        if kind is str:
            parts += len(item) // CHARACTERS_PER_PART
        elif kind is dict:
            pending += item
            pending += item.values()
        elif kind is list:
            pending += item
    return parts


@dataclass(slots=True)
class _Counting:
    root: JsonObject
    is_recursive: bool = False
    _known: dict[int, int | None] = field(default_factory=dict)
    """By identity; nothing while it is being counted."""

    def expanded(self, node: JsonObject | list[Any]) -> int:
        if id(node) in self._known:
            known = self._known[id(node)]
            self.is_recursive = self.is_recursive or known is None
            return known or 0
        self._known[id(node)] = None
        count = min(1 + sum(self.expanded(each) for each in self._next(node)), UNCLEAR)
        self._known[id(node)] = count
        return count

    def _next(self, node: JsonObject | list[Any]) -> Iterator[JsonObject | list[Any]]:
        if isinstance(node, list):
            yield from (each for each in node if isinstance(each, dict | list))
            return
        for key, value in node.items():
            if key in _REFERENCES and isinstance(value, str):
                if not value.startswith("#/") and value != "#":
                    # The whole document is searched for it, each time.
                    yield _SEARCHED
                elif isinstance(target := document_target(value, self.root), dict | list):
                    yield target
            elif isinstance(value, dict | list) and key not in _NO_SCHEMAS:
                yield value
