"""Cost estimates for checking with a schema, from the schema alone: nothing expensive is begun on the event loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pml_gateway.catalog.pointers import document_target
from pml_gateway.processes.budget import CHARACTERS_PER_PART
from pml_gateway.types import JsonObject

UNCLEAR = 10**9
"""More than any limit: the cost of a schema that nests too deeply, or has references that need a search."""

_NO_SCHEMAS = frozenset({"enum", "const", "default", "examples", "$defs", "definitions"})
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

_SEARCHED: list[Any] = [{} for _ in range(100)]


@dataclass(frozen=True, slots=True)
class SchemaCost:
    """Size of one evaluation of a schema.

    Args:
        expanded: number of its parts, counting each reference with its whole target; shows exponential growth.
        is_recursive: True if it refers to itself, so that the depth of the arguments decides.
    """

    expanded: int
    is_recursive: bool

    def most_steps(self, parts: int) -> int:
        """Return the maximum steps of a check of arguments with so many parts; unlimited if the schema is recursive."""
        return UNCLEAR if self.is_recursive else self.expanded * parts


def cost_of(schema: JsonObject) -> SchemaCost:
    """Compute the cost of a schema, in time linear in its size."""
    counting = _Counting(schema)
    try:
        return SchemaCost(counting.expanded(schema), counting.is_recursive)
    except RecursionError:
        return SchemaCost(UNCLEAR, is_recursive=True)


def parts_of(value: Any, most: int) -> int:
    """Count the values in a value, a long text as several; stop after `most`."""
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
    """Results by object id; None while one is being counted."""

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
                    # Each evaluation searches the whole document for it.
                    yield _SEARCHED
                elif isinstance(target := document_target(value, self.root), dict | list):
                    yield target
            elif isinstance(value, dict | list) and key not in _NO_SCHEMAS:
                yield value
