"""Evidence: the interface of all kinds of evidence for tools, and the query that they judge."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """A query as t texts, the whole and then its steps if there are several, with limits on what it may find."""

    asked: str
    """The query as it was sent."""
    texts: tuple[str, ...]
    """The whole, with slips in words of names corrected, and its steps."""
    worded: tuple[str, ...]
    """The same texts with tools' words for verbs, files and idioms added."""
    tokens: tuple[tuple[str, ...], ...]
    """The stems of the worded texts; none if words do not count."""
    wanted: tuple[int, ...]
    """Number of candidates wanted for each text."""
    allowed: Mask | None
    """Mask (n,) over positions; None allows all tools."""
    tools: int
    """Number of allowed tools."""
    known: Callable[[str], bool]
    """Return True if an allowed tool has a word."""
    _computed: dict[Hashable, Any] = field(default_factory=dict)

    def once(self, key: Hashable, compute: Callable[[], _Value]) -> _Value:
        """Return the value of `compute`, which is called once for each key."""
        if key not in self._computed:
            self._computed[key] = compute()
        value: _Value = self._computed[key]
        return value


class Evidence(Protocol):
    """A kind of evidence for the tools of one index."""

    def candidates(self, query: Query) -> Sequence[Positions]:
        """Return positions of the tools that this evidence supports most; the default is none."""
        return ()

    def at(self, query: Query, positions: Positions) -> Floats:
        """Return the raw strength (t, k) of the tools at `positions` (k,) for each text, in units of the kind.

        It depends on allowed tools only. A kind that judges the query as a whole returns (1, k).
        """
        ...
