"""The running gateway: its parts, which live and end with it, and the state that is swapped as one."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

import anyio
import anyio.to_thread

from pml_gateway.catalog.manifest import ManifestFile
from pml_gateway.catalog.model import Catalog
from pml_gateway.config.settings import NamingSettings, Settings
from pml_gateway.exposure.meta_tool import MetaTools
from pml_gateway.gateway.events import ToolsSearched
from pml_gateway.gateway.indexing import Indexer
from pml_gateway.gateway.listings import Listings, shapes_catalog
from pml_gateway.gateway.shared import SharedResources, open_shared
from pml_gateway.gateway.state import NO_META_TOOLS, GatewayState, OnSwap, WireCache, successor
from pml_gateway.gc_pause import collection_put_off
from pml_gateway.index.search import ToolIndex
from pml_gateway.log import get_logger
from pml_gateway.mcp.listing import Difference, Listed, ListKind
from pml_gateway.mcp.transport import OpenStreams
from pml_gateway.paths import Paths
from pml_gateway.policy.view import View
from pml_gateway.processes.budget import RequestBudget
from pml_gateway.processes.exceeded import ExceededSchemas
from pml_gateway.results.etags import Etags
from pml_gateway.results.learning import LearnedShapes
from pml_gateway.results.store import ResultStore, open_results
from pml_gateway.signal import CoalescedSignal
from pml_gateway.state.memory import MemoryStore
from pml_gateway.state.store import Store
from pml_gateway.telemetry.events import Events
from pml_gateway.telemetry.observe import logged_events
from pml_gateway.text import counted
from pml_gateway.trust.admission import Judge
from pml_gateway.trust.pins import PinsFile
from pml_gateway.trust.trust_gate import TrustGate, shipped_judge
from pml_gateway.upstreams.capability_listing import CapabilityListings
from pml_gateway.upstreams.dialogue.local_clients import LocalClients
from pml_gateway.upstreams.pool import UpstreamPool, open_pool
from pml_gateway.upstreams.sharing import WantedUpstream
from pml_gateway.upstreams.upstream import Upstream
from pml_gateway.usage.history import ToolKey, most_used
from pml_gateway.workflow.composite import COMPOSITES
from pml_gateway.working_directory import WorkingDirectory


class CallsInFlight:
    """Return the number of calls in flight."""

    def __init__(self) -> None:
        self._calls = 0
        self._drained: anyio.Event | None = None

    def __bool__(self) -> bool:
        return self._calls > 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count one call for the length of this context."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            if self._calls == 0 and self._drained is not None:
                self._drained.set()

    async def drain(self, timeout: float) -> bool:
        """Wait until no call is in flight, at most `timeout` seconds; whether none is."""
        with anyio.move_on_after(timeout):
            while self._calls:
                self._drained = anyio.Event()
                await self._drained.wait()
        return self._calls == 0


logger = get_logger(__name__)

FIRST_LIST_WAIT = 3.0
"""Seconds the very first start, which has no manifest, waits once upstreams start; with the start-up about five."""

QUIET_START = 1.0
"""With a manifest, upstreams are connected and tools indexed after the first request or this many seconds: the client
comes first. The only client of a gateway is waited for as long without one, to say what it can be asked."""

COALESCE_SECONDS = 0.03
"""Listings that arrive within this time become one new snapshot."""


USABLE_SECONDS = 5.0
"""Searches wait for an index of words and what is stored, and for the model to load; not for vectors to be computed."""

READ_AT_ONCE = 32
"""Definitions that the lint reads between two turns of changes."""

REQUESTS_SECONDS = 1.0
"""Seconds to collect changes of example requests, which are written a server at a time, before the index is rebuilt."""

READING_WAITS = 60.0
"""Seconds that reading what came unread waits for the index: nobody waits for it, and searches want the processor."""

Announced = tuple[str, ListKind]
"""A server, and the list that it says has changed."""

OnAnnounced = Callable[[Mapping[Announced, bool]], None]
"""Announced list kinds, with True for those whose list changed."""

ReadRanking = Callable[[Settings], tuple[ToolKey, ...]]
"""The tools that were called, most used first, where the settings fill lists by them; reads a file."""


class Gateway:
    """One gateway process. Built by `open_gateway`; every answer comes from `state`, which is only ever replaced."""

    def __init__(
        self,
        settings: Settings,
        listings: Listings,
        catalog: Catalog,
        indexer: Indexer,
        pool: UpstreamPool,
        results: ResultStore,
        read_ranking: ReadRanking,
        ranking: tuple[ToolKey, ...],
        events: Events,
        meta_tools: MetaTools,
        shared: SharedResources,
        *,
        connects: bool,
    ) -> None:
        self.events = events
        self._read_ranking = read_ranking
        self._ranking = ranking
        self._listings = listings
        self.trust_gate = listings.trust_gate
        self.requests = shared.requests
        self._unread = anyio.Event()
        self.remembered = listings.remembered
        self.pool = pool
        self.results = results
        self.store: Store = MemoryStore()
        self.etags = Etags(self.store, lambda: self.state.settings.references.ttl_seconds)
        self.shapes = LearnedShapes(
            listings.path.with_suffix(".shapes.json"), lambda: self.state.settings.learning.output_shapes
        )
        self.workers = shared.workers
        self.file_changes = shared.file_changes
        self.exceeded = ExceededSchemas(listings.path.with_suffix(".exceeded.json"))
        self._indexer = indexer
        self._new_requests = CoalescedSignal(REQUESTS_SECONDS)
        self._dirty = anyio.Event()
        self._building = anyio.Lock()
        # Of its own, so that new rights never wait for threads that make lists or encode.
        self._builders = anyio.CapacityLimiter(1)
        self._refreshing = anyio.Lock()
        self._first_list = anyio.Event()
        self._asked = anyio.Event()
        self._started = time.monotonic()
        self._on_swap: list[OnSwap] = []
        self._on_announced: list[OnAnnounced] = []
        self._announced: dict[Announced, bool] = {}
        self.capability_listings = CapabilityListings(
            pool,
            lambda upstream_id: listings.differences(upstream_id, self.state.settings),
            self.differs,
            self._rebuild,
        )
        self._awaited: WeakSet[Upstream] = WeakSet()
        """Servers whose first list was waited for in vain."""
        self._in_flight = CallsInFlight()
        self.call_in_flight = self._in_flight.counted
        self.drain = self._in_flight.drain
        self.state = GatewayState(settings, catalog, None, WireCache(catalog), ranking=ranking, meta_tools=meta_tools)
        self._connects = connects or not self.knows_tools
        self.state = replace(self.state, starting=self._starting(self.state))
        self._saving = anyio.Lock()
        if self.knows_tools or not any(definition.enabled for definition in settings.servers.values()):
            self._first_list.set()

    @property
    def is_ready(self) -> bool:
        """Return True if a list can be answered without waiting."""
        return self._first_list.is_set()

    @property
    def knows_tools(self) -> bool:
        """Return True if a tool of any upstream is known; composite tools do not count."""
        return any(tool.upstream_id != COMPOSITES for tool in self.state.catalog.tools)

    def new_budget(self, share: str) -> RequestBudget:
        """Limits of one client request inside the gateway."""
        return RequestBudget(self.state.settings.limits, self.workers, self.exceeded, share)

    def unlisted(self) -> tuple[str, ...]:
        """Upstreams of which no list is known, from now or from the manifest."""
        known = self.state.catalog.listed_upstreams
        return tuple(
            upstream_id
            for upstream_id, upstream in self.pool.upstreams.items()
            if upstream.last_listed is None and upstream_id not in known
        )

    def listed_at(self, upstream: Upstream) -> float | None:
        """Return when an upstream was last listed, also before this start, or None."""
        listed = upstream.last_listed
        return listed.listed_at if listed else self._listings.listed_at(upstream.upstream_id, upstream.definition)

    def unlisted_owner(self, tool_name: str) -> Upstream | None:
        """Return the upstream whose tool this is by its name, if no list of it is known."""
        upstream_id = self.state.catalog.ownership.of(tool_name)
        return self.pool.upstreams[upstream_id] if upstream_id in self.unlisted() else None

    def unavailable(self, view: View) -> dict[str, str]:
        """Return the servers that may have tools for this view and show none now, each with the reason.

        Only servers of which the view hides nothing. One that its owner disabled is none.
        """
        reasons = {}
        for upstream_id, upstream in self.pool.upstreams.items():
            if upstream_id in view.catalog.listed_upstreams or not view.sees_all_of(upstream_id):
                continue
            if upstream.last_listed is None:
                reasons[upstream_id] = upstream.unlisted_because
            elif upstream.last_listed.tools:
                reasons[upstream_id] = "held back; the owner sees why with: pml trust"
        return reasons

    async def connect_once(self, name: str) -> None:
        """Try once to list the upstream that is named, or whose tool is, if none of its lists is known."""
        upstream = self.pool.upstreams[name] if name in self.unlisted() else self.unlisted_owner(name)
        if upstream is not None:
            upstream.mark_pending()
            upstream.request_connect()
            with anyio.move_on_after(upstream.connect_timeout + 1):
                await upstream.until_tried()
            await self._rebuild()

    def on_swap(self, callback: OnSwap) -> Callable[[], None]:
        """Call back after every swap of the state; returns the function that ends this."""
        self._on_swap.append(callback)
        return lambda: self._on_swap.remove(callback)

    def on_announced(self, callback: OnAnnounced) -> None:
        """Call back with what upstreams announced, once the state to answer from has what they list now."""
        self._on_announced.append(callback)

    async def wait_for_tools(self) -> GatewayState:
        """Return the state to answer from; only a first start without a manifest waits, and not for long."""
        self.note_request()
        return await self.known_tools()

    def note_request(self) -> None:
        """Note that a client was served, so that upstreams may be connected in the meantime."""
        self._asked.set()

    async def known_tools(self) -> GatewayState:
        """Return that state without noting a request: after the first one, idle upstreams are started too."""
        remaining = self._started + FIRST_LIST_WAIT - time.monotonic()
        if remaining > 0:
            with anyio.move_on_after(remaining):
                await self._first_list.wait()
        self._first_list.set()
        return self.state

    async def wait_for_search(self, timeout: float = 0.0) -> GatewayState:
        """Return the state with an index, which is complete if that takes at most `timeout` seconds."""
        await self.wait_for_tools()
        await self.wait_for_usable_index(USABLE_SECONDS)
        await self.wait_for_index(timeout)
        return self.state

    async def first_lists(self, view: View) -> None:
        """Wait a moment for servers of this view that have yet to list their tools; for each of them once only."""
        self.note_request()
        upstreams = [self.pool.upstreams[each] for each in self.state.starting if view.sees_all_of(each)]
        awaited = [upstream for upstream in upstreams if upstream not in self._awaited]
        if not awaited:
            return
        with anyio.move_on_after(FIRST_LIST_WAIT):
            async with anyio.create_task_group() as tasks:
                for upstream in awaited:
                    tasks.start_soon(upstream.until_tried)
        self._awaited.update(awaited)
        await self._rebuild()

    async def wait_for_usable_index(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds; return True if the current catalog has an index, complete or not."""
        return await self._indexer.wait_for_usable_index(timeout)

    async def wait_for_index(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds; return True if the index of the current catalog is complete."""
        return await self._indexer.wait(timeout)

    async def apply_settings(self, settings: Settings) -> None:
        """Serve by new settings: upstreams that did not change keep their sessions, and calls in flight go on."""
        # One after the other, and with the snapshots in between, or an older one could be swapped in last.
        async with self._building:
            wanted = await anyio.to_thread.run_sync(self.pool.wanted, settings.servers, settings.upstreams)
            # Stored secrets change without the settings that refer to them.
            if settings != self.state.settings or not self.pool.has(wanted):
                failed = self._failed(settings)
                built = await anyio.to_thread.run_sync(self._built_for, settings, failed, limiter=self._builders)
                self._take_over(built, wanted)
                self.tell()

    def _take_over(self, built: GatewayState, wanted: Mapping[str, WantedUpstream]) -> None:
        """Everything that new settings change, at once."""
        before, settings = self.state.settings, built.settings
        if settings.naming != before.naming:
            self._listings.keep_under(settings.naming)
        is_same = self.pool.has(wanted)
        self.pool.configure(settings.servers, settings.upstreams, self.remembered(settings), wanted)
        self.results.configure(settings.references)
        self._swap(built)
        if not self.pool.upstreams:
            self._first_list.set()
        if not is_same or (settings.servers, settings.upstreams) != (before.servers, before.upstreams):
            self.pool.connect_missing()
        logger.info("settings applied; mode %s", settings.gateway.tools_exposure)
        if settings.http != before.http:
            logger.warning("changes under `http:` need a restart")

    async def reload(self, settings: Settings) -> None:
        """Serve by settings that were loaded anew, and fill lists by the usage until now."""
        self._ranking = await anyio.to_thread.run_sync(self._read_ranking, settings)
        await self.apply_settings(settings)
        self._rank()

    async def rank(self) -> None:
        """Fill lists by the usage until now; between calls of this they stay as they are."""
        self._ranking = await anyio.to_thread.run_sync(self._read_ranking, self.state.settings)
        self._rank()

    def _rank(self) -> None:
        if self._ranking != self.state.ranking:
            self._replace(replace(self.state, ranking=self._ranking, lists={}, selected={}, focused={}))

    async def refresh(self, timeout: float) -> bool:
        """List every upstream anew; whether all of them answered or failed within `timeout` seconds."""
        async with self._refreshing:
            for upstream in self.pool.upstreams.values():
                upstream.mark_pending()
            self.pool.request_all()
            self.capability_listings.renew()
            settled = await self.pool.settled(timeout)
            await self._rebuild()
            await self.rank()
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
        self._dirty.set()

    def joined(self, upstream: Upstream, listed: Listed) -> None:
        """Take over what others who had an upstream before were told; mostly it is what the manifest says."""
        if self._listings.knows(upstream.upstream_id, upstream.definition, listed):
            self.capability_listings.listed(upstream, listed)
        else:
            self.listed(upstream, listed)

    def differs(self, upstream: Upstream, client_capabilities: str, difference: Difference) -> None:
        """Take over what an upstream lists besides for clients of these capabilities."""
        if self._listings.take_difference(upstream.upstream_id, client_capabilities, difference):
            self._dirty.set()

    def failed(self, upstream: Upstream) -> None:
        """Mark an upstream's tools stale; they stay listed and found."""
        self.capability_listings.failed(upstream)
        self._dirty.set()

    async def follow(self) -> None:
        """Rebuild whenever upstreams list or fail, for as long as the owner's task group lives."""
        while True:
            await self._dirty.wait()
            await anyio.sleep(COALESCE_SECONDS)
            self._dirty = anyio.Event()
            await self._rebuild()
            if await self.pool.settled(0):
                self._first_list.set()

    def requests_changed(self) -> None:
        """Search soon by the requests that the library has now."""
        self._new_requests.ask()

    async def follow_requests(self) -> None:
        """Bring the index up to date whenever requests changed, for as long as the owner's task group lives."""

        async def renew() -> None:
            self._indexer.renew()

        await self._new_requests.run(renew)

    async def readmit(self) -> None:
        """Serve by what the owner approved and rejected meanwhile."""
        # Not while the lint's findings are noted, which reads the same file.
        async with self._building:
            is_news = await anyio.to_thread.run_sync(lambda: self.trust_gate.is_news)
        if is_news:
            await self._rebuild()

    async def judge_unread(self) -> None:
        """Have the lint read what was taken over without it: a new server, or all of them after an upgrade."""
        unread = await anyio.to_thread.run_sync(self.trust_gate.unread)
        # In slices, because a thread cannot be cancelled, and changes wait for this one.
        for part in unread.slices(READ_AT_ONCE):
            async with self._building:
                await anyio.to_thread.run_sync(self.trust_gate.read, part, limiter=self._builders)
        if unread.places:
            async with self._building:
                await anyio.to_thread.run_sync(self.trust_gate.note, unread, limiter=self._builders)
            self._publish_news()

    async def read_in_background(self) -> None:
        """Judge whatever came unread once the index stands, for as long as the owner's task group lives."""
        while True:
            await self._unread.wait()
            self._unread = anyio.Event()
            await self._indexer.wait(READING_WAITS)
            await self.judge_unread()

    def tell(self) -> None:
        """Publish what became of definitions, and have read what was not."""
        self._publish_news()
        if self.trust_gate.has_unread:
            self._unread.set()

    def _publish_news(self) -> None:
        for event in self.trust_gate.take_news():
            self.events.publish(event)

    def tell_in_flight(self, seconds: float) -> None:
        """Say for whose calls an end is put off, and for how long at most; those of other gateways have their own."""
        if not self._in_flight:
            return
        calls = {name: upstream.in_flight for name, upstream in self.pool.upstreams.items() if upstream.in_flight}
        if calls:
            shown = ", ".join(f"{name} ({counted(number, 'call')})" for name, number in calls.items())
            logger.info("finishing calls in flight, at most %g s: %s", seconds, shown)

    async def index(self) -> None:
        """Keep the index current, for as long as the owner's task group lives."""
        await self.first_asked()
        await self._indexer.run(self.swap_index)

    async def first_asked(self) -> None:
        """Wait until a client was served, a moment at most: what is done meanwhile would keep it waiting."""
        if self.knows_tools:
            with anyio.move_on_after(QUIET_START):
                await self._asked.wait()

    async def connect_all(self) -> None:
        """Connect every upstream; where a list can be given already, after the first is."""
        with anyio.move_on_after(QUIET_START):
            if self.pool.local is not None:
                # What it can be asked is told to upstreams when they are connected.
                await self.pool.local.known.wait()
                self._started = time.monotonic()
            if self.knows_tools:
                await self._asked.wait()
        if self.knows_tools:
            await anyio.sleep(COALESCE_SECONDS)

        for upstream in self.pool.upstreams.values():
            upstream.connect_early()

    @property
    def background(self) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
        """Keep the state current until the owner's task group ends."""
        return (
            self.follow,
            self.capability_listings.run,
            self.shapes.run,
            self.exceeded.run,
            self.index,
            self.follow_requests,
            self.read_in_background,
        )

    async def _rebuild(self) -> None:
        async with self._building:
            settings, before = self.state.settings, self.state.catalog
            announced, self._announced = self._announced, {}
            built = await anyio.to_thread.run_sync(
                self._built, settings, self._failed(settings), limiter=self._builders
            )
            if built.catalog is not before or self._starting(built) != self.state.starting:
                self._swap(built)
            if announced:
                for callback in self._on_announced:
                    callback(announced)
            self.tell()
        async with self._saving:
            await anyio.to_thread.run_sync(self._listings.saving(self.state.catalog))

    def _built_for(self, settings: Settings, failed: frozenset[str]) -> GatewayState:
        """Return the state for new settings, built aside in a thread."""
        before = self.state
        if shapes_catalog(settings) == shapes_catalog(before.settings):
            return successor(before, settings, before.catalog)
        return self._built(settings, failed)

    def _built(self, settings: Settings, failed: frozenset[str]) -> GatewayState:
        """Build the state of the current listings, with the previous catalog if it is equal; in a thread."""
        before = self.state
        keeps_names = settings.naming.prefix == before.settings.naming.prefix
        catalog = self._listings.catalog(settings, before.catalog, failed, keeps_names=keeps_names)
        return successor(before, settings, before.catalog if catalog.shows_the_same(before.catalog) else catalog)

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
            if upstream.last_error is not None
            and (upstream.definition, upstream.defaults) == (settings.servers.get(upstream_id), settings.upstreams)
        )

    def swap_index(self, index: ToolIndex) -> None:
        """Serve searches from a new index."""
        self._replace(replace(self.state, index=index, selected={}, focused={}))

    def _swap(self, built: GatewayState) -> None:
        """Serve from a new state, with the current index and ranking."""
        before = self.state
        after = replace(built, index=before.index, ranking=self._ranking, starting=self._starting(built))
        self._replace(after)
        if built.catalog is not before.catalog or built.settings.search != before.settings.search:
            self._indexer.request(built.settings, built.catalog)

    def _replace(self, after: GatewayState) -> None:
        before, self.state = self.state, after
        for callback in list(self._on_swap):
            callback(before, after)


