"""Starts of servers side by side: a few at a time, first those for which most calls wait."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import anyio

AT_ONCE = max(4, 2 * (os.cpu_count() or 2))
"""Servers that start side by side: twenty at once on a small machine would all be ready late."""

START_SECONDS = 1.0
"""How long one that starts may keep the others waiting: what takes longer mostly waits itself."""

EVERYBODY = ""
"""Whose a start is that is not one client's."""

Urgency = Callable[[], int]
"""How many calls wait for a server now."""


class Turn:
    """One start, from when it may begin until it is over or has taken its time."""

    def __init__(self, starts: Starts, whose: str = EVERYBODY) -> None:
        self.whose = whose
        self._starts = starts
        self.is_due = anyio.Event()
        self.ends_at = 0.0

    def end(self) -> None:
        """The server has started, or failed."""
        self._starts.end(self)


class Starts:
    """Those of one process."""

    def __init__(self) -> None:
        self._running: list[Turn] = []
        self._waiting: dict[Turn, Urgency] = {}
        self._had: Counter[str] = Counter()
        """How many of each client's there were while others waited."""

    async def turn(self, urgency: Urgency, whose: str = EVERYBODY) -> Turn:
        """Wait until a server may be started; whoever does says when that is over."""
        turn = Turn(self, whose)
        self._waiting[turn] = urgency
        try:
            while True:
                self._hand_out()
                if turn.is_due.is_set():
                    return turn
                with anyio.move_on_at(min(each.ends_at for each in self._running)):
                    await turn.is_due.wait()
        except BaseException:
            self.end(turn)
            raise

    def end(self, turn: Turn) -> None:
        """Let the next one start."""
        self._waiting.pop(turn, None)
        if turn in self._running:
            self._running.remove(turn)
            self._hand_out()

    def _hand_out(self) -> None:
        if not self._waiting:
            self._had.clear()
        now = anyio.current_time()
        self._running = [each for each in self._running if each.ends_at > now]
        while self._waiting and len(self._running) < AT_ONCE:
            # Of those for which as many wait, that of the client that had fewest; of one client's, the latest: it is
            # waited for now, rather than what was begun before a gateway was lost.
            turn = max(reversed(self._waiting), key=lambda each: (self._waiting[each](), -self._had[each.whose]))
            del self._waiting[turn]
            self._had[turn.whose] += 1
            turn.ends_at = now + START_SECONDS
            self._running.append(turn)
            turn.is_due.set()
