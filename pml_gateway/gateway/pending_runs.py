"""Runs of workflows and composite tools that wait for their users: in Redis if there is one, else in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import anyio
import anyio.to_thread

from pml_gateway.errors import SharedStateError
from pml_gateway.storage.documents import readable
from pml_gateway.storage.pending import MAX_PENDING, MAX_SECONDS, PendingTable, new_state, not_waiting, waits_in_process
from pml_gateway.storage.redis import OPERATION_SECONDS, RedisValues, value_name
from pml_gateway.storage.redis_owned import OwnedValues
from pml_gateway.storage.replicas import Replicas
from pml_gateway.types import JsonObject
from pml_gateway.workflow.execute import Run
from pml_gateway.workflow.snapshot import RunSnapshot, dump, load

MAX_CHARACTERS = 16 * 1024 * 1024
"""Maximum of a run in Redis as JSON, before it is compressed; a larger one waits in this process."""

MAX_BYTES = 32 * 1024 * 1024
"""Maximum of one client's runs in Redis; the oldest make room."""


RUNS, CLAIMS = "runs", "run-claims"
"""Collections in Redis: of suspended runs, and of who goes on with one. A claim outlasts its run: whoever has read the
run just before it was deleted finds the claim."""


class PendingRuns:
    """Suspended runs by their states, each for one request of one client, and usable once."""

    def __init__(self, replicas: Replicas | None = None) -> None:
        self._held: PendingTable[Run] = PendingTable("run")
        self._values = self._stored = None
        self._replicas = replicas
        if replicas is not None:
            self._values = RedisValues(replicas.server)
            self._stored = OwnedValues(replicas.server, RUNS, MAX_PENDING, MAX_BYTES)

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
        """Return a run to go on with; `begin` makes a new run of the same plan, which is restored from the snapshot.

        Raises:
            PendingNotFoundError: nothing of this owner waits under this state for this request.
            SharedStateError: Redis does not answer, or another replica goes on with the run.
        """
        if self._values is None or self._stored is None or self._replicas is None or waits_in_process(state):
            return self._held.take(state, owner=owner, fingerprint=fingerprint)
        # Made first: if the request no longer makes a plan, the run is still there for another attempt.
        run, digest = begin(), self._stored.digest(_id(state, owner, fingerprint))
        found = await self._values.get(digest, collection=RUNS)
        if found is None:
            raise not_waiting("run", MAX_SECONDS)
        snapshot = await anyio.to_thread.run_sync(readable, "a suspended run", lambda: load(found["run"]))
        if snapshot is None:
            raise not_waiting("run", MAX_SECONDS)
        run.restore(snapshot)
        may_have_lost_claim = await self._may_have_lost_claim(digest)
        run.claim = claim = _Claim(self._values, self._replicas, digest)
        await claim.take()
        if may_have_lost_claim:
            claim.sent_before = frozenset(step.index for step in run.plan.steps)
        return run

    async def _may_have_lost_claim(self, digest: str) -> bool:
        """Return True if Redis started after a run was stored, and may have lost the claim of a replica to it."""
        assert self._values is not None
        server, name = self._values.server, value_name(RUNS, digest)
        lost_at = await server.may_have_gone_back_at()
        left: int = await server.run(lambda redis: redis.pttl(name)) if lost_at else 0
        return time.time() - MAX_SECONDS + left / 1000 < lost_at


class _Claim:
    """The claim of this replica to go on with a stored run, until another one finds this one gone.

    As a context, it deletes the run at its end. If it is cut off, any replica may take the run again.
    """

    def __init__(self, values: RedisValues, replicas: Replicas, digest: str) -> None:
        self._values = values
        self._replicas = replicas
        self._own = replicas.own.id
        self._digest = digest
        self._sent: set[int] = set()
        self._noting = anyio.Lock()
        self.sent_before: frozenset[int] = frozenset()

    async def take(self) -> None:
        """Take the run, unless somebody goes on with it.

        Raises:
            PendingNotFoundError: this replica does.
            SharedStateError: another one does, or Redis does not answer.
        """
        gone, holder = {""}, ""

        def taken(claim: JsonObject | None) -> JsonObject:
            nonlocal holder
            claim = claim or {"by": "", "sent": []}
            holder = "" if claim["by"] in gone else claim["by"]
            return claim if holder else {**claim, "by": self._own}

        while True:
            claim = await self._change(taken)
            if not holder:
                self.sent_before = frozenset(claim["sent"])
                return
            if holder == self._own:
                raise not_waiting("run", MAX_SECONDS)
            if await self._replicas.find(holder) is not None:
                raise SharedStateError(
                    "another gateway goes on with this run", hint="if its answer was lost, try again in ten seconds"
                )
            gone.add(holder)

    async def note(self, step: int) -> None:
        """Note that a step is about to make calls that must not be repeated.

        Raises:
            SharedStateError: Redis does not answer, or another replica has taken the run.
        """

        def noted(claim: JsonObject | None) -> JsonObject:
            # It may have expired, as the run did before.
            sent = [] if claim is None else claim["sent"]
            if claim is not None and claim["by"] != self._own:
                raise SharedStateError("another gateway has taken over this run")
            return {"by": self._own, "sent": [*sent, step]}

        async with self._noting:
            if step not in self._sent:
                await self._change(noted)
                self._sent.add(step)

    async def __aenter__(self) -> None:
        """Go on with the run."""

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Delete the run, or let go of it."""
        with anyio.move_on_after(OPERATION_SECONDS, shield=True), suppress(SharedStateError):
            if kind is None:
                await self._values.delete(self._digest, collection=RUNS)
            else:
                await self._change(lambda claim: {**claim, "by": ""} if claim and claim["by"] == self._own else claim)

    async def _change(self, update: Callable[[JsonObject | None], JsonObject | None]) -> JsonObject:
        changed = await self._values.change(self._digest, update, collection=CLAIMS, ttl=MAX_SECONDS)
        return changed or {}


def _id(state: str, owner: str, fingerprint: str) -> str:
    """Return the id of a run: with another owner or request, it is that of none."""
    return "\n".join((state, fingerprint, owner))


def _packed(snapshot: RunSnapshot) -> JsonObject:
    text = dump(snapshot)
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"the run has {len(text)} characters")
    return {"run": text}
