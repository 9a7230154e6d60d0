"""Updates of the state: built aside from what servers list and from new settings, then swapped as one reference.

Definitions that were taken over without the lint, of a new server or of all after an upgrade, are read by it later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import anyio
import anyio.to_thread

from pml_gateway.config.settings import Settings
from pml_gateway.gateway.indexing import Indexer
from pml_gateway.gateway.listings import Listings, shapes_catalog
from pml_gateway.gateway.state import CurrentState, GatewayState, successor
from pml_gateway.log import get_logger
from pml_gateway.mcp.listing import Difference, Listed, ListKind
from pml_gateway.results.store import ResultStore
from pml_gateway.signal import CoalescedSignal
from pml_gateway.telemetry.events import Events
from pml_gateway.trust.trust_gate import TrustGate
from pml_gateway.upstreams.capability_listing import CapabilityListings
from pml_gateway.upstreams.pool import SharedUpstreams, UpstreamPool
from pml_gateway.upstreams.sharing import WantedUpstream
from pml_gateway.upstreams.upstream import Upstream
from pml_gateway.working_directory import WorkingDirectory

logger = get_logger(__name__)

COALESCE_SECONDS = 0.03
"""Listings that arrive within this time become one new snapshot."""

READ_AT_ONCE = 32
"""Definitions that the lint reads between two turns of changes."""

READING_WAITS = 60.0
"""Seconds that reading what came unread waits for the index: nobody waits for it, and searches want the processor."""

Announced = tuple[str, ListKind]
"""A server, and the list that it says has changed."""

OnAnnounced = Callable[[Mapping[Announced, bool]], None]
"""Announced list kinds, with True for those whose list changed."""


class TrustReading:
    """The reader of one gateway's unread definitions, which publishes what becomes of all of them."""

    def __init__(self, trust_gate: TrustGate, events: Events, current: CurrentState, indexer: Indexer) -> None:
        self._trust_gate = trust_gate
        self._events = events
        self._current = current
        self._indexer = indexer
        self._unread = CoalescedSignal()

    def tell(self) -> None:
        """Publish what became of definitions, and have read what was not."""
        for event in self._trust_gate.take_news():
            self._events.publish(event)
        if self._trust_gate.has_unread:
            self._unread.ask()

    async def judge_unread(self) -> None:
        """Have the lint read what was taken over without it."""
        unread = await anyio.to_thread.run_sync(self._trust_gate.unlinted)
        # In slices, because a thread cannot be cancelled, and changes wait for this one.
        for part in unread.slices(READ_AT_ONCE):
            async with self._current.turn:
                await self._current.build(partial(self._trust_gate.lint, part))
        if unread.places:
            async with self._current.turn:
                await self._current.build(partial(self._trust_gate.note, unread))
            for event in self._trust_gate.take_news():
                self._events.publish(event)

    async def run(self) -> None:
        """Read once the index stands, for as long as the owner's task group lives."""
        while True:
            await self._unread.next()
            await self._indexer.wait(READING_WAITS)
            await self.judge_unread()


