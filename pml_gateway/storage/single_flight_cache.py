"""A cache that computes each value once for all concurrent callers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Made = TypeVar("Made")
Keyed = TypeVar("Keyed")


class ById(Generic[Keyed]):
    """Cache key that compares an object by identity, if comparing its content would take long; it holds the object."""

    __slots__ = ("value",)

    def __init__(self, value: Keyed) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ById) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class _Entry(Generic[Made]):
    def __init__(self, key: Sequence[object]) -> None:
        self.key = key
        self.making = threading.Lock()
        self.made: list[Made] = []


class SingleFlightCache(Generic[Made]):
    """Keeps the latest of what was made. Used from threads, of which those that want the same wait for the first."""

    def __init__(self, kept: int) -> None:
        """Keep so many; none, where there is nobody to share them with."""
        self._kept = kept
        self._looking = threading.Lock()
        self._entries: list[_Entry[Made]] = []

    def get(self, key: Sequence[object], make: Callable[[], Made]) -> Made:
        """Return the value of an equal key, or compute it; after a failure the next caller tries again.

        Args:
            key: all that it depends on.
            make: makes what nobody changes.
        """
        if not self._kept:
            return make()
        with self._looking:
            entry = next((each for each in self._entries if each.key == key), None)
            if entry is None:
                entry = _Entry(key)
            else:
                self._entries.remove(entry)
            self._entries.append(entry)
            del self._entries[: -self._kept]
        with entry.making:
            if not entry.made:
                entry.made.append(make())
            return entry.made[0]
