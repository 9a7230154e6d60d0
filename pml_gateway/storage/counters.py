"""Counts in moving windows of time, by which calls are limited.

The methods are coroutines, so that counts which several gateways share can take the place of those in memory.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pml_gateway.quotas import Holdings

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


class MemoryCounters:
    """`Counters` for the tasks of one event loop, among which each method is atomic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, max_windows: int = MAX_WINDOWS) -> None:
        self._clock = clock
        self._max_windows = max_windows
        self._windows: dict[tuple[str, ...], _Window] = {}
        self._held: Holdings[tuple[str, ...]] = Holdings()

    def __len__(self) -> int:
        return len(self._windows)

    async def take(self, allowances: Sequence[Allowance]) -> UsedUp | None:
        """Count one use of each, or of none: then return the one that has room last."""
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
        """Count an amount, whether or not there is room for it."""
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
