"""Fair shares: whom what a client holds is counted for, and who gives up something where there is no more room.

A client that is alone may hold everything. Where it is full, whoever holds most gives up what it used longest ago, so
that nobody who holds less than an equal part loses anything to others. Clients without a key are told apart by their
address, of which one person may have many: as soon as all of them together hold more than half, one of them gives way.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, MutableMapping
from functools import lru_cache
from typing import Any, Generic, TypeVar

import anyio
from cachetools import TTLCache

OWN = ""
"""Quota key of the gateway's own work."""

_ADDRESS = "address:"
_NETWORK = 64
"""Bits of an IPv6 address that tell peers apart: one machine has all addresses of such a network."""

Key = TypeVar("Key", bound=Hashable)


@lru_cache(4096)
def quota_key_of_address(address: str) -> str:
    """Return the quota key of all without a key at an address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return _ADDRESS + address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return f"{_ADDRESS}{parsed.ipv4_mapped}"
        return f"{_ADDRESS}{ipaddress.ip_network((int(parsed), _NETWORK), strict=False)}"
    return f"{_ADDRESS}{parsed}"


def is_anonymous(quota_key: str) -> bool:
    """Return True if a quota key is that of an address."""
    return quota_key.startswith(_ADDRESS)


class Holdings(Generic[Key]):
    """Holdings of each client, least recently used first."""

    def __init__(self) -> None:
        self._quota_keys: dict[Key, str] = {}
        self._own: dict[str, OrderedDict[Key, int]] = {}
        self._amounts: dict[str, int] = {}
        self._anonymous = 0
        self.total = 0

    def __len__(self) -> int:
        return len(self._quota_keys)

    def __contains__(self, key: Key) -> bool:
        return key in self._quota_keys

    def __iter__(self) -> Iterator[Key]:
        return iter(self._quota_keys)

    def note(self, key: Key, quota_key: str, amount: int = 1) -> None:
        """Count a thing as the one that its client used last; what was counted for it before no longer is."""
        if key in self._quota_keys:
            self.forget(key)
        self._quota_keys[key] = quota_key
        own = self._own.get(quota_key)
        if own is None:
            own = self._own[quota_key] = OrderedDict()
        own[key] = amount
        self._count(quota_key, amount)

    def forget(self, key: Key) -> bool:
        """Count a thing no longer; whether it was counted."""
        quota_key = self._quota_keys.pop(key, None)
        if quota_key is None:
            return False
        own = self._own[quota_key]
        self._count(quota_key, -own.pop(key))
        if not own:
            del self._own[quota_key], self._amounts[quota_key]
        return True

    def used(self, key: Key) -> None:
        """Its client used a thing."""
        quota_key = self._quota_keys.get(key)
        if quota_key is not None:
            self._own[quota_key].move_to_end(key)

    def held_by(self, quota_key: str) -> int:
        """Return how much one client holds."""
        return self._amounts.get(quota_key, 0)

    def of(self, quota_key: str) -> Iterator[Key]:
        """Return what one client holds, least recently used first."""
        return iter(self._own.get(quota_key, ()))

    def newest_of(self, quota_key: str) -> Key | None:
        """Return what one client used last."""
        return next(reversed(self._own.get(quota_key, OrderedDict())), None)

    def largest(self) -> str | None:
        """Return the quota key that gives something up where there is no more room."""
        amounts = self._amounts
        if len(amounts) > 1 and 2 * self._anonymous > self.total:
            amounts = {quota_key: amount for quota_key, amount in amounts.items() if is_anonymous(quota_key)}
        return max(amounts, key=amounts.__getitem__, default=None)

    def first_to_go(self) -> Key | None:
        """Return what to evict when there is no room, or None if nothing is held."""
        largest = self.largest()
        return None if largest is None else next(self.of(largest))

    def _count(self, quota_key: str, amount: int) -> None:
        self.total += amount
        self._amounts[quota_key] = self._amounts.get(quota_key, 0) + amount
        if quota_key.startswith(_ADDRESS):
            self._anonymous += amount


RECENT_SECONDS = 300.0
"""Seconds after its last request that an HTTP client counts as connected."""

MAX_RECENT = 1000


class Visitors:
    """The clients over HTTP that are there: those expected, as they have a key, and those that asked lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.expected: frozenset[str] = frozenset()
        self._seen: TTLCache[str, None] = TTLCache(MAX_RECENT, RECENT_SECONDS, timer=clock)

    def note(self, quota_key: str) -> None:
        """Count the client of a request."""
        self._seen[quota_key] = None

    def __len__(self) -> int:
        return len(self.expected | self._seen.keys() if self.expected else self._seen)


class _Turn:
    """Work that waits for a place."""

    __slots__ = ("decided", "is_refused", "quota_key")

    def __init__(self, quota_key: str) -> None:
        self.quota_key = quota_key
        self.is_refused = False
        self.decided = anyio.Event()


MAX_KEPT = 2
"""Places that are kept for clients which have none: each costs the others one, and one alone is soon taken for long."""


