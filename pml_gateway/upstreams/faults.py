"""Failures of an upstream: retries of requests, pauses between attempts to connect, and each reason logged once."""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from pml_gateway.errors import GatewayError, UpstreamAuthError, UpstreamUnavailableError, UpstreamUnusableError

FIRST_SILENCE = 600.0
LAST_SILENCE = 6 * 3600.0
"""Maximum seconds until the same reason is logged again; doubles from the first to this."""

STABLE_AFTER = 5.0
"""Minimum lifetime of a connection in seconds for its loss to count as a new outage."""

MAX_REASONS = 16
"""Maximum number of reasons of one upstream that are told apart, so that changing reasons are not logged more often."""

FIRST_BACKOFF = 1.0
LAST_BACKOFF = 60.0
"""Maximum seconds between attempts to reach a failing upstream; doubles from the first to this."""

MAX_RETRIES = 2
FIRST_PAUSE = 0.1
"""Maximum seconds before the first retry; doubled for the second."""

ResultT = TypeVar("ResultT")

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


class Backoff:
    """Reconnect pauses of one upstream. `expired` is True if the gateway itself ends the current connection."""

    def __init__(self) -> None:
        self.expired = False
        self._pause = FIRST_BACKOFF
        self._lost_quickly = False
        self._was_stable = False

    def needs_none(self, lived: float) -> bool:
        """Return True if a connection that lived `lived` seconds may be replaced at once."""
        lost_quickly = lived < STABLE_AFTER
        at_once = self.expired or not (lost_quickly and self._lost_quickly)
        self.expired, self._lost_quickly = False, lost_quickly
        self._was_stable = self._was_stable or not lost_quickly
        return at_once

    def pause(self) -> float:
        """Return the seconds until the next attempt after a failed one, and double the next pause."""
        if self._was_stable:
            self._pause, self._was_stable = FIRST_BACKOFF, False
        pause = self._pause
        self._pause = min(pause * 2, LAST_BACKOFF)
        return pause * random.uniform(0.8, 1.2)

    def forget(self) -> None:
        """Start with the shortest pause again."""
        self._pause = FIRST_BACKOFF


async def repeated(
    attempt: Callable[[], Awaitable[ResultT]], deadline: float, may_repeat: Callable[[], bool] = lambda: True
) -> ResultT:
    """Return the outcome of `attempt`, retried after transport failures, before `deadline` (`anyio.current_time`).

    `may_repeat` is checked after a failure. `executed` of the last failure holds for all attempts.

    Raises:
        GatewayError: the last failure, or the first if the upstream refuses retries.
    """
    failure: GatewayError | None = None
    reached = False
    for number in range(MAX_RETRIES + 1):
        if number:
            pause = FIRST_PAUSE * 2 ** (number - 1) * random.uniform(0.5, 1.0)
            if anyio.current_time() + pause >= deadline:
                break
            await anyio.sleep(pause)
        try:
            return await attempt()
        except GatewayError as error:
            if reached and error.details.get("executed") == "no":
                error.details["executed"] = "unknown"
            reached = error.details.get("executed") != "no"
            if not isinstance(error, UpstreamUnavailableError):
                raise
            if failure is not None and "retry_after_seconds" in error.details:
                break
            failure = error
            if "retry_after_seconds" in error.details or not may_repeat():
                break
    assert failure is not None
    raise failure