class Updates:
    """The writer of one gateway's state, which follows its servers."""

    def __init__(
        self,
        current: CurrentState,
        listings: Listings,
        results: ResultStore,
        indexer: Indexer,
        reading: TrustReading,
        upstreams: SharedUpstreams,
        working_directory: WorkingDirectory,
        *,
        connects: bool,
    ) -> None:
        self.pool = UpstreamPool(upstreams, working_directory, self)
        self.capability_listings = CapabilityListings(
            self.pool,
            lambda upstream_id: listings.differences(upstream_id, current.now.settings),
            self._differs,
            self.rebuild,
        )
        self.has_list = anyio.Event()
        """Set once a list can be answered without waiting."""
        self._current = current
        self._listings = listings
        self._results = results
        self._indexer = indexer
        self._reading = reading
        self._connects = connects
        self._dirty = CoalescedSignal(COALESCE_SECONDS)
        self._refreshing = anyio.Lock()
        self._saving = anyio.Lock()
        self._on_announced: list[OnAnnounced] = []
        self._announced: dict[Announced, bool] = {}

    def begin(self, wanted: Mapping[str, WantedUpstream]) -> None:
        """Follow the servers of the first settings, and have their catalog indexed."""
        first = self._current.now
        settings = first.settings
        self._current.replace(replace(first, starting=self._starting(first)))
        if first.knows_tools or not any(definition.enabled for definition in settings.servers.values()):
            self.has_list.set()
        self.pool.configure(wanted, self._listings.remembered(settings))
        self._reading.tell()
        self._indexer.request(settings, first.catalog)

    def on_announced(self, callback: OnAnnounced) -> None:
        """Call back with what upstreams announced, once the state to answer from has what they list now."""
        self._on_announced.append(callback)

    async def apply_settings(self, settings: Settings) -> None:
        """Serve by new settings: upstreams that did not change keep their sessions, and calls in flight go on."""
        # One after the other, and with the snapshots in between, or an older one could be swapped in last.
        async with self._current.turn:
            wanted = await anyio.to_thread.run_sync(self.pool.wanted, settings.servers, settings.upstreams)
            # Stored secrets change without the settings that refer to them.
            if settings != self._current.now.settings or not self.pool.has(wanted):
                built = await self._current.build(partial(self._built_for, settings, self._failed(settings)))
                self._take_over(built, wanted)
                self._reading.tell()

    def _take_over(self, built: GatewayState, wanted: Mapping[str, WantedUpstream]) -> None:
        """Everything that new settings change, at once."""
        before, settings = self._current.now.settings, built.settings
        if settings.naming != before.naming:
            self._listings.keep_under(settings.naming)
        is_same = self.pool.has(wanted)
        self.pool.configure(wanted, self._listings.remembered(settings))
        self._results.settings = settings.references
        self._swap(built)
        if not self.pool.upstreams:
            self.has_list.set()
        if not is_same or (settings.servers, settings.upstreams) != (before.servers, before.upstreams):
            self.pool.connect_missing()
        logger.info("settings applied; mode %s", settings.gateway.tools_exposure)
        for section in ("http", "storage"):
            if getattr(settings, section) != getattr(before, section):
                logger.warning("changes under `%s:` need a restart", section)

    async def refresh(self, timeout: float) -> bool:
        """List every upstream anew; whether all of them answered or failed within `timeout` seconds."""
        async with self._refreshing:
            for upstream in self.pool.upstreams.values():
                upstream.connector.mark_pending()
            self.pool.request_all()
            self.capability_listings.renew()
            settled = await self.pool.settled(timeout)
            await self.rebuild()
        return settled

    def listed(self, upstream: Upstream, listed: Listed) -> None:
        """Take over a listing; the snapshot follows with whatever else arrives in the next moment."""
        if self.pool.upstreams.get(upstream.upstream_id) is not upstream:
            # Replaced by a new configuration, and still finishing its calls.
            return
        self._listings.take(upstream.upstream_id, upstream.definition, listed)
        self.capability_listings.listed(upstream, listed)
        for kind, lists_others in listed.announced.items():
            announced = (upstream.upstream_id, kind)
            self._announced[announced] = lists_others or self._announced.get(announced, False)
        self._dirty.ask()

    def joined(self, upstream: Upstream, listed: Listed) -> None:
        """Take over what others who had an upstream before were told; mostly it is what the manifest says."""
        if self._listings.knows(upstream.upstream_id, upstream.definition, listed):
            self.capability_listings.listed(upstream, listed)
        else:
            self.listed(upstream, listed)

    def failed(self, upstream: Upstream) -> None:
        """Mark an upstream's tools stale; they stay listed and found."""
        self.capability_listings.failed(upstream)
        self._dirty.ask()

    def _differs(self, upstream: Upstream, client_capabilities: str, difference: Difference) -> None:
        """Take over what an upstream lists besides for clients of these capabilities."""
        if self._listings.take_difference(upstream.upstream_id, client_capabilities, difference):
            self._dirty.ask()

    async def run(self) -> None:
        """Rebuild whenever upstreams list or fail, for as long as the owner's task group lives."""
        while True:
            await self._dirty.next()
            await self.rebuild()
            if await self.pool.settled(0):
                self.has_list.set()

    async def readmit(self) -> None:
        """Serve by what the owner approved and rejected meanwhile."""
        # Not while the lint's findings are noted, which reads the same file.
        async with self._current.turn:
            is_news = await anyio.to_thread.run_sync(lambda: self._listings.trust_gate.is_news)
        if is_news:
            await self.rebuild()

    async def rebuild(self) -> None:
        """Serve what servers list now, and keep it for the next start."""
        async with self._current.turn:
            settings, before = self._current.now.settings, self._current.now.catalog
            announced, self._announced = self._announced, {}
            built = await self._current.build(partial(self._built, settings, self._failed(settings)))
            if built.catalog is not before or self._starting(built) != self._current.now.starting:
                self._swap(built)
            if announced:
                for callback in self._on_announced:
                    callback(announced)
            self._reading.tell()
        async with self._saving:
            await anyio.to_thread.run_sync(self._listings.saving(self._current.now.catalog))

    def _built_for(self, settings: Settings, failed: frozenset[str]) -> GatewayState:
        """Return the state for new settings, built aside in a thread."""
        before = self._current.now
        if shapes_catalog(settings) == shapes_catalog(before.settings):
            return successor(before, settings, before.catalog)
        return self._built(settings, failed)

    def _built(self, settings: Settings, failed: frozenset[str]) -> GatewayState:
        """Build the state of the current listings, with the previous catalog if it is equal; in a thread."""
        before = self._current.now
        keeps_names = settings.naming.prefix == before.settings.naming.prefix
        catalog = self._listings.catalog(settings, before.catalog, failed, keeps_names=keeps_names)
        return successor(before, settings, before.catalog if catalog.shows_the_same(before.catalog) else catalog)

    def _swap(self, built: GatewayState) -> None:
        """Serve from a new state, with the current index and ranking."""
        before = self._current.now
        starting = self._starting(built)
        self._current.replace(replace(built, index=before.index, ranking=before.ranking, starting=starting))
        if built.catalog is not before.catalog or built.settings.search != before.settings.search:
            self._indexer.request(built.settings, built.catalog)

    def _starting(self, state: GatewayState) -> tuple[str, ...]:
        """Return the servers of a state that have yet to list or fail; none where nothing connects them."""
        if not self._connects:
            return ()
        failed, heard_of = self._failed(state.settings), state.catalog.offers.upstreams
        upstreams = self.pool.upstreams
        return tuple(
            upstream_id
            for upstream_id, definition in state.settings.servers.items()
            if definition.enabled
            and upstream_id not in failed
            and upstream_id not in state.catalog.listed_upstreams
            and heard_of.get(upstream_id) is None
            and (upstream_id not in upstreams or upstreams[upstream_id].last_listed is None)
        )

    def _failed(self, settings: Settings) -> frozenset[str]:
        """Return the upstreams that cannot be reached; one that these settings define anew is yet to be tried."""
        return frozenset(
            upstream_id
            for upstream_id, upstream in self.pool.upstreams.items()
            if upstream.connector.last_error is not None
            and (upstream.definition, upstream.defaults) == (settings.servers.get(upstream_id), settings.upstreams)
        )
