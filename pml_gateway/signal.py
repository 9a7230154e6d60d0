"""Waiting for what happens: the next time, until something holds, and once for everything that happens meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import anyio


async def first_of(*events: anyio.Event) -> None:
    """Wait until one of the events is set."""
    async with anyio.create_task_group() as tasks:

        async def wait(event: anyio.Event) -> None:
            await event.wait()
            tasks.cancel_scope.cancel()

        for event in events:
            tasks.start_soon(wait, event)


class Signal:
    """Says that something changed, again and again, to everybody who waits at that moment."""

    def __init__(self) -> None:
        self._next: anyio.Event | None = None

    def set(self) -> None:
        """Wake all who wait now; whoever waits later waits for the next time."""
        if self._next is not None:
            self._next.set()
            self._next = None

    async def wait(self) -> None:
        """Wait for the next time."""
        if self._next is None:
            self._next = anyio.Event()
        await self._next.wait()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds, which is looked at now and each time."""
        while not holds():
            await self.wait()


class CoalescedSignal:
    """Work that is asked for often: everything that asks within a time, or while the work runs, becomes one run."""

    def __init__(self, seconds: float = 0.0) -> None:
        """Wait so many seconds after the first that asks, for others that do."""
        self._seconds = seconds
        self._asked = anyio.Event()

    @property
    def is_due(self) -> bool:
        """Return True if a requested run has not begun."""
        return self._asked.is_set()

    def ask(self) -> None:
        """Have the work run once more, soon."""
        self._asked.set()

    async def next(self) -> None:
        """Wait until a run is due, and begin it: what asks from now on asks for another one."""
        await self._asked.wait()
        if self._seconds:
            await anyio.sleep(self._seconds)
        self._asked = anyio.Event()

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work whenever it is asked for, for as long as the owner's task group lives."""
        while True:
            await self.next()
            await work()


class CallsInFlight:
    """Number of calls in flight."""

    def __init__(self) -> None:
        self._calls = 0
        self._drained: anyio.Event | None = None

    def __bool__(self) -> bool:
        return self._calls > 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count one call for the length of this context."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            if self._calls == 0 and self._drained is not None:
                self._drained.set()

    async def drain(self, timeout: float) -> bool:
        """Wait until no call is in flight, at most `timeout` seconds; whether none is."""
        with anyio.move_on_after(timeout):
            while self._calls:
                self._drained = anyio.Event()
                await self._drained.wait()
        return self._calls == 0
