"""A rate limit for processing the changes of one server's lists: each is checked, indexed and written to disk."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

CHANGES_SECONDS = 600.0
FREE_CHANGES = 10
"""Changes per `CHANGES_SECONDS` that are processed at once: more than a developer of a server causes."""

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 300.0
"""Maximum seconds of a pause; the first one doubles with each further change."""


class ChangePace:
    """Counts changes, and computes the pause before the next one is processed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changes: deque[float] = deque()
        self._paused_until = 0.0

    @property
    def remaining(self) -> float:
        """Return the seconds until the next change may be processed."""
        return max(self._paused_until - self._clock(), 0.0)

    def note(self) -> float:
        """Count a change; return the seconds to wait before the next."""
        now = self._clock()
        self._changes.append(now)
        while now - self._changes[0] > CHANGES_SECONDS:
            self._changes.popleft()
        more = len(self._changes) - FREE_CHANGES
        if more > 0:
            # Limit the exponent, as large powers overflow a float.
            self._paused_until = now + min(FIRST_PAUSE * 2.0 ** min(more - 1, 16), LONGEST_PAUSE)
        return self.remaining