class FairPlaces:
    """Places to work in, and who waits for one: the next is given to the client that has fewest."""

    def __init__(self, count: int, clients: Callable[[], int] = lambda: 0) -> None:
        """All of them are free; the last ones are kept for those of so many `clients` that have none."""
        self._count = count
        self._clients = clients
        self.free = count
        self.waiting: Holdings[_Turn] = Holdings()
        self._running: Counter[str] = Counter()
        self._turns: dict[str, deque[_Turn]] = {}

    def has_one_for(self, quota_key: str) -> bool:
        """Return True if a place is free for this client."""
        if quota_key not in self._running:
            return self.free > 0
        without = max(self._clients() - len(self._running), 0)
        return self.free > min(without, MAX_KEPT, self._count // 2)

    def take(self, quota_key: str) -> None:
        """Take a free place."""
        self.free -= 1
        self._running[quota_key] += 1

    def give_back(self, quota_key: str) -> None:
        """Let the next one have a place."""
        self.free += 1
        self._running[quota_key] -= 1
        if not self._running[quota_key]:
            del self._running[quota_key]
        self.hand_out()

    async def wait(self, quota_key: str, *, had_place: bool = False) -> bool:
        """Wait for a place; False where another client needed the room to wait more.

        What had a place before is the next of its client, and is not refused.
        """
        if self.has_one_for(quota_key):
            self.take(quota_key)
            return True
        turn = _Turn(quota_key)
        turns = self._turns.setdefault(quota_key, deque())
        if had_place:
            turns.appendleft(turn)
        else:
            turns.append(turn)
            self.waiting.note(turn, quota_key)
        try:
            await turn.decided.wait()
        except BaseException:
            if not turn.decided.is_set():
                self._leave(turn)
            elif not turn.is_refused:
                self.give_back(quota_key)
            raise
        return not turn.is_refused

    def make_room(self, quota_key: str) -> bool:
        """Refuse the latest of the client of which most wait, if fewer of this one's do; whether one was."""
        most = self.waiting.largest()
        if most is None or most == quota_key:
            return False
        takes_half_from_anonymous = is_anonymous(most) and not is_anonymous(quota_key)
        if self.waiting.held_by(quota_key) + 1 >= self.waiting.held_by(most) and not takes_half_from_anonymous:
            return False
        turn = self.waiting.newest_of(most)
        assert turn is not None
        turn.is_refused = True
        self._leave(turn)
        turn.decided.set()
        return True

    def hand_out(self) -> None:
        """Let those who wait have the places that they may take."""
        running = self._running
        while able := [quota_key for quota_key in self._turns if self.has_one_for(quota_key)]:
            # Those without a key have half of the places together where others wait.
            is_half = 2 * sum(running[quota_key] for quota_key in running if is_anonymous(quota_key)) >= self._count
            quota_key = min(able, key=lambda one: (is_half and is_anonymous(one), running.get(one, 0)))
            turn = self._turns[quota_key][0]
            self._leave(turn)
            if quota_key in self._turns:
                # Whose turn it was comes last among those who have as many.
                self._turns[quota_key] = self._turns.pop(quota_key)
            self.take(quota_key)
            turn.decided.set()

    def _leave(self, turn: _Turn) -> None:
        turns = self._turns[turn.quota_key]
        turns.remove(turn)
        if not turns:
            del self._turns[turn.quota_key]
        self.waiting.forget(turn)


TURN_SECONDS = 0.05
"""Longest time that the beginning of a request keeps others of its client back: most take a tenth of that."""

ALTERNATING_SECONDS = 1.0
"""Seconds since the requests of two clients last followed each other, during which they take turns."""


class Turn:
    """The beginning of one request, until it waits for something else."""

    __slots__ = ("_lines", "_quota_key", "_timer")

    def __init__(self, lines: dict[str, deque[anyio.Event]], quota_key: str) -> None:
        self._lines: dict[str, deque[anyio.Event]] | None = lines
        self._quota_key = quota_key
        self._timer = asyncio.get_running_loop().call_later(TURN_SECONDS, self.end)

    def end(self) -> None:
        """Let the next request of the client begin."""
        if self._lines is None:
            return
        lines, self._lines = self._lines, None
        self._timer.cancel()
        if line := lines[self._quota_key]:
            line.popleft().set()
        else:
            del lines[self._quota_key]


class Turns:
    """Beginnings of requests: one at a time of each client while several clients ask.

    The event loop serves whatever is ready in the order of its arrival, so that whoever sends more at once would have
    more of it.
    """

    def __init__(self) -> None:
        self._lines: dict[str, deque[anyio.Event]] = {}
        self._latest = ""
        self._alternated = -math.inf

    async def next(self, quota_key: str) -> Turn | None:
        """Wait for the turn of a request; None if its client is alone."""
        now = time.monotonic()
        if quota_key != self._latest:
            self._alternated = now if self._latest else self._alternated
            self._latest = quota_key
        line = self._lines.get(quota_key)
        if line is None:
            if now > self._alternated + ALTERNATING_SECONDS:
                return None
            self._lines[quota_key] = deque()
            return Turn(self._lines, quota_key)
        begins = anyio.Event()
        line.append(begins)
        try:
            await begins.wait()
        except BaseException:
            if begins.is_set():
                Turn(self._lines, quota_key).end()
            else:
                line.remove(begins)
            raise
        return Turn(self._lines, quota_key)


def keep_latest(kept: MutableMapping[Any, Any], key: object, value: object, limit: int) -> None:
    """Keep a derived value, and drop the oldest beyond `limit`; threads may do so side by side, without a lock."""
    while len(kept) >= limit:
        kept.pop(next(iter(tuple(kept)), None), None)
    kept[key] = value
