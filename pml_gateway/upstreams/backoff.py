"""How the connections to one upstream ended becomes when the next one is opened."""

from __future__ import annotations

import random

FIRST_BACKOFF = 1.0
LAST_BACKOFF = 60.0
"""Seconds between attempts to reach an upstream that fails: doubled from the first to the last."""

STABLE_AFTER = 5.0
"""Seconds a connection has to live for its loss to be an accident; two shorter ones in a row lead to a pause."""


class Backoff:
    """The pauses of one upstream. `expired` says that the gateway itself gave up the connection that ends next."""

    def __init__(self) -> None:
        self.expired = False
        self._pause = FIRST_BACKOFF
        self._lost_quickly = False
        self._was_stable = False

    def needs_none(self, lived: float) -> bool:
        """Whether a connection that lived so many seconds may be followed by another one at once."""
        lost_quickly = lived < STABLE_AFTER
        at_once = self.expired or not (lost_quickly and self._lost_quickly)
        self.expired, self._lost_quickly = False, lost_quickly
        self._was_stable = self._was_stable or not lost_quickly
        return at_once

    def pause(self) -> float:
        """Seconds until the next attempt after one that failed; twice as many the time after."""
        if self._was_stable:
            self._pause, self._was_stable = FIRST_BACKOFF, False
        pause = self._pause
        self._pause = min(pause * 2, LAST_BACKOFF)
        return pause * random.uniform(0.8, 1.2)

    def forget(self) -> None:
        """Begin with the shortest pause again."""
        self._pause = FIRST_BACKOFF
