"""Interface of a store of JSON values by collection and key, and the store in the memory of one process.

Only JSON goes into a store, so that a store in Redis can take the place of the one in memory. Stored results are kept
this way. Redis also has workflows that wait for an answer and records of tasks (`redis_owned.py`). The following are
not data, and stay in the process that made them:

- Calls in which a server waits for an answer (`pending.py`), with their open requests, and the workflows they are
  part of.
- Running tasks. Other replicas read their records, and have them cancelled or answered (`gateway/shared_tasks.py`).
- Events of resumable HTTP sessions (`serve/http/resumption.py`): their session is in this process, and another one
  could not continue it. An ordinary call would also have to write its answer as JSON once more.
- Counts of what runs or arrives at this moment (`upstreams/concurrency.py`, `mcp/session.py`), and of what each
  client holds (`quotas.py`): they protect this process.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pml_gateway.types import JsonObject


class KeyValues(Protocol):
    """Values by key. Collections keep apart what has nothing to do with each other; keys of an object have no order."""

    async def get(self, key: str, *, collection: str) -> JsonObject | None:
        """Return the value of a key that has not expired."""

    async def get_many(self, keys: Sequence[str], *, collection: str) -> list[JsonObject | None]:
        """Return the values of several keys, in their order."""

    async def put(self, key: str, value: JsonObject, *, collection: str, ttl: float | None = None) -> None:
        """Keep a value for `ttl` seconds; by default, for as long as the store does."""

    async def put_many(
        self, keys: Sequence[str], values: Sequence[JsonObject], *, collection: str, ttl: float | None = None
    ) -> None:
        """Keep several values."""

    async def delete(self, key: str, *, collection: str) -> bool:
        """Delete a key; return True if it was there."""


@dataclass(frozen=True, slots=True)
class _Entry:
    text: str
    expires_at: float


class MemoryStore(KeyValues):
    """Values for the tasks of one event loop; who puts them there limits how many there are.

    They are kept as JSON, so that nobody changes them from outside.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: dict[tuple[str, str], _Entry] = {}

    async def get(self, key: str, *, collection: str) -> JsonObject | None:
        entry = self._entries.get((collection, key))
        if entry is None or entry.expires_at <= self._clock():
            return None
        value: JsonObject = json.loads(entry.text)
        return value

    async def get_many(self, keys: Sequence[str], *, collection: str) -> list[JsonObject | None]:
        return [await self.get(key, collection=collection) for key in keys]

    async def put(self, key: str, value: JsonObject, *, collection: str, ttl: float | None = None) -> None:
        expires_at = math.inf if ttl is None else self._clock() + ttl
        self._entries[collection, key] = _Entry(json.dumps(value), expires_at)

    async def put_many(
        self, keys: Sequence[str], values: Sequence[JsonObject], *, collection: str, ttl: float | None = None
    ) -> None:
        for key, value in zip(keys, values, strict=True):
            await self.put(key, value, collection=collection, ttl=ttl)

    async def delete(self, key: str, *, collection: str) -> bool:
        entry = self._entries.pop((collection, key), None)
        return entry is not None and entry.expires_at > self._clock()