@dataclass(frozen=True, slots=True)
class _Usage:
    """Return the recorded tools of a configuration, most used first."""

    file: Path
    identity: str

    def ranking(self, settings: Settings) -> tuple[ToolKey, ...]:
        """Those that lists are filled by, where the settings want that."""
        return self._most_used(settings) if settings.gateway.hybrid.fallback == "usage" else ()

    def names(self, settings: Settings, catalog: Catalog) -> list[str]:
        """Those of a catalog, by their names in it."""
        owners = self._most_used(settings)
        return [catalog.assignments[owner] for owner in owners if owner in catalog.assignments]

    def _most_used(self, settings: Settings) -> tuple[ToolKey, ...]:
        return most_used(self.file, self.identity)


@asynccontextmanager
async def open_gateway(
    settings: Settings,
    paths: Paths,
    *,
    identity: str,
    meta_tools: MetaTools = NO_META_TOOLS,
    connect: bool = True,
    open_streams: OpenStreams | None = None,
    local: LocalClients | None = None,
    shared: SharedResources | None = None,
    wanted: Mapping[str, WantedUpstream] | None = None,
    events: Events | None = None,
    make_judge: Callable[[], Judge] = shipped_judge,
    working_directory: WorkingDirectory | None = None,
) -> AsyncIterator[Gateway]:
    """Open a gateway with its upstreams, index and manifest; children and sessions end with this context.

    Args:
        settings: what to serve.
        paths: where state lives.
        identity: names the configuration (its file), so that each has a manifest of its own.
        meta_tools: the tools of its own that it serves beside those of its upstreams.
        connect: connect upstreams in the background at once instead of at their first call.
        open_streams: opens the transport of each upstream.
        local: the clients on this machine, which share the sessions of servers; None where there are none.
        shared: what it has in common with other gateways of this process, which then has `open_streams` and `local`.
        wanted: which upstreams its settings mean, where that is known already.
        events: takes what happens to requests; the log alone tells of them unless given.
        make_judge: makes what says which definitions are risky, when it is first asked.
        working_directory: whose folder and variables servers and references get; by default those of this process.
    """
    own = nullcontext(shared) if shared is not None else open_shared(paths, open_streams=open_streams, local=local)
    async with (
        own as common,
        open_pool(common.upstreams, working_directory or WorkingDirectory.here()) as pool,
        open_results(settings.references, paths.results_dir, pool.working_directory) as results,
        anyio.create_task_group() as tasks,
    ):
        usage = _Usage(paths.usage_file, identity)
        indexer = Indexer(paths.cache_dir, requests=common.requests, most_used=usage.names, indexes=common.indexes)
        trust_gate = TrustGate(PinsFile(paths.pins_dir, identity), make_judge)

        def manifests(naming: NamingSettings) -> ManifestFile:
            return ManifestFile.of(paths.manifest_dir, identity, naming.prefix, naming.max_length)

        def read() -> tuple[tuple[ToolKey, ...], Listings, Catalog, Mapping[str, WantedUpstream]]:
            with collection_put_off():
                listings = Listings(manifests, settings.naming, trust_gate, common.manifests, common.catalogs)
                known = listings.catalog(settings, listings.first_names, frozenset())
                found = pool.wanted(settings.servers, settings.upstreams) if wanted is None else wanted
                return usage.ranking(settings), listings, known, found

        ranking, listings, catalog, upstreams = await anyio.to_thread.run_sync(read)
        gateway = Gateway(
            settings,
            listings,
            catalog,
            indexer,
            pool,
            results,
            usage.ranking,
            ranking,
            events or logged_events(),
            meta_tools,
            common,
            connects=connect,
        )
        gateway.events.subscribe(
            ToolsSearched, lambda event: indexer.prefer(tool.qualified_name for tool in event.hits)
        )
        pool.on_listed, pool.on_joined, pool.on_failed = gateway.listed, gateway.joined, gateway.failed
        pool.configure(settings.servers, settings.upstreams, gateway.remembered(settings), upstreams)
        for run in gateway.background:
            tasks.start_soon(run)
        gateway.tell()
        indexer.request(settings, gateway.state.catalog)
        if connect or not gateway.knows_tools:
            tasks.start_soon(gateway.connect_all)
        yield gateway
        tasks.cancel_scope.cancel()
