"""Requests on a session that several clients share, until it is seen that they do not ask.

A question on such a session does not say which call it belongs to. So a request that was never answered there without
a question runs beside no other party's of this kind; whatever asks is then known by being the only one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from pml_gateway.mcp.elicitation import Party
from pml_gateway.signal import Signal
from pml_gateway.upstreams.dialogue.habits import Asked, Habit

TURN_SECONDS = 2.0
"""How long a request waits for those of others before it takes a session of its own: most are over by then."""


class Trials:
    """What was answered on the shared session without a question, and whose other requests run there."""

    def __init__(self, habit: Habit) -> None:
        self._habit = habit
        self._running: Counter[Party] = Counter()
        self._changed = Signal()

    @property
    def proven(self) -> set[Asked]:
        """What was answered without a question."""
        return self._habit.calm

    def begin_anew(self) -> None:
        """The server asked: nothing is known."""
        self._habit.forget_calm()
        self._changed.set()

    def passed(self, tried: Asked, proven: set[Asked]) -> None:
        """A request was answered without a question; `proven` is what was known when it began."""
        self._habit.answered_calmly(tried, proven)
        self._changed.set()

    @asynccontextmanager
    async def turn(
        self, tried: Asked, party: Party, *, deadline: float, moves: Callable[[], bool]
    ) -> AsyncIterator[bool]:
        """Whether a request may run on the shared session for the length of this context.

        Args:
            tried: the request.
            party: whom a question of it would be for.
            deadline: of the request (`anyio.current_time`), half of which is left for its answer.
            moves: whether its client is to have a session of its own by now.
        """
        now = anyio.current_time()
        with anyio.move_on_at(min(now + TURN_SECONDS, (now + deadline) / 2)):
            await self._changed.until(lambda: moves() or tried in self.proven or not self._others(party))
        if moves() or (tried not in self.proven and self._others(party)):
            yield False
            return
        self._running[party] += 1
        try:
            yield True
        finally:
            self._running[party] -= 1
            if not self._running[party]:
                del self._running[party]
            self._changed.set()

    def _others(self, party: Party) -> bool:
        return len(self._running) > (party in self._running)
