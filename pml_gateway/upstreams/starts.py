"""Starts of servers side by side: a few at a time, first those for which most calls wait."""

from __future__ import annotations

import os
from collections.abc import Callable

import anyio

AT_ONCE = max(4, 2 * (os.cpu_count() or 2))
"""Servers that start side by side: twenty at once on a small machine would all be ready late."""

START_SECONDS = 1.0
"""How long one that starts may keep the others waiting: what takes longer mostly waits itself."""

Urgency = Callable[[], int]
"""How many calls wait for a server now."""


class Turn:
    """One start, from when it may begin until it is over or has taken its time."""

    def __init__(self, starts: Starts) -> None:
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

    async def turn(self, urgency: Urgency) -> Turn:
        """Wait until a server may be started; whoever does says when that is over."""
        turn = Turn(self)
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
        now = anyio.current_time()
        self._running = [each for each in self._running if each.ends_at > now]
        while self._waiting and len(self._running) < AT_ONCE:
            # Of those for which as many wait, the one that has waited longest.
            turn = max(self._waiting, key=lambda each: self._waiting[each]())
            del self._waiting[turn]
            turn.ends_at = now + START_SECONDS
            self._running.append(turn)
            turn.is_due.set()
