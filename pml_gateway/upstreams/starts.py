"""A limit on servers that start at the same time: those with most waiting calls start first."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import anyio

AT_ONCE = max(4, 2 * (os.cpu_count() or 2))
"""Maximum number of servers that start at the same time: twenty at once would all be late on a small machine."""

START_SECONDS = 1.0
"""Seconds that a starting server may delay the others: one that takes longer mostly waits itself."""

EVERYBODY = ""
"""Client id of starts that are not for one client."""

Urgency = Callable[[], int]
"""Returns the number of calls that currently wait for a server."""


class Turn:
    """One start, from its permission to begin until it ends or has used its time."""

    def __init__(self, starts: Starts, whose: str = EVERYBODY) -> None:
        self.whose = whose
        self._starts = starts
        self.is_due = anyio.Event()
        self.ends_at = 0.0

    def end(self) -> None:
        """End the turn: the server has started, or failed."""
        self._starts.end(self)


class Starts:
    """The starts of one process."""

    def __init__(self) -> None:
        self._running: list[Turn] = []
        self._waiting: dict[Turn, Urgency] = {}
        self._had: Counter[str] = Counter()
        """Number of starts of each client while others waited."""

    async def turn(self, urgency: Urgency, whose: str = EVERYBODY) -> Turn:
        """Wait until a server may be started; the caller ends the turn it gets."""
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
        """Let the next server start."""
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
            # Among those with equally many waiting calls, the client with the fewest starts; of one client, the latest
            # start: it is needed now, unlike one begun before a gateway was lost.
            turn = max(reversed(self._waiting), key=lambda each: (self._waiting[each](), -self._had[each.whose]))
            del self._waiting[turn]
            self._had[turn.whose] += 1
            turn.ends_at = now + START_SECONDS
            self._running.append(turn)
            turn.is_due.set()
