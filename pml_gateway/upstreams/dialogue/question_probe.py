"""Requests on a session that several clients share, until it is seen that they do not ask.

A question on such a session does not say which call it belongs to. So a request that was never answered without a
question runs there beside no other party's of this kind. One that may not be sent again, and so must not ask where
nobody can be asked, is tried in a session of its client's own once others have used the shared one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TypeVar

import anyio

from pml_gateway.mcp.elicitation import Party
from pml_gateway.signal import Signal
from pml_gateway.upstreams.dialogue.habits import Asked, Habit

TURN_SECONDS = 2.0
"""How long a request waits for those of others before it takes a session of its own: most are over by then."""

_Counted = TypeVar("_Counted", bound=Hashable)


class QuestionProbe:
    """What was answered without a question, and whose other requests run on the shared session."""

    def __init__(self, habit: Habit) -> None:
        self._habit = habit
        self._running: Counter[Party] = Counter()
        self._tried: Counter[Asked] = Counter()
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
        self, tried: Asked, party: Party, *, deadline: float, moves: Callable[[], bool], apart: Callable[[], bool]
    ) -> AsyncIterator[bool]:
        """Whether a request may run on the shared session for the length of this context, in which it is tried.

        Args:
            tried: the request.
            party: whom a question of it would be for.
            deadline: of the request (`anyio.current_time`), half of which is left for its answer.
            moves: whether its client is to have a session of its own by now.
            apart: whether it is to be tried in a session of its client's own.
        """

        def is_due() -> bool:
            # One trial is enough for all who ask for the same.
            return moves() or tried in self.proven or not (self._tried[tried] if apart() else self._others(party))

        await self._until(is_due, deadline)
        if moves():
            yield False
            return
        is_shared = tried in self.proven or not (apart() or self._others(party))
        with (
            self._counted(self._tried, tried),
            self._counted(self._running, party) if is_shared else nullcontext(),
        ):
            yield is_shared

    async def until_quiet(self, party: Party, *, deadline: float, moves: Callable[[], bool]) -> None:
        """Wait until nothing of others is tried on the shared session: once another joins, nobody is asked there."""
        await self._until(lambda: moves() or not self._others(party), deadline)

    async def _until(self, holds: Callable[[], bool], deadline: float) -> None:
        now = anyio.current_time()
        with anyio.move_on_at(min(now + TURN_SECONDS, (now + deadline) / 2)):
            await self._changed.until(holds)

    def _others(self, party: Party) -> bool:
        return len(self._running) > (party in self._running)

    @contextmanager
    def _counted(self, counts: Counter[_Counted], what: _Counted) -> Iterator[None]:
        counts[what] += 1
        try:
            yield
        finally:
            counts[what] -= 1
            if not counts[what]:
                del counts[what]
            self._changed.set()
