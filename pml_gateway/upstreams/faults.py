"""Log suppression for an upstream that fails: each reason is logged once, and repeated only rarely."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable

from pml_gateway.errors import GatewayError, UpstreamAuthError, UpstreamUnusableError

FIRST_SILENCE = 600.0
LAST_SILENCE = 6 * 3600.0
"""Maximum seconds until the same reason is logged again; doubles from the first to this."""

STABLE_AFTER = 5.0
"""Minimum lifetime of a connection in seconds for its loss to count as a new outage."""

MAX_REASONS = 16
"""Maximum number of reasons of one upstream that are told apart, so that changing reasons are not logged more often."""

_NUMBERS = re.compile(r"\d+")


def is_permanent(error: GatewayError) -> bool:
    """Return True if retrying cannot succeed until the configuration, the login or the server changes."""
    return isinstance(error, UpstreamUnusableError | UpstreamAuthError)


class Faults:
    """The logged reasons of one upstream, forgotten once it was connected for a while."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._silences: dict[str, tuple[float, float]] = {}
        self._is_told = False
        self._answered_at = math.inf

    def is_news(self, error: GatewayError) -> bool:
        """Return True if this failure should be logged; reasons that differ only in numbers count as the same."""
        if self._clock() - self._answered_at >= STABLE_AFTER:
            self._silences.clear()
        self._answered_at = math.inf
        # Process ids and ports change with each failure, and are no news.
        reason = _NUMBERS.sub("0", error.message)
        if reason not in self._silences and len(self._silences) >= MAX_REASONS:
            reason = ""
        ends, length = self._silences.get(reason, (0.0, FIRST_SILENCE / 2))
        if reason in self._silences and self._clock() < ends:
            return False
        length = min(length * 2, LAST_SILENCE)
        self._silences[reason] = (self._clock() + length, length)
        self._is_told = True
        return True

    def answered(self) -> bool:
        """Note that a connection is open; return True if that should be logged, because a failure was."""
        was_told, self._is_told, self._answered_at = self._is_told, False, self._clock()
        return was_told
