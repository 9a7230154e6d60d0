"""The pace at which the changes of one server's lists are followed: each is judged, indexed and written to disk."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

CHANGES_SECONDS = 600.0
FREE_CHANGES = 10
"""Changes within so many seconds that are followed at once: more than a person makes who writes a server."""

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 300.0
"""Seconds of the first pause, which doubles with each further change, and the longest wait for a new list."""


class ChangePace:
    """Counts changes, and says how long to wait before the next one is looked at."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changes: deque[float] = deque()
        self._paused_until = 0.0

    @property
    def remaining(self) -> float:
        """Seconds until the next change is to be looked at."""
        return max(self._paused_until - self._clock(), 0.0)

    def note(self) -> float:
        """Count a change; return the seconds to wait before the next."""
        now = self._clock()
        self._changes.append(now)
        while now - self._changes[0] > CHANGES_SECONDS:
            self._changes.popleft()
        more = len(self._changes) - FREE_CHANGES
        if more > 0:
            # A bounded exponent, as no float holds any power.
            self._paused_until = now + min(FIRST_PAUSE * 2.0 ** min(more - 1, 16), LONGEST_PAUSE)
        return self.remaining
