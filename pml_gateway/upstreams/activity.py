"""The calls of one upstream that wait or run: counted, bounded, and waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from pml_gateway.upstreams.slots import CallSlots


class Activity:
    """What an upstream's connection is used for right now."""

    def __init__(self, slots: CallSlots) -> None:
        self.slots = slots
        self.in_flight = 0
        self.last_call_seconds: float | None = None
        self._last_used = time.monotonic()
        self._drained: anyio.Event | None = None

    @property
    def is_unused(self) -> bool:
        """Whether no call runs or waits."""
        return self.slots.is_unused

    @property
    def idle_seconds(self) -> float:
        """Seconds since a call or a connection began or ended."""
        return time.monotonic() - self._last_used

    def touch(self) -> None:
        """Begin to count idle seconds anew."""
        self._last_used = time.monotonic()

    @contextmanager
    def sent(self) -> Iterator[None]:
        """Count one call that was sent and is not yet answered; its time is kept if it is answered."""
        started = time.monotonic()
        self.in_flight += 1
        try:
            yield
            self.last_call_seconds = time.monotonic() - started
        finally:
            self.in_flight -= 1
            self.touch()
            if self.in_flight == 0 and self._drained is not None:
                self._drained.set()

    async def drain(self, timeout: float) -> None:
        """Wait until no call is in flight, at most `timeout` seconds."""
        with anyio.move_on_after(timeout):
            while self.in_flight:
                self._drained = anyio.Event()
                await self._drained.wait()
