"""The parameters of a page, and the rows of a list that it shows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pml_gateway.console.recent import RecentFigures
from pml_gateway.console.source import GatewaySource

PAGE_ROWS = 100
"""Rows of a list on one page."""

MAX_PARAMETER = 500
"""Characters of a parameter of a page that are read."""

RowT = TypeVar("RowT")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The parameters in the address of a page."""

    source: GatewaySource
    parameters: Mapping[str, str]
    figures: RecentFigures
    later: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """Work that takes too long for a page, and is done once it was sent."""

    def text(self, name: str) -> str:
        """Return a parameter; an empty text if it is not given."""
        return self.parameters.get(name, "")[:MAX_PARAMETER].strip()

    def page(self, rows: Sequence[RowT], size: int = PAGE_ROWS) -> RowsPage[RowT]:
        """Return the rows of the page that is asked for."""
        given = self.text("page")
        number = int(given) if given.isascii() and given.isdecimal() else 1
        last = max(-(-len(rows) // size), 1)
        number = min(max(number, 1), last)
        return RowsPage(rows[(number - 1) * size : number * size], number, last, len(rows))


@dataclass(frozen=True, slots=True)
class RowsPage(Generic[RowT]):
    """Some rows of a list."""

    rows: Sequence[RowT]
    number: int
    last: int
    total: int
