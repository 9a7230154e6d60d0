"""What a peer sends unasked is taken at a bounded pace, so that a flood slows the peer and nobody else."""

from __future__ import annotations

import anyio

MESSAGES_A_SECOND = 1000
"""Notifications and requests of one connection; the rest wait in its pipe, and a full pipe holds up who fills it."""

_TENTH = 0.1


class Pace:
    """Counts what is taken in a tenth of a second, and waits for the next where it is too much."""

    def __init__(self, a_second: int = MESSAGES_A_SECOND) -> None:
        self._allowed = max(a_second // 10, 1)
        self._taken = 0
        self._since = 0.0

    async def keep(self) -> None:
        """Take one more, now or in a moment."""
        now = anyio.current_time()
        if now - self._since >= _TENTH:
            self._since, self._taken = now, 0
        self._taken += 1
        if self._taken > self._allowed:
            await anyio.sleep(self._since + _TENTH - now)
