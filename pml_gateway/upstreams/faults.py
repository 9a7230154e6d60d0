"""What the log is told of an upstream that fails: each reason once, and the same one again only rarely."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable

from pml_gateway.errors import GatewayError, UpstreamAuthError, UpstreamUnusableError

FIRST_SILENCE = 600.0
LAST_SILENCE = 6 * 3600.0
"""Seconds until the same reason is told again: doubled from the first to the last."""

STABLE_AFTER = 5.0
"""Seconds a connection has to live for its loss to be an accident, and what comes after it another outage."""

MAX_REASONS = 16
"""Reasons of one upstream that are told apart; one that gives another each time is told no more often for that."""

_NUMBERS = re.compile(r"\d+")


def is_permanent(error: GatewayError) -> bool:
    """Whether trying again helps nobody before somebody puts something right."""
    return isinstance(error, UpstreamUnusableError | UpstreamAuthError)


class Faults:
    """The reasons that were told of one upstream, forgotten when it was there for a while."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._silences: dict[str, tuple[float, float]] = {}
        self._is_told = False
        self._answered_at = math.inf

    def is_news(self, error: GatewayError) -> bool:
        """Whether this failure is to be told; reasons that differ in numbers alone are the same."""
        if self._clock() - self._answered_at >= STABLE_AFTER:
            self._silences.clear()
        self._answered_at = math.inf
        # Processes and ports have numbers, which say nothing new.
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
        """Note that a connection stands; whether that is worth a word, as a failure was told since the last one."""
        was_told, self._is_told, self._answered_at = self._is_told, False, self._clock()
        return was_told
