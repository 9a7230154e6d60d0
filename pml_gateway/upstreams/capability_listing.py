"""Lists upstreams again for clients that can be asked, where those get more or fewer tools than others.

Some servers of the handshake era look at what a client announced and register tools by that. The session that lists
for all clients announces nothing, or what local clients can be asked together. So when the first client comes that can
be asked something else, such servers are listed once more by a session that announces everything, or nothing; those
that list something else then, once for every set of capabilities that clients really have. What differs is kept with
the manifest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import anyio

from pml_gateway.errors import GatewayError, UpstreamProtocolError
from pml_gateway.log import get_logger
from pml_gateway.mcp.connection import Connection
from pml_gateway.mcp.elicitation import Capabilities, Questions
from pml_gateway.mcp.listing import Difference, Listed, Offers, announced_kind, difference
from pml_gateway.mcp.negotiation import HANDSHAKE
from pml_gateway.signal import Signal
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.dialogue.local_clients import union
from pml_gateway.upstreams.lifecycle import UpstreamState
from pml_gateway.upstreams.lists import FIRST_REST, LAST_REST, list_whole
from pml_gateway.upstreams.pool import UpstreamPool
from pml_gateway.upstreams.upstream import Upstream

logger = get_logger(__name__)

FIRST_WAIT = 3.0
"""Seconds that the first client of its kind waits for its lists; those that are later announce themselves."""

MAX_SETS = 16
"""Sets of capabilities that are listed for; clients of further ones get the list for everybody."""

AT_ONCE = 4
"""Upstreams that are listed side by side: over stdio each is one more process."""

QUIET_SECONDS = 10.0
"""How long a listing stands at least, unless that for everybody changes: servers announce changes in bursts."""

LAST_PAUSE = 300.0
"""Seconds between attempts, which double from `QUIET_SECONDS`."""

SETTLING_SECONDS = 0.5
"""How long a server may take, after a session began, to announce that its list is another now."""

MAX_LISTINGS = 3
"""Listings of one session, however often its list changes."""


def _client_capabilities(announced: JsonObject) -> Capabilities:
    return Capabilities(json.dumps(announced, sort_keys=True), announced)


EVERYTHING = _client_capabilities(
    {
        "elicitation": {"form": {}, "url": {}},
        "roots": {"listChanged": True},
        "sampling": {"context": {}, "tools": {}},
    }
)
"""All that a client can be asked."""


NOTHING = _client_capabilities({})


@lru_cache(maxsize=256)
def listed_for(key: str) -> Capabilities:
    """What of a client's capabilities lists may depend on; whatever else it wrote into them is its own matter."""
    announced: JsonObject = json.loads(key)
    return _client_capabilities(
        {
            name: {detail: value if isinstance(value, bool) else {} for detail, value in details.items()}
            for name, details in announced.items()
        }
    )


@dataclass(slots=True, eq=False)
class _Record:
    """What has been done for one upstream: for whom it was listed, and for whom it is to be again.

    Times are those of `anyio.current_time`: of the last listing begun, the next that repeats one, and the next attempt.
    One that `is_faulty` was against the protocol, and is not tried again because its upstream announces something.
    """

    upstream: Upstream
    base: tuple[tuple[JsonObject, ...], Offers] | None = None
    done: set[str] = field(default_factory=set)
    stale: set[str] = field(default_factory=set)
    begun_at: float = -math.inf
    again_at: float = -math.inf
    retry_at: float = -math.inf
    pause: float = 0.0
    has_failed: bool = False
    is_faulty: bool = False
    is_busy: bool = False


