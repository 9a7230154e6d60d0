"""Scheduling of requests on a shared session until they are known not to ask the client anything.

A question on a shared session does not name its call. So a request that was never answered without a question does
not run there at the same time as such requests of other clients. A request that must not be sent again, and so must
not ask on a session where no client can be asked, is first tried in its client's own session if others have used the
shared one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

import anyio

from pml_gateway.mcp.elicitation import Party
from pml_gateway.signal import Signal

TURN_SECONDS = 2.0
"""Seconds that a request waits for those of others before it uses its own session: most are over by then."""

_Counted = TypeVar("_Counted", bound=Hashable)


MAX_CALM = 10_000
"""Maximum number of known requests of one server; past it, all are probed again."""

UNSPOKEN_SECONDS = 24 * 3600.0
"""Seconds that a version of a server is trusted not to speak an era."""

Asked = tuple[str, str]
"""A method, and the name or URI in its params."""


@dataclass(slots=True)
class ServerObservations:
    """Observations of one version of one server."""

    version: str = ""
    calm: set[Asked] = field(default_factory=set)
    """Requests that were answered without a question."""
    unspoken: dict[str, float] = field(default_factory=dict)
    """Eras that the server does not speak, each with the Unix time of the observation."""

    def meet(self, version: str) -> None:
        """Note the server's version, and forget the observations of any other version."""
        if self.version != version:
            self.version = version
            self.unspoken = {}
            self.forget_calm()

    def forget_calm(self) -> None:
        """Forget the known requests, as one of them asked. Requests in progress add nothing to the new set."""
        self.calm = set()

    def answered_calmly(self, asked: Asked, known: set[Asked]) -> None:
        """Note that a request was answered without a question; `known` is `calm` at its start."""
        if asked in known:
            return
        if len(known) >= MAX_CALM:
            known.clear()
        known.add(asked)

    def speaks_not(self, era: str) -> bool:
        """Return True if the server is known not to speak an era."""
        return time.time() - self.unspoken.get(era, -UNSPOKEN_SECONDS) < UNSPOKEN_SECONDS

    def note_unspoken(self, era: str) -> None:
        """Note that the server does not speak this era."""
        self.unspoken[era] = time.time()


@contextmanager
def counted(counts: Counter[_Counted], what: _Counted) -> Iterator[None]:
    """Count something once more for the length of this context."""
    counts[what] += 1
    try:
        yield
    finally:
        counts[what] -= 1
        if not counts[what]:
            del counts[what]


class QuestionProbe:
    """Tracks requests that are known not to ask, and lets the others take turns on the shared session."""

    def __init__(self, habit: ServerObservations) -> None:
        self._habit = habit
        self._running: Counter[Party] = Counter()
        self._tried: Counter[Asked] = Counter()
        self._changed = Signal()

    @property
    def proven(self) -> set[Asked]:
        """Return the requests that were answered without a question."""
        return self._habit.calm

    def begin_anew(self) -> None:
        """Forget all known requests, as the server asked during one of them."""
        self._habit.forget_calm()
        self._changed.set()

    def passed(self, tried: Asked, proven: set[Asked]) -> None:
        """Note that a request was answered without a question; `proven` is the known set at its start."""
        self._habit.answered_calmly(tried, proven)
        self._changed.set()

    @asynccontextmanager
    async def turn(
        self, tried: Asked, party: Party, *, deadline: float, moves: Callable[[], bool], apart: Callable[[], bool]
    ) -> AsyncIterator[bool]:
        """Yield True if a request may run on the shared session for the length of this context, in which it is tried.

        A question in it would be for `party`; half of the time until `deadline` is left for the answer. `moves` returns
        True if the client should have its own session by now, `apart` if the request should be tried in it.
        """

        def is_due() -> bool:
            # One trial is enough for all callers of the same request.
            return moves() or tried in self.proven or not (self._tried[tried] if apart() else self._others(party))

        await self._until(is_due, deadline)
        if moves():
            yield False
            return
        is_shared = tried in self.proven or not (apart() or self._others(party))
        try:
            with counted(self._tried, tried), counted(self._running, party) if is_shared else nullcontext():
                yield is_shared
        finally:
            self._changed.set()

    async def until_quiet(self, party: Party, *, deadline: float, moves: Callable[[], bool]) -> None:
        """Wait until no other client's request is tried on the shared session, as questions are refused after this."""
        await self._until(lambda: moves() or not self._others(party), deadline)

    async def _until(self, holds: Callable[[], bool], deadline: float) -> None:
        now = anyio.current_time()
        with anyio.move_on_at(min(now + TURN_SECONDS, (now + deadline) / 2)):
            await self._changed.until(holds)

    def _others(self, party: Party) -> bool:
        return len(self._running) > (party in self._running)
