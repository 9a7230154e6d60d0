"""History of a session: what it searched for and used in the last minutes, which its lists follow."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

MAX_SECONDS = 600.0
"""Age from which on an entry no longer counts: a conversation about something else begins with other searches."""

MAX_ENTRIES = 8
"""Searches and tools each that are kept, the latest ones; more would fill a list with what is long done."""

MAX_CHARACTERS = 300
"""Characters of a search that are kept; the model reads 256 tokens."""

_Entry = TypeVar("_Entry")

Source = tuple[str, str]
"""A server id and the tool's original name, which stay the same when the tool is renamed."""


@dataclass(frozen=True, slots=True)
class Followed:
    """Searches and used tools that a list follows, the latest first."""

    searches: tuple[str, ...] = ()
    used: tuple[Source, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.searches or self.used)


NOTHING_FOLLOWED = Followed()


@dataclass(frozen=True, slots=True)
class ListBasis:
    """The intent and the history that a list is selected by."""

    intent: str | None = None
    followed: Followed = NOTHING_FOLLOWED


def _nobody() -> None:
    return


@dataclass(slots=True)
class SessionHistory:
    """Searches and used tools of one handshake session, the oldest first, with the time of each.

    It lives as long as the session. `given` is the basis of the list that the client was given last, by which it
    calls. `on_change` is called after each entry.
    """

    searches: dict[str, float] = field(default_factory=dict)
    used: dict[Source, float] = field(default_factory=dict)
    given: ListBasis | None = None
    on_change: Callable[[], None] = _nobody

    def note_search(self, query: str, now: float) -> None:
        """Add a search for words."""
        if words := " ".join(query[:MAX_CHARACTERS].split()):
            _add(self.searches, words, now)
            self.on_change()

    def note_use(self, source: Source, now: float) -> None:
        """Add the successful call of a tool."""
        _add(self.used, source, now)
        self.on_change()

    def followed(self, now: float) -> Followed:
        """Return what counts at a time."""
        return Followed(_recent(self.searches, now), _recent(self.used, now))

    def next_expiry(self, now: float) -> float:
        """Return the time at which the next entry no longer counts; infinity if there is none."""
        ends = (at + MAX_SECONDS for at in (*self.searches.values(), *self.used.values()))
        return min((end for end in ends if end > now), default=math.inf)


def _add(entries: dict[_Entry, float], entry: _Entry, now: float) -> None:
    entries.pop(entry, None)
    entries[entry] = now
    while len(entries) > MAX_ENTRIES:
        del entries[next(iter(entries))]


def _recent(entries: dict[_Entry, float], now: float) -> tuple[_Entry, ...]:
    return tuple(entry for entry, at in reversed(entries.items()) if abs(now - at) < MAX_SECONDS)