class CapabilityListings:
    """Lists upstreams in the name of the clients that were met; `run` does it, in the background."""

    def __init__(
        self,
        pool: UpstreamPool,
        known: Callable[[str], Mapping[str, Difference] | None],
        note: Callable[[Upstream, str, Difference], None],
        serve: Callable[[], Awaitable[None]],
    ) -> None:
        """List the upstreams of a pool.

        Args:
            pool: whose upstreams.
            known: the differences of an upstream that are known; None if it needs none.
            note: takes one more, or a new one.
            serve: has what was taken become what clients are answered from.
        """
        self._pool = pool
        self._known = known
        self._note = note
        self._serve = serve
        self._met: dict[str, Capabilities] = {}
        self._waited: set[str] = set()
        self._records: dict[str, _Record] = {}
        self._changed = Signal()
        self._places = anyio.Semaphore(AT_ONCE)

    def note_client(self, client_capabilities: Capabilities) -> str:
        """What lists for this client depend on; upstreams are listed for it from now on.

        Empty where it is listed what is listed for everybody.
        """
        wanted = listed_for(client_capabilities.key)
        if wanted == self._base:
            return ""
        if wanted.key not in self._met and len(self._met) < MAX_SETS:
            self._met[wanted.key] = wanted
            self._changed.set()
        return wanted.key

    def is_ready(self, key: str) -> bool:
        """Whether lists for these capabilities need not be waited for (any more)."""
        return key in self._waited

    async def wait(self, key: str) -> None:
        """Wait, for a moment at most, until what is listed for these capabilities is known."""
        with anyio.move_on_after(FIRST_WAIT):
            await self._changed.until(
                lambda: not any(self._lacks(upstream, key) for upstream in self._pool.upstreams.values())
            )
            await self._serve()
        self._waited.add(key)

    def listed(self, upstream: Upstream, listed: Listed) -> None:
        """An upstream was listed for everybody: what differs from that may be another now."""
        record = self._record(upstream)
        base = (listed.tools, listed.offers)
        if record.base != base:
            record.base = base
            record.again_at = -math.inf
            if not record.is_faulty:
                record.retry_at = -math.inf
        elif listed.polled:
            return
        elif not record.stale:
            record.again_at = record.begun_at + QUIET_SECONDS
        record.stale |= record.done
        self._changed.set()

    def renew(self) -> None:
        """List every upstream anew, at once."""
        for record in self._records.values():
            record.stale |= record.done
            record.again_at = record.retry_at = -math.inf
        self._changed.set()

    def failed(self, upstream: Upstream) -> None:
        """An upstream cannot be reached: nobody needs to wait for it."""
        self._record(upstream).has_failed = True
        self._changed.set()

    async def run(self) -> None:
        """List whenever there is reason to, for as long as the owner's task group lives."""
        async with anyio.create_task_group() as tasks:
            while True:
                for upstream in self._pool.upstreams.values():
                    record = self._record(upstream)
                    if not record.is_busy and self._due(record):
                        record.is_busy = True
                        tasks.start_soon(self._list_due, record)
                await self._changed.wait()

    def _record(self, upstream: Upstream) -> _Record:
        record = self._records.get(upstream.upstream_id)
        if record is None or record.upstream is not upstream:
            record = self._records[upstream.upstream_id] = _Record(upstream)
        return record

    def _wanted(self, upstream: Upstream) -> dict[str, Capabilities]:
        """What the upstream is to be listed for: first for everything, and for the rest only if that differs."""
        if not self._met:
            return {}
        known = self._known(upstream.upstream_id)
        if known is None:
            return {}
        probes = {each.key: each for each in self._probes}
        met = self._met if any(known.get(key) for key in probes) else {}
        return {key: each for key, each in (probes | met).items() if each != self._base}

    @property
    def _base(self) -> Capabilities:
        """What the session announces that lists for everybody."""
        local = self._pool.local
        return NOTHING if local is None else listed_for(local.client_capabilities.key)

    @property
    def _probes(self) -> tuple[Capabilities, ...]:
        """What upstreams are listed for first, to see whether it makes a difference what a client can be asked."""
        base = self._base
        if not base:
            return (EVERYTHING,)
        has_more = any(union(base, each) != base for each in self._met.values())
        return (NOTHING, EVERYTHING) if has_more else (NOTHING,)

    def _due(self, record: _Record) -> list[tuple[float, Capabilities]]:
        """For whom the upstream is to be listed, and when."""
        upstream = record.upstream
        is_known = upstream.last_listed is not None and upstream.state in (UpstreamState.READY, UpstreamState.IDLE)
        if not is_known or self._pool.upstreams.get(upstream.upstream_id) is not upstream:
            return []
        due = []
        for key, client_capabilities in self._wanted(upstream).items():
            if key not in record.done:
                due.append((record.retry_at, client_capabilities))
            elif key in record.stale:
                due.append((max(record.again_at, record.retry_at), client_capabilities))
        return due

    def _lacks(self, upstream: Upstream, key: str) -> bool:
        known = self._known(upstream.upstream_id)
        if known is None or self._record(upstream).has_failed or key not in self._met:
            return False
        probes = [each.key for each in self._probes]
        if not self._base and EVERYTHING.key not in known:
            return True
        # Local clients come to lists that are nearly always theirs, and are told of changes.
        return any(known.get(probe) for probe in probes) and key not in known

    async def _list_due(self, record: _Record) -> None:
        try:
            while due := self._due(record):
                at, client_capabilities = min(due, key=lambda each: each[0])
                if at > anyio.current_time():
                    with anyio.move_on_at(at):
                        await self._changed.wait()
                    continue
                record.begun_at = anyio.current_time()
                record.done.add(client_capabilities.key)
                record.stale.discard(client_capabilities.key)
                try:
                    async with self._places:
                        await self._list(record.upstream, client_capabilities)
                    record.has_failed, record.is_faulty, record.pause = False, False, 0.0
                except GatewayError as error:
                    logger.debug("not listed for clients that can be asked: %s", error)
                    record.has_failed = True
                    record.done.discard(client_capabilities.key)
                    record.is_faulty = isinstance(error, UpstreamProtocolError)
                    first, last = (FIRST_REST, LAST_REST) if record.is_faulty else (QUIET_SECONDS, LAST_PAUSE)
                    record.pause = min(max(record.pause * 2, first), last)
                    record.retry_at = anyio.current_time() + record.pause
                self._changed.set()
        finally:
            record.is_busy = False
            self._changed.set()

    async def _list(self, upstream: Upstream, client_capabilities: Capabilities) -> None:
        """List as a client of these capabilities, again if its list changes while the session begins."""
        changed = anyio.Event()

        def on_notice(method: str, _params: JsonObject) -> None:
            if announced_kind(method) is not None:
                changed.set()

        async with upstream.open_beside(Questions(client_capabilities), HANDSHAKE, on_notice) as connection:
            for _ in range(MAX_LISTINGS):
                changed = anyio.Event()
                found = await self._listed(upstream, connection)
                if found is not None:
                    self._note(upstream, client_capabilities.key, found)
                    self._changed.set()
                with anyio.move_on_after(SETTLING_SECONDS):
                    await changed.wait()
                if not changed.is_set():
                    return

    async def _listed(self, upstream: Upstream, connection: Connection) -> Difference | None:
        limit = upstream.connect_timeout
        tools, offers = await list_whole(connection, upstream.upstream_id, limit)
        base = upstream.last_listed
        return None if base is None else difference(tools, offers, base=(base.tools, base.offers))
