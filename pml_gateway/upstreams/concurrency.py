"""Limits for the calls of one upstream: bounded, counted, fair between clients, and drained at the end."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio

from pml_gateway.errors import UpstreamBusyError, UpstreamTimeoutError
from pml_gateway.quotas import OWN, FairPlaces
from pml_gateway.signal import Signal


class Permit:
    """A slot for one call, which can be lent while the call waits for a person."""

    def __init__(self, places: FairPlaces, quota_key: str) -> None:
        self._places = places
        self._quota_key = quota_key
        self._loans = 0
        self._is_held = True
        self._is_over = False

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[None]:
        """Let other calls use the slot for the length of this context; contexts may overlap."""
        self._loans += 1
        self._release()
        try:
            yield
        finally:
            self._loans -= 1
            if not self._loans and not self._is_over:
                await self._places.wait(self._quota_key, had_place=True)
                if self._loans or self._is_over or self._is_held:
                    self._places.give_back(self._quota_key)
                else:
                    self._is_held = True

    def give_up(self) -> None:
        """Release the slot at the end of the call."""
        self._is_over = True
        self._release()

    def _release(self) -> None:
        if self._is_held:
            self._is_held = False
            self._places.give_back(self._quota_key)


class CallLimit:
    """Limits the calls that run and the calls that wait, and refuses all others at once.

    A client may use all slots and the whole queue if it is the only one. Of several clients, the one with the fewest
    running calls is served next; if the queue is full, the client with most waiting calls loses its latest one. While
    other clients without running calls are connected, the last slots are reserved for them.
    """

    def __init__(
        self, upstream_id: str, max_concurrent: int, max_queue: int, clients: Callable[[], int] = lambda: 0
    ) -> None:
        self._upstream_id = upstream_id
        self._places = FairPlaces(max_concurrent, clients)
        self._max_concurrent = max_concurrent
        self._max_queue = max_queue
        self._changed = Signal()

    @property
    def waiting(self) -> int:
        return len(self._places.waiting)

    @property
    def running(self) -> int:
        return self._max_concurrent - self._places.free

    @property
    def calls(self) -> int:
        """Return the number of calls that run or wait."""
        return self.waiting + self.running

    @property
    def is_unused(self) -> bool:
        return not self.calls

    @asynccontextmanager
    async def taken(
        self, deadline: float, before_waiting: Callable[[], None] = lambda: None, quota_key: str = OWN
    ) -> AsyncIterator[Permit]:
        """Wait for a slot, and hold it for the length of this context.

        The wait ends at `deadline`; `before_waiting` is called if no slot is free, and raises if waiting is useless.

        Raises:
            UpstreamBusyError: the queue is full; nothing was sent.
            UpstreamTimeoutError: no slot was free in time; nothing was sent.
        """
        if self._places.has_one_for(quota_key) and anyio.current_time() < deadline:
            self._places.take(quota_key)
        else:
            before_waiting()
            await self._wait(deadline, quota_key)
        permit = Permit(self._places, quota_key)
        try:
            yield permit
        finally:
            permit.give_up()
            self._changed.set()

    def hand_out(self) -> None:
        """Give the slots that were reserved for a client that left to waiting calls."""
        self._places.hand_out()

    async def until_unused(self, timeout: float) -> None:
        """Wait until no call runs or waits, for at most `timeout` seconds."""
        with anyio.move_on_after(timeout):
            await self._changed.until(lambda: self.is_unused)

    async def _wait(self, deadline: float, quota_key: str) -> None:
        waiting = self.waiting
        if anyio.current_time() >= deadline:
            raise UpstreamTimeoutError(
                f"{self._upstream_id}: the time for the call was over when its server was ready; nothing was sent",
                hint=f"try again, or raise servers.{self._upstream_id}.call_timeout",
                details={"executed": "no"},
            )
        if waiting >= self._max_queue and not self._places.make_room(quota_key):
            raise self._busy(waiting)
        has_place = False
        try:
            with anyio.move_on_at(deadline) as patience:
                has_place = await self._places.wait(quota_key)
        finally:
            self._changed.set()
        if patience.cancelled_caught:
            raise UpstreamTimeoutError(
                f"{self._upstream_id}: the call waited for {self.running} others until its deadline",
                hint=f"try again, or raise servers.{self._upstream_id}.max_concurrent",
                details={"executed": "no"},
            )
        if not has_place:
            raise self._busy(waiting)

    def _busy(self, waiting: int) -> UpstreamBusyError:
        return UpstreamBusyError(
            f"{self._upstream_id}: {self.running} calls run and {waiting} wait already",
            hint=f"try again, or raise servers.{self._upstream_id}.max_concurrent or max_queue",
            details={
                "running": self.running,
                "waiting": waiting,
                "max_queue": self._max_queue,
                "executed": "no",
            },
        )


class Activity:
    """Current use of an upstream's connection."""

    def __init__(self, limit: CallLimit) -> None:
        self.limit = limit
        self.in_flight = 0
        self.sent_calls = 0
        self.last_call_seconds: float | None = None
        self._last_used = time.monotonic()
        self._answered = Signal()

    @property
    def idle_seconds(self) -> float:
        """Return the seconds since a call or a connection last started or ended."""
        return time.monotonic() - self._last_used

    def touch(self) -> None:
        """Restart the count of idle seconds."""
        self._last_used = time.monotonic()

    @contextmanager
    def sent(self) -> Iterator[None]:
        """Count a sent call until it is answered; record its duration if it is."""
        started = time.monotonic()
        self.in_flight += 1
        self.sent_calls += 1
        try:
            yield
            self.last_call_seconds = time.monotonic() - started
        finally:
            self.in_flight -= 1
            self._last_used = time.monotonic()
            self._answered.set()

    async def drain(self, timeout: float) -> None:
        """Wait until no call is in flight, for at most `timeout` seconds."""
        with anyio.move_on_after(timeout):
            await self._answered.until(lambda: self.in_flight == 0)
