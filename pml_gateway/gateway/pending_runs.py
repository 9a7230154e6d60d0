"""Runs of workflows and composite tools that wait for their users: in Redis if there is one, else in this process."""

from __future__ import annotations

from collections.abc import Callable

import anyio.to_thread

from pml_gateway.errors import SharedStateError
from pml_gateway.storage.pending import MAX_PENDING, MAX_SECONDS, PendingTable, new_state, not_waiting, waits_in_process
from pml_gateway.storage.redis import RedisServer
from pml_gateway.storage.redis_owned import OwnedValues
from pml_gateway.types import JsonObject
from pml_gateway.workflow.execute import Run
from pml_gateway.workflow.progress import Progress, read, written

MAX_CHARACTERS = 16 * 1024 * 1024
"""Maximum of a run in Redis as JSON, before it is compressed; a larger one waits in this process."""

MAX_BYTES = 32 * 1024 * 1024
"""Maximum of one client's runs in Redis; the oldest make room."""


class PendingRuns:
    """Suspended runs by their states, each for one request of one client, and usable once."""

    def __init__(self, redis: RedisServer | None = None) -> None:
        self._held: PendingTable[Run] = PendingTable("run")
        self._stored = None if redis is None else OwnedValues(redis, "runs", MAX_PENDING, MAX_BYTES)

    async def add(self, run: Run, *, owner: str, quota_key: str, fingerprint: str) -> str:
        """Keep a run and return its state. It waits in this process if one of its questions does."""
        if self._stored is not None and not run.waits_in_process:
            try:
                state, packed = new_state(), await anyio.to_thread.run_sync(_packed, run.snapshot())
                await self._stored.put(quota_key, _id(state, owner, fingerprint), packed, MAX_SECONDS)
                return state
            except (SharedStateError, ValueError, TypeError, RecursionError):
                # Redis does not answer, or the run is too large or deep for it.
                pass
        return self._held.add(run, owner=owner, quota_key=quota_key, fingerprint=fingerprint)

    async def take(self, state: str, begin: Callable[[], Run], *, owner: str, fingerprint: str) -> Run:
        """Remove and return a run; `begin` makes a new run of the same plan, which takes over the progress.

        Raises:
            PendingNotFoundError: nothing of this owner waits under this state for this request.
            SharedStateError: Redis does not answer.
        """
        if self._stored is None or waits_in_process(state):
            return self._held.take(state, owner=owner, fingerprint=fingerprint)
        # Made first: if the request no longer makes a plan, the run is still there for another attempt.
        run = begin()
        found = await self._stored.take(_id(state, owner, fingerprint))
        if found is None:
            raise not_waiting("run", MAX_SECONDS)
        try:
            run.restore(await anyio.to_thread.run_sync(read, found["run"]))
        except ValueError:
            # A replica of another version wrote it.
            raise not_waiting("run", MAX_SECONDS) from None
        return run


def _id(state: str, owner: str, fingerprint: str) -> str:
    """Return the id of a run: with another owner or request, it is that of none."""
    return "\n".join((state, fingerprint, owner))


def _packed(progress: Progress) -> JsonObject:
    text = written(progress)
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"the run has {len(text)} characters")
    return {"run": text}
