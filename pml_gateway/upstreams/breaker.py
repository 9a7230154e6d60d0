"""The circuit breaker of one upstream: lets calls through, probes with one, or refuses at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from pml_gateway.config.settings import BreakerSettings
from pml_gateway.errors import (
    GatewayError,
    UpstreamAuthError,
    UpstreamError,
    UpstreamTimeoutError,
    UpstreamUnavailableError,
)
from pml_gateway.log import get_logger
from pml_gateway.quotas import OWN
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

PROBE_SECONDS = 1.0
"""Seconds after which a call that was refused during a probe may be retried: the probe has not ended before."""


class BreakerState(StrEnum):
    """State of a circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(slots=True, eq=False)
class Ticket:
    """Permission for one call, and what is known of the call so far.

    The call counts for `quota_key`. `pause` is the end of the pause in or after which it is made, if any.
    Failures with the same `incident` are one fault that ended many calls.
    """

    quota_key: str = OWN
    pause: float | None = None
    incident: object = None
    sent: bool = False

    @property
    def executed(self) -> str:
        """Return `unknown` if the call was sent and may have been executed, else `no`."""
        return "unknown" if self.sent else "no"


class Breaker:
    """Counts consecutive failures of calls, and refuses calls while the upstream should not be tried.

    The connection loop refuses calls as well, through `hold`, so that one object decides if a call may be made now. If
    there is no connection, the next attempt to connect is the probe; otherwise the next call is.

    Calls of one client may fail while others succeed. While only one client's calls have failed, only its calls are
    refused: the first answer to another client ends the pause, and the first failure extends it to all clients.
    """

    def __init__(
        self,
        upstream_id: str,
        settings: BreakerSettings,
        *,
        on_open: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failures = 0
        self._upstream_id = upstream_id
        self._settings = settings
        self._on_open = on_open
        self._clock = clock
        self._open = False
        self._paused_until = 0.0
        self._held_until = 0.0
        self._probe: Ticket | None = None
        self._reason: GatewayError | None = None
        self._incident: object = None
        self._failed_for: set[str] = set()

    @property
    def state(self) -> BreakerState:
        """Return open while all calls are refused, half open while one call probes the upstream."""
        if self.retry_after > 0:
            return BreakerState.OPEN
        return BreakerState.HALF_OPEN if self._open else BreakerState.CLOSED

    @property
    def retry_after(self) -> float:
        """Return the seconds until calls are let through again."""
        return max(max(self._paused_until, self._held_until) - self._clock(), 0.0)

    def report(self) -> JsonObject:
        return {"state": self.state.value, "failures": self.failures, **self.details}

    @property
    def details(self) -> JsonObject:
        """Return the details for errors that say when to retry."""
        return {"retry_after_seconds": _tenths(self.retry_after)} if self.retry_after else {}

    def check_hold(self) -> None:
        """Refuse a call until the connection loop retries.

        Raises:
            GatewayError: the reason, and the seconds until a retry makes sense; nothing was sent.
        """
        if (seconds := self._held_until - self._clock()) > 0:
            raise self._refusal(seconds)

    def check(self, quota_key: str = OWN) -> None:
        """Refuse a client's call during a pause, and during the probe that follows it.

        Raises:
            GatewayError: as `check_hold`.
        """
        if self._spares(quota_key):
            self.check_hold()
            return
        seconds = self.retry_after
        if seconds > 0 or self._probe is not None:
            raise self._refusal(seconds or PROBE_SECONDS)

    @contextmanager
    def call(self, quota_key: str = OWN, *, impatient: bool) -> Iterator[Ticket]:
        """Make a client's call in this context and record how it ends; the first call after a pause is the probe.

        An `impatient` call has less time than the upstream is allowed, so its timeout does not count as a failure.

        Raises:
            GatewayError: as `check`.
        """
        self.check(quota_key)
        ticket = Ticket(quota_key, self._paused_until if self._open else None)
        if self._open and not self._spares(quota_key):
            self._probe = ticket
        try:
            yield ticket
            self.succeeded(ticket)
        except UpstreamAuthError:
            raise
        except UpstreamTimeoutError as error:
            if ticket.sent and not impatient:
                self._failed(ticket, error, None)
            raise
        except UpstreamUnavailableError as error:
            if "retry_after_seconds" not in error.details:
                self._failed(ticket, error, ticket.incident)
            raise
        except UpstreamError:
            # It answered, even if with an error or an invalid message.
            self.succeeded(ticket)
            raise
        finally:
            if self._probe is ticket:
                self._probe = None

    def hold(self, error: GatewayError, seconds: float) -> None:
        """Refuse calls until the connection loop retries."""
        self._reason = error
        self._held_until = self._clock() + seconds

    def release(self) -> None:
        """Undo `hold`: calls wait for the attempt to connect. A pause that failed calls started goes on."""
        self._held_until = 0.0

    def _spares(self, quota_key: str) -> bool:
        """Return True if only the calls of one other client have failed."""
        return self._open and len(self._failed_for) == 1 and quota_key not in self._failed_for

    def succeeded(self, ticket: Ticket) -> None:
        """Count a call as answered, also if the upstream only asked something during it: it is alive."""
        if self._open and ticket.pause != self._paused_until:
            # A call from before the pause says nothing about the current state.
            return
        if self._open:
            logger.info("%s: a call was answered; calls are let through again", self._upstream_id)
        self.failures, self._open, self._paused_until, self._probe = 0, False, 0.0, None
        self._failed_for.clear()

    def _failed(self, ticket: Ticket, error: GatewayError, incident: object) -> None:
        if incident is not None and incident is self._incident:
            return
        self._incident = incident
        was_spared = self._spares(ticket.quota_key)
        if len(self._failed_for) < 2:
            # It only matters if there are several.
            self._failed_for.add(ticket.quota_key)
        if self._open:
            if self._probe is ticket or was_spared:
                self._trip(error)
            return
        self.failures += 1
        if 0 < self._settings.failures <= self.failures:
            self._trip(error)

    def _trip(self, error: GatewayError) -> None:
        self._open = True
        self._paused_until = self._clock() + self._settings.pause
        self._reason = UpstreamUnavailableError(
            f"{self._upstream_id}: its last {self.failures} calls failed, the last with: {error.message}",
            hint=f"calls are refused for {self._settings.pause:g} s, then one is let through to see",
        )
        logger.warning("%s", self._reason)
        self._on_open()

    def _refusal(self, seconds: float) -> GatewayError:
        reason = self._reason or UpstreamUnavailableError(f"{self._upstream_id}: not reachable")
        refusal = reason.anew()
        refusal.details |= {"executed": "no", "retry_after_seconds": _tenths(seconds)}
        return refusal


def _tenths(seconds: float) -> float:
    """Round up to tenths of a second, so that no error says to retry in 0 s."""
    return math.ceil(seconds * 10) / 10
