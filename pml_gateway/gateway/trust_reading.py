"""Reading by the lint of what came without it: a new server, or all of them after an upgrade."""

from __future__ import annotations

from functools import partial

import anyio.to_thread

from pml_gateway.gateway.indexing import Indexer
from pml_gateway.gateway.state import CurrentState
from pml_gateway.signal import CoalescedSignal
from pml_gateway.telemetry.events import Events
from pml_gateway.trust.trust_gate import TrustGate

READ_AT_ONCE = 32
"""Definitions that the lint reads between two turns of changes."""

READING_WAITS = 60.0
"""Seconds that reading what came unread waits for the index: nobody waits for it, and searches want the processor."""


class TrustReading:
    """The reader of one gateway's unread definitions, which publishes what becomes of all of them."""

    def __init__(self, trust_gate: TrustGate, events: Events, current: CurrentState, indexer: Indexer) -> None:
        self._trust_gate = trust_gate
        self._events = events
        self._current = current
        self._indexer = indexer
        self._unread = CoalescedSignal()

    def tell(self) -> None:
        """Publish what became of definitions, and have read what was not."""
        for event in self._trust_gate.take_news():
            self._events.publish(event)
        if self._trust_gate.has_unread:
            self._unread.ask()

    async def judge_unread(self) -> None:
        """Have the lint read what was taken over without it."""
        unread = await anyio.to_thread.run_sync(self._trust_gate.unlinted)
        # In slices, because a thread cannot be cancelled, and changes wait for this one.
        for part in unread.slices(READ_AT_ONCE):
            async with self._current.turn:
                await self._current.build(partial(self._trust_gate.lint, part))
        if unread.places:
            async with self._current.turn:
                await self._current.build(partial(self._trust_gate.note, unread))
            for event in self._trust_gate.take_news():
                self._events.publish(event)

    async def run(self) -> None:
        """Read once the index stands, for as long as the owner's task group lives."""
        while True:
            await self._unread.next()
            await self._indexer.wait(READING_WAITS)
            await self.judge_unread()
