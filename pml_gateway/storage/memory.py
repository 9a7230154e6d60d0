"""The store of one process: in memory, up to a number of entries and bytes."""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from pml_gateway.quotas import OWN, Holdings
from pml_gateway.types import JsonObject

MAX_ENTRIES = 20_000
MAX_BYTES = 32 * 1024 * 1024
"""Default limits of one collection; past either, whoever holds most gives up what it used longest ago,
expired or not. The etags of all clients together take about 7 MB."""

ENTRY_BYTES = 320
"""Measured size in bytes of an entry without its key and JSON."""


@dataclass(frozen=True, slots=True)
class _Entry:
    text: str
    expires_at: float


class _Collection:
    """The values of one collection, and whom each is counted for."""

    def __init__(self) -> None:
        self.entries: dict[str, _Entry] = {}
        self.held: Holdings[str] = Holdings()

    def forget(self, key: str) -> None:
        """Keep a value no longer."""
        self.entries.pop(key, None)
        self.held.forget(key)


class MemoryStore:
    """A `Store` for the tasks of one event loop. Values are kept as JSON, so that nobody changes them from outside."""

    def __init__(
        self,
        *,
        max_entries: float = MAX_ENTRIES,
        max_bytes: float = MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set the limits of each collection; `math.inf` means none."""
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._clock = clock
        self._collections: dict[str, _Collection] = defaultdict(_Collection)

    async def get(self, key: str, *, collection: str) -> JsonObject | None:
        """Return the value of a key that has not expired."""
        entry = self._live(key, collection)
        value: JsonObject | None = None if entry is None else json.loads(entry.text)
        return value

    async def put(
        self, key: str, value: JsonObject, *, collection: str, ttl: float | None = None, quota_key: str = OWN
    ) -> None:
        """Keep a value for `ttl` seconds; one larger than the collection may be is not kept."""
        known, text = self._collections[collection], json.dumps(value)
        size = len(key) + len(text) + ENTRY_BYTES
        if size > self._max_bytes:
            known.forget(key)
            return
        known.entries[key] = _Entry(text, math.inf if ttl is None else self._clock() + ttl)
        held = known.held
        held.note(key, quota_key, size)
        while (len(held) > self._max_entries or held.total > self._max_bytes) and (gone := held.first_to_go()):
            known.forget(gone)

    async def delete(self, key: str, *, collection: str) -> bool:
        """Forget a key; whether it was there."""
        was_there = self._live(key, collection) is not None
        self._collections[collection].forget(key)
        return was_there

    def _live(self, key: str, collection: str) -> _Entry | None:
        known = self._collections[collection]
        entry = known.entries.get(key)
        known.held.used(key)
        return None if entry is None or entry.expires_at <= self._clock() else entry
