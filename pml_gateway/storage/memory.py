"""Interface of a store, values by collection and key; and the store of one process, in memory.

Only JSON goes into a store, so that one in Redis can take the place of the one in memory. Stored results and the etags
given to clients are kept this way. In Redis also lie runs that wait for their users and records of tasks
(`redis_owned.py`). These stay in the process that made them, because they are not data:

- Calls that wait for their users in the middle (`pending.py`), with the open request to their upstream, and the runs
  that they belong to.
- The work of tasks: others read of it, and have it cancelled or answered (`gateway/shared_tasks.py`).
- Events of resumable HTTP sessions (`serve/http/resumption.py`): the session they belong to lives in this process, and
  another could not go on with it. An ordinary call would also have to write its answer as JSON once more.
- Counts of what runs or arrives at this moment (`upstreams/concurrency.py`, `mcp/session.py`), and of what each client
  holds (`quotas.py`): they guard what this process has.
"""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pml_gateway.quotas import OWN, Holdings
from pml_gateway.types import JsonObject

MAX_ENTRIES = 20_000
MAX_BYTES = 32 * 1024 * 1024
"""Default limits of one collection; past either, whoever holds most gives up what it used longest ago,
expired or not. The etags of all clients together take about 7 MB."""

ENTRY_BYTES = 320
"""Measured size in bytes of an entry without its key and JSON."""


class KeyValues(Protocol):
    """Values by key. Collections keep apart what has nothing to do with each other; keys of an object have no order."""

    async def get(self, key: str, *, collection: str) -> JsonObject | None:
        """Return the value of a key that has not expired."""

    async def put(self, key: str, value: JsonObject, *, collection: str, ttl: float | None = None) -> None:
        """Keep a value for `ttl` seconds; without, until it makes room for others."""

    async def delete(self, key: str, *, collection: str) -> bool:
        """Forget a key; whether it was there."""


class Store(KeyValues, Protocol):
    """Values that make room for each other, each counted for a client."""

    async def put(
        self, key: str, value: JsonObject, *, collection: str, ttl: float | None = None, quota_key: str = ""
    ) -> None:
        """As `KeyValues.put`; `quota_key` is whom it is counted for where values make room for others."""


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
