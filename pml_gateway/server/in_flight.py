"""Calls become a number that shutting down can wait for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio


class CallsInFlight:
    """How many calls are worked on."""

    def __init__(self) -> None:
        self._calls = 0
        self._drained: anyio.Event | None = None

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
