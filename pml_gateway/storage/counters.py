"""Counts in moving windows of time, by which calls are limited: of one process in memory, of all replicas in Redis."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from pml_gateway.errors import SharedStateError
from pml_gateway.quotas import Holdings
from pml_gateway.storage.redis import RedisServer, value_name

SLOTS = 120
"""Parts of a window that are counted as one, so that a window takes the same room whatever it counts. What was counted
leaves it late by such a part at most: half a second of a minute, twelve minutes of a day."""

MAX_WINDOWS = 20_000
"""Maximum number of windows; of more, whoever has most loses the one it used longest ago. A full one takes 10 KB."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """The amount that may be counted under a key in any period of so many seconds.

    `amount` is what one use counts; 0 if that is known only afterwards. `quota_key` is whom the window is held for.
    """

    key: tuple[str, ...]
    most: int
    seconds: float
    quota_key: str
    amount: int = 1


@dataclass(frozen=True, slots=True)
class UsedUp:
    """An allowance without room, and the seconds until it has some."""

    allowance: Allowance
    retry_after: float


class Counters(Protocol):
    """Counts by key."""

    async def take(self, allowances: Sequence[Allowance]) -> UsedUp | None:
        """Count one use of each, or of none: then return the one that has room last."""

    async def add(self, allowance: Allowance, amount: int) -> None:
        """Count an amount, whether or not there is room for it."""


class _Window:
    """Counted amounts, oldest first, each with the time when it leaves the window."""

    __slots__ = ("parts", "total")

    def __init__(self) -> None:
        self.parts: deque[tuple[float, int]] = deque()
        self.total = 0

    def leave(self, now: float) -> None:
        """Drop what is no longer in the window."""
        parts = self.parts
        while parts and parts[0][0] <= now:
            self.total -= parts.popleft()[1]

    def add(self, now: float, seconds: float, amount: int) -> None:
        """Count an amount."""
        length = seconds / SLOTS
        until = (math.floor(now / length) + 1) * length + seconds
        if self.parts and self.parts[-1][0] >= until:
            until, before = self.parts.pop()
            amount, self.total = before + amount, self.total - before
        self.parts.append((until, amount))
        self.total += amount

    def seconds_until(self, now: float, room: int) -> float:
        """Return when the total is at most `room`."""
        total, wait = self.total, 0.0
        for until, amount in self.parts:
            if total <= room:
                break
            total, wait = total - amount, until - now
        return wait


class MemoryCounters(Counters):
    """`Counters` for the tasks of one event loop, among which each method is atomic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, max_windows: int = MAX_WINDOWS) -> None:
        self._clock = clock
        self._max_windows = max_windows
        self._windows: dict[tuple[str, ...], _Window] = {}
        self._held: Holdings[tuple[str, ...]] = Holdings()

    def __len__(self) -> int:
        return len(self._windows)

    async def take(self, allowances: Sequence[Allowance]) -> UsedUp | None:
        now, used_up = self._clock(), None
        for allowance in allowances:
            window = self._windows.get(allowance.key)
            if window is None:
                continue
            window.leave(now)
            room = allowance.most - max(allowance.amount, 1)
            if window.total > room:
                wait = window.seconds_until(now, room)
                if used_up is None or wait > used_up.retry_after:
                    used_up = UsedUp(allowance, wait)
        if used_up is None:
            for allowance in allowances:
                if allowance.amount:
                    self._add(allowance, allowance.amount, now)
        return used_up

    async def add(self, allowance: Allowance, amount: int) -> None:
        self._add(allowance, amount, self._clock())

    def _add(self, allowance: Allowance, amount: int, now: float) -> None:
        key, held = allowance.key, self._held
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window()
            held.note(key, allowance.quota_key)
        else:
            held.used(key)
        window.add(now, allowance.seconds, amount)
        while len(held) > self._max_windows and (gone := held.first_to_go()) is not None:
            held.forget(gone)
            del self._windows[gone]


_TAKE = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local full, longest = 0, -1
for i, key in ipairs(KEYS) do
  local room = tonumber(ARGV[3 * i - 2]) - math.max(tonumber(ARGV[3 * i]), 1)
  local parts, total, kept = redis.call('HGETALL', key), 0, {}
  for j = 1, #parts, 2 do
    if tonumber(parts[j]) <= now then
      redis.call('HDEL', key, parts[j])
    else
      total = total + parts[j + 1]
      kept[#kept + 1] = {tonumber(parts[j]), tonumber(parts[j + 1])}
    end
  end
  if total > room then
    table.sort(kept, function(one, other) return one[1] < other[1] end)
    local wait = 0
    for _, part in ipairs(kept) do
      if total <= room then break end
      total, wait = total - part[2], part[1] - now
    end
    if wait > longest then full, longest = i, wait end
  end
end
if full == 0 then
  for i, key in ipairs(KEYS) do
    local window, amount = tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
    if amount > 0 then
      local length = math.max(math.floor(window / SLOTS), 1)
      redis.call('HINCRBY', key, string.format('%.0f', (math.floor(now / length) + 1) * length + window), amount)
      redis.call('PEXPIRE', key, window + length)
    end
  end
end
return {full, longest}
""".replace("SLOTS", str(SLOTS))
"""For each key: the maximum, the milliseconds of its window, and the amount to count. A window is a hash: when a part
leaves it, and the amount of the part. Returns which key has no room, and the milliseconds until it has some."""


class RedisCounters(Counters):
    """`Counters` of all replicas together; without Redis, each counts for itself, or no call is counted."""

    def __init__(self, server: RedisServer, is_open: Callable[[], bool]) -> None:
        """Count in a server; `is_open` says whether calls go on while it does not answer."""
        self._is_open = is_open
        self._take = server.script(_TAKE)
        self._alone = MemoryCounters()

    async def take(self, allowances: Sequence[Allowance]) -> UsedUp | None:
        """Count one use of each, or of none: then return the one that has room last.

        Raises:
            SharedStateError: Redis does not answer, and `limits.on_outage` is closed.
        """
        if not allowances:
            return None
        keys = [_counter_name(each.key, each.seconds) for each in allowances]
        numbers = [number for each in allowances for number in (each.most, int(each.seconds * 1000), each.amount)]
        try:
            full, wait = await self._count(keys, numbers)
        except SharedStateError:
            if not self._is_open():
                raise SharedStateError(
                    "calls cannot be counted: the Redis server of storage.url does not answer",
                    hint="try again later; with limits.on_outage: open, each gateway counts for itself meanwhile",
                ) from None
            return await self._alone.take(allowances)
        return UsedUp(allowances[full - 1], wait / 1000) if full else None

    async def add(self, allowance: Allowance, amount: int) -> None:
        if amount <= 0:
            return
        try:
            await self._count(
                [_counter_name(allowance.key, allowance.seconds)], [2**52, int(allowance.seconds * 1000), amount]
            )
        except SharedStateError:
            await self._alone.add(allowance, amount)

    async def _count(self, keys: Sequence[str], numbers: Sequence[int]) -> tuple[int, int]:
        full, wait = await self._take(keys, numbers)
        return int(full), int(wait)


@lru_cache(maxsize=1024)
def _counter_name(key: tuple[str, ...], seconds: float) -> str:
    """Return the name of a window; a digest, so that it names no client and no arguments."""
    text = json.dumps([*key, seconds])
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return value_name("limits", digest)
