"""Runs that wait for answers of their users, each bound to one client and kept for a limited time."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from pml_gateway.errors import ErrorCode, ToolCallError
from pml_gateway.policy.client import Client
from pml_gateway.quotas import Holdings
from pml_gateway.workflow.execute import Run

TTL_SECONDS = 900.0
"""Seconds that a person has to answer."""

MAX_RUNS = 512
"""Maximum number of waiting runs; beyond it, the client with the most of them loses its oldest."""


class RunUnknownError(ToolCallError):
    """A state under which no run of this client waits; unknown, foreign and expired states look the same."""

    code = ErrorCode.NOT_FOUND


@dataclass(frozen=True, slots=True)
class _Kept:
    client: str
    request: str
    run: Run
    expires_at: float


class SuspendedRuns:
    """The runs of one gateway that wait for answers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._held: Holdings[str] = Holdings()

    def keep(self, client: Client, request: str, run: Run) -> str:
        """Keep the run of a `request`, and return the secret state with which its client continues it."""
        now = self._clock()
        for state in [state for state, kept in self._kept.items() if kept.expires_at <= now]:
            self._forget(state)
        state = secrets.token_urlsafe(24)
        self._kept[state] = _Kept(client.id, request, run, now + TTL_SECONDS)
        self._held.note(state, client.share)
        if len(self._held) > MAX_RUNS and (oldest := self._held.first_to_go()) is not None:
            self._forget(oldest)
        return state

    def take(self, client: Client, request: str, state: str) -> Run:
        """Remove and return the run that waits under this state.

        Raises:
            RunUnknownError: no run of this client waits under it for this request.
        """
        kept = self._kept.get(state)
        if kept is None or (kept.client, kept.request) != (client.id, request) or kept.expires_at <= self._clock():
            raise RunUnknownError(
                "no run of this request waits under this requestState",
                hint=f"send the same request as before, within {TTL_SECONDS:g} s and once; else start it anew",
            )
        self._forget(state)
        return kept.run

    def _forget(self, state: str) -> None:
        del self._kept[state]
        self._held.forget(state)
