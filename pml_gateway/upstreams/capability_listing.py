"""Additional listings of upstreams whose lists depend on the capabilities of the client.

Some servers of the handshake era register tools by the capabilities that a client announced. The session that lists
for all clients announces nothing, or the combined capabilities of local clients. When the first client with other
capabilities connects, such servers are therefore listed once more by a session that announces everything, or nothing.
Those whose list differs are then listed once for each set of capabilities that clients really have. Servers of the
stateless era are listed so only for clients with extensions. The differences are kept with the manifest.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce

import anyio

from pml_gateway.errors import AnswerTooLargeError, GatewayError
from pml_gateway.log import get_logger
from pml_gateway.mcp.capabilities import EVERYTHING, EXTENSIONS, NO_CAPABILITIES, ClientCapabilities, union
from pml_gateway.mcp.connection import Connection
from pml_gateway.mcp.elicitation import Questions
from pml_gateway.mcp.listing import Difference, Listed, Offers, announced_kind, difference
from pml_gateway.mcp.negotiation import HANDSHAKE, MODERN
from pml_gateway.quotas import Holdings, is_anonymous
from pml_gateway.signal import Signal
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.connector import UpstreamState
from pml_gateway.upstreams.faults import FIRST_BACKOFF, LAST_BACKOFF
from pml_gateway.upstreams.lister import FIRST_REST, LAST_REST
from pml_gateway.upstreams.lists import FaultyListError, list_whole
from pml_gateway.upstreams.pool import UpstreamPool
from pml_gateway.upstreams.upstream import Upstream

logger = get_logger(__name__)

FIRST_WAIT = 3.0
"""Seconds that the first client with its capabilities waits for its lists; later changes are announced to it."""

MAX_SETS = 16
"""Maximum number of capability sets that are listed for; clients with further ones get the list for all clients."""

IDLE_SECONDS = 300.0
"""Seconds after its last request from which on a set gives way to a new one of any client: each costs listings."""

AT_ONCE = 4
"""Upstreams that are listed at the same time: over stdio, each is one more process."""

QUIET_SECONDS = 10.0
"""Minimum seconds between listings, unless the list for all clients changes: servers announce changes in bursts."""

SETTLING_SECONDS = 0.5
"""Seconds after the start of a session in which a server may announce that its list has changed."""

MAX_LISTINGS = 3
"""Maximum number of listings in one session, however often its list changes."""


@dataclass(slots=True, eq=False)
class _Record:
    """The state of the listings of one upstream: the capability sets that are done, and those that are due again.

    Times are `anyio.current_time`: of the last listing started, the next repeated one, and the next attempt. After a
    list that is too large or never ends, `is_faulty` is set: an announced change is then no reason to try again.
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
    """Lists upstreams for the capabilities of the clients that connected; `run` does so in the background."""

    def __init__(
        self,
        pool: UpstreamPool,
        known: Callable[[str], Mapping[str, Difference]],
        note: Callable[[Upstream, str, Difference], None],
        serve: Callable[[], Awaitable[None]],
    ) -> None:
        """Set up the listings for a pool of upstreams.

        `known` returns the known differences of an upstream; `note` stores a new or changed one, and
        `serve` makes those stored visible to clients.
        """
        self._pool = pool
        self._known = known
        self._note = note
        self._serve = serve
        self._met: dict[str, ClientCapabilities] = {}
        self._met_at: dict[str, float] = {}
        self._shares: Holdings[str] = Holdings()
        self._waited: set[str] = set()
        self._records: dict[str, _Record] = {}
        self._changed = Signal()
        self._places = anyio.Semaphore(AT_ONCE)

    def note_client(self, client_capabilities: ClientCapabilities, quota_key: str) -> str:
        """Return the key of the capabilities that this client's lists depend on, and list upstreams for it from now on.

        Empty if the client gets the list for all clients.
        """
        key = client_capabilities.key
        if client_capabilities == self._base:
            return ""
        if key in self._met:
            self._shares.used(key)
        elif self._has_room(quota_key):
            self._met[key] = client_capabilities
            self._shares.note(key, quota_key)
            self._changed.set()
        if key in self._met:
            self._met_at[key] = anyio.current_time()
        return key

    def _has_room(self, quota_key: str) -> bool:
        """Return True if there is room for one more set of a client; a client with more sets makes room for it."""
        if len(self._met) < MAX_SETS:
            return True
        most, first, held_by = self._shares.largest(), self._shares.first_to_go(), self._shares.held_by
        assert most is not None and first is not None
        is_first_with_key = not held_by(quota_key) and is_anonymous(most) and not is_anonymous(quota_key)
        is_idle = anyio.current_time() - self._met_at[first] > IDLE_SECONDS
        # Two clients must not take turns: each new set is listed for.
        if held_by(most) <= held_by(quota_key) + 1 and not is_first_with_key and not is_idle:
            return False
        self._shares.forget(first)
        del self._met[first], self._met_at[first]
        self._waited.discard(first)
        for record in self._records.values():
            record.done.discard(first)
            record.stale.discard(first)
        return True

    def is_ready(self, key: str) -> bool:
        """Return True if clients need not wait (any more) for the lists for these capabilities."""
        return key in self._waited or key not in self._met

    async def wait(self, key: str) -> None:
        """Wait until the lists for these capabilities are known, for at most `FIRST_WAIT` seconds."""
        with anyio.move_on_after(FIRST_WAIT):
            await self._changed.until(
                lambda: not any(self._lacks(upstream, key) for upstream in self._pool.upstreams.values())
            )
            await self._serve()
        if key in self._met:
            self._waited.add(key)

    def listed(self, upstream: Upstream, listed: Listed) -> None:
        """Note that an upstream was listed for all clients: differences from that list may have changed."""
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
        """List every upstream again at once."""
        for record in self._records.values():
            record.stale |= record.done
            record.again_at = record.retry_at = -math.inf
        self._changed.set()

    def failed(self, upstream: Upstream) -> None:
        """Note that an upstream is unreachable, so that no client waits for it."""
        self._record(upstream).has_failed = True
        self._changed.set()

    async def run(self) -> None:
        """Run due listings for as long as the owner's task group lives."""
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

    def _wanted(self, upstream: Upstream) -> dict[str, ClientCapabilities]:
        """Return the capability sets to list for: first those that probe for a difference, then all if there is one."""
        if not self._met:
            return {}
        known = self._differences(upstream)
        if known is None:
            return {}
        probes = {each.key: each for each in self._probes}
        met = self._met if any(known.get(key) for key in probes) else {}
        return {key: each for key, each in (probes | met).items() if each != self._base}

    def _differences(self, upstream: Upstream) -> Mapping[str, Difference] | None:
        """Return the known differences of an upstream, or None if it need not be listed for these clients."""
        if upstream.connector.era == MODERN and not any(each.extended for each in self._met.values()):
            return None
        return self._known(upstream.upstream_id)

    @property
    def _base(self) -> ClientCapabilities:
        """Return the capabilities that the session for the common list announces."""
        local = self._pool.local
        return NO_CAPABILITIES if local is None else local.client_capabilities

    @property
    def _probes(self) -> tuple[ClientCapabilities, ...]:
        """Return the capability sets that show if an upstream's list depends on capabilities at all."""
        base, everything = self._base, reduce(union, self._met.values(), EVERYTHING)
        if base == NO_CAPABILITIES:
            return (everything,)
        has_more = any(union(base, each) != base for each in self._met.values())
        return (NO_CAPABILITIES, everything) if has_more else (NO_CAPABILITIES,)

    def _due(self, record: _Record) -> list[tuple[float, ClientCapabilities]]:
        """Return the capability sets that are due, each with its time."""
        upstream = record.upstream
        is_reachable = upstream.connector.state in (UpstreamState.READY, UpstreamState.IDLE)
        if (
            upstream.last_listed is None
            or not is_reachable
            or self._pool.upstreams.get(upstream.upstream_id) is not upstream
        ):
            return []
        due = []
        for key, client_capabilities in self._wanted(upstream).items():
            if key not in record.done:
                due.append((record.retry_at, client_capabilities))
            elif key in record.stale:
                due.append((max(record.again_at, record.retry_at), client_capabilities))
        return due

    def _lacks(self, upstream: Upstream, key: str) -> bool:
        known = self._differences(upstream)
        if known is None or self._record(upstream).has_failed or key not in self._met:
            return False
        probes = [each.key for each in self._probes]
        if self._base == NO_CAPABILITIES and probes[0] not in known:
            return True
        # Local clients get lists that are nearly always right for them, and are told of changes.
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
                    record.is_faulty = isinstance(error, AnswerTooLargeError | FaultyListError)
                    first, last = (FIRST_REST, LAST_REST) if record.is_faulty else (FIRST_BACKOFF, LAST_BACKOFF)
                    record.pause = min(max(record.pause * 2, first), last)
                    record.retry_at = anyio.current_time() + record.pause
                self._changed.set()
        finally:
            record.is_busy = False
            self._changed.set()

    async def _list(self, upstream: Upstream, client_capabilities: ClientCapabilities) -> None:
        """List with these capabilities, and again if the list changes at the start of the session."""
        changed = anyio.Event()

        def on_notice(method: str, _params: JsonObject) -> None:
            if announced_kind(method) is not None:
                changed.set()

        era = upstream.connector.era or HANDSHAKE
        async with upstream.connector.open_beside(Questions(client_capabilities), era, on_notice) as connection:
            for _ in range(MAX_LISTINGS):
                changed = anyio.Event()
                found = await self._listed(upstream, connection)
                if found is not None:
                    self._note(upstream, client_capabilities.key, found)
                    if found and client_capabilities.extended:
                        # What it lists may depend on them, and so may what it answers.
                        upstream.connector.lister.note_asked(EXTENSIONS)
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
