"""Runs that wait for their users, each bound to one client and kept for a while."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from cachetools import TTLCache

from pml_gateway.errors import ErrorCode, ToolCallError
from pml_gateway.workflow.execute import Run

TTL_SECONDS = 900.0
"""How long a person may take to answer."""

MAX_PER_CLIENT = 32
MAX_RUNS = 512
"""Runs kept in all; past either bound the oldest is given up."""


class RunUnknownError(ToolCallError):
    """No run of this client waits under this state; unknown, foreign and expired states cannot be told apart."""

    code = ErrorCode.NOT_FOUND


@dataclass(frozen=True, slots=True)
class _Kept:
    client: str
    request: str
    run: Run


class SuspendedRuns:
    """The runs of one gateway that wait for answers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept: TTLCache[str, _Kept] = TTLCache(MAX_RUNS, TTL_SECONDS, clock)

    def keep(self, client: str, request: str, run: Run) -> str:
        """Keep a run; returns the secret state with which its client goes on. `request` is what it asked for."""
        mine = [state for state, kept in self._kept.items() if kept.client == client]
        for state in mine[: max(len(mine) - MAX_PER_CLIENT + 1, 0)]:
            self._kept.pop(state, None)
        state = secrets.token_urlsafe(24)
        self._kept[state] = _Kept(client, request, run)
        return state

    def take(self, client: str, request: str, state: str) -> Run:
        """The run that waits under this state, which goes on once.

        Raises:
            RunUnknownError: nothing of this client waits under it for this request.
        """
        kept = self._kept.get(state)
        if kept is None or kept.client != client or kept.request != request:
            raise RunUnknownError(
                "no run of this request waits under this requestState",
                hint=f"send the same request as before, within {TTL_SECONDS:g} s and once; else start it anew",
            )
        self._kept.pop(state, None)
        return kept.run
