"""A gateway for the clients of one folder, with its settings. What exists once for the process is in `shared.py`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, closing, nullcontext
from functools import partial
from weakref import WeakSet

import anyio
import anyio.to_thread

from pml_gateway import __version__
from pml_gateway.activity.history import ToolKey, most_used, read_arguments
from pml_gateway.catalog.manifest import ManifestFile
from pml_gateway.catalog.model import Catalog, CatalogTool
from pml_gateway.config.servers import Transport
from pml_gateway.config.settings import Settings
from pml_gateway.example_queries.sharing import shared_library
from pml_gateway.exposure.meta_tool import MetaTools
from pml_gateway.gateway.approval_stores import RedisApprovalStore
from pml_gateway.gateway.decisions import Decider
from pml_gateway.gateway.events import ToolsSearched
from pml_gateway.gateway.indexing import Indexer
from pml_gateway.gateway.limits import CallLimits
from pml_gateway.gateway.listings import Listings
from pml_gateway.gateway.rule_decisions import decide_by_rules
from pml_gateway.gateway.shared import SharedResources, open_shared
from pml_gateway.gateway.state import NO_META_TOOLS, CurrentState, GatewayState
from pml_gateway.gateway.updates import COALESCE_SECONDS, TrustReading, Updates
from pml_gateway.gc_pause import collection_put_off
from pml_gateway.log import get_logger
from pml_gateway.mcp.transport import OpenStreams
from pml_gateway.paths import Paths
from pml_gateway.policy.principal import Principal
from pml_gateway.policy.view import View
from pml_gateway.processes.budget import RequestBudget
from pml_gateway.results.learning import LearnedShapes
from pml_gateway.results.store import ResultStore, open_results
from pml_gateway.signal import CallsInFlight
from pml_gateway.storage.change_feed import ChangeFeed
from pml_gateway.storage.counters import RedisCounters
from pml_gateway.storage.redis import RedisServer, RedisValues, open_redis
from pml_gateway.storage.replicas import Replicas
from pml_gateway.storage.shared_documents import SharedDocuments, open_documents
from pml_gateway.telemetry.events import Events, StorageAsked
from pml_gateway.telemetry.observe import logged_events
from pml_gateway.text import counted
from pml_gateway.trust.admission import Judge
from pml_gateway.trust.pins_file import PinsFile
from pml_gateway.trust.trust_gate import TrustGate, shipped_judge
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.dialogue.local_clients import LocalClients
from pml_gateway.upstreams.sharing import WantedUpstream
from pml_gateway.upstreams.upstream import Upstream
from pml_gateway.working_directory import WorkingDirectory

logger = get_logger(__name__)

FIRST_LIST_WAIT = 3.0
"""Seconds the very first start, which has no manifest, waits once upstreams start; with the start-up about five."""

QUIET_START = 1.0
"""With a manifest, upstreams are connected and tools indexed after the first request or this many seconds: the client
comes first. The only client of a gateway is waited for as long without one, to say what it can be asked."""

USABLE_SECONDS = 5.0
"""Searches wait for an index of words and what is stored, and for the model to load; not for vectors to be computed."""


class Gateway:
    """The gateway of one folder. Built by `open_gateway`; every answer comes from `state`, which `updates` replace."""

    def __init__(
        self,
        shared: SharedResources,
        current: CurrentState,
        listings: Listings,
        results: ResultStore,
        indexer: Indexer,
        most_used: Callable[[], tuple[ToolKey, ...]],
        read_arguments: Callable[[str, Collection[ToolKey]], dict[ToolKey, list[JsonObject]]],
        events: Events,
        working_directory: WorkingDirectory,
        redis: RedisServer | None,
        documents: SharedDocuments | None,
        *,
        connects: bool,
    ) -> None:
        shapes = shared.shapes_of(listings.path)
        self.shared = shared
        self.current = current
        self.results = results
        self.indexer = indexer
        self.events = events
        self.trust_gate = listings.trust_gate
        self.shapes = LearnedShapes(shapes, lambda: self.state.settings.learning.output_shapes)
        self.reading = TrustReading(self.trust_gate, events, current, indexer)
        self.updates = Updates(
            current, listings, results, indexer, self.reading, shared.upstreams, working_directory, connects=connects
        )
        self.pool = self.updates.pool
        self.calls = CallsInFlight()
        self.folder = str(working_directory.folder)
        self.approvals = shared.approvals
        call_limits = shared.call_limits
        if redis is not None:
            call_limits = CallLimits(RedisCounters(redis, lambda: self.state.settings.limits.on_outage == "open"))
        if redis is not None and events.reach(StorageAsked):
            redis.observe = lambda outcome, seconds: events.publish(StorageAsked(outcome, seconds))
        self.documents = documents
        self.replicas = None
        if redis is not None:
            self.replicas = Replicas(redis, ChangeFeed(redis), __version__, self._replica_facts)
            store = RedisApprovalStore(RedisValues(redis), self.replicas.feed)
            self.approvals = shared.approvals.with_store(store, self._is_served_elsewhere)
        self.deciders: list[Decider] = [decide_by_rules, call_limits]
        self._listings = listings
        self._most_used = most_used
        self._read_arguments = read_arguments
        self._asked = anyio.Event()
        self._started = time.monotonic()
        self._awaited: WeakSet[Upstream] = WeakSet()
        """Servers whose first list was waited for in vain."""

    @property
    def state(self) -> GatewayState:
        """Return what requests are answered from now."""
        return self.current.now

    async def pull_documents(self) -> None:
        """Take over what other replicas have changed of keys and accepted definitions; without Redis, go on."""
        if self.documents is not None:
            await anyio.to_thread.run_sync(self.documents.pull_or_warn)

    def _is_served_elsewhere(self) -> bool:
        return self.replicas is not None and any(each.url for each in self.replicas.known[1:])

    def _replica_facts(self) -> tuple[str, int]:
        settings = self.state.settings
        definitions = settings.servers.values()
        stdio = sum(each.enabled and each.resolved_transport is Transport.STDIO for each in definitions)
        return settings.fingerprint(), stdio

    def new_budget(self, quota_key: str) -> RequestBudget:
        """Limits of one client request inside the gateway."""
        return RequestBudget(self.state.settings.limits, self.shared.workers, self.shared.exceeded, quota_key)

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
            upstream.connector.mark_pending()
            upstream.connector.request_connect()
            with anyio.move_on_after(upstream.connect_timeout + 1):
                await upstream.connector.until_tried()
            await self.updates.rebuild()

    async def wait_for_tools(self) -> GatewayState:
        """Return the state to answer from; only a first start without a manifest waits, and not for long."""
        self.note_request()
        return await self.known_tools()

    def note_request(self) -> None:
        """Note that a client was served, so that upstreams may be connected in the meantime."""
        self._asked.set()

    @property
    def silent(self) -> list[str]:
        """Return the servers whose tools the catalog has never known: one may have listed, and not be in it yet."""
        known = self.state.catalog.offers.upstreams
        return [name for name in self.pool.upstreams if known.get(name) is None]

    async def known_tools(self) -> GatewayState:
        """Return that state without noting a request: after the first one, idle upstreams are started too."""
        remaining = self._started + FIRST_LIST_WAIT - time.monotonic()
        if remaining > 0:
            with anyio.move_on_after(remaining):
                await self.updates.has_list.wait()
        self.updates.has_list.set()
        return self.state

    async def wait_for_search(self, timeout: float = 0.0) -> GatewayState:
        """Return the state with an index, which is complete if that takes at most `timeout` seconds."""
        await self.wait_for_tools()
        await self.indexer.wait_for_usable_index(USABLE_SECONDS)
        await self.indexer.wait(timeout)
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
                    tasks.start_soon(upstream.connector.until_tried)
        self._awaited.update(awaited)
        await self.updates.rebuild()

    async def reload(self, settings: Settings) -> None:
        """Serve by settings that were loaded anew, and fill lists by the usage until now."""
        ranking = await anyio.to_thread.run_sync(_ranking, self._most_used, settings)
        await self.updates.apply_settings(settings)
        self.current.rank(ranking)

    async def rank(self) -> None:
        """Fill lists by the usage until now; between calls of this they stay as they are."""
        self.current.rank(await anyio.to_thread.run_sync(_ranking, self._most_used, self.state.settings))

    async def refresh(self, timeout: float) -> bool:
        """List every upstream anew; whether all of them answered or failed within `timeout` seconds."""
        settled = await self.updates.refresh(timeout)
        await self.rank()
        return settled

    async def recorded_arguments(
        self, client: Principal, tools: Collection[CatalogTool]
    ) -> Mapping[CatalogTool, Sequence[JsonObject]]:
        """Return arguments of this client's own recorded calls; none unless `activity.arguments` keeps values."""
        if not (self.state.settings.activity.keeps_values and client.has_own_records):
            return {}
        keys = {(tool.upstream_id, tool.name): tool for tool in tools}
        found = await anyio.to_thread.run_sync(self._read_arguments, client.shown, keys.keys())
        return {keys[key]: arguments for key, arguments in found.items()}

    def tell_in_flight(self, seconds: float) -> None:
        """Say for whose calls an end is put off, and for how long at most; those of other gateways have their own."""
        if not self.calls:
            return
        calls = {name: upstream.activity.in_flight for name, upstream in self.pool.upstreams.items()}
        shown = ", ".join(f"{name} ({counted(number, 'call')})" for name, number in calls.items() if number)
        if shown:
            logger.info("finishing calls in flight, at most %g s: %s", seconds, shown)

    async def index(self) -> None:
        """Keep the index current, for as long as the owner's task group lives."""
        await self.first_asked()
        await self.indexer.run(self.current.swap_index)

    async def first_asked(self) -> None:
        """Wait until a client was served, a moment at most: what is done meanwhile would keep it waiting."""
        if self.state.knows_tools:
            with anyio.move_on_after(QUIET_START):
                await self._asked.wait()

    async def connect_all(self) -> None:
        """Connect every upstream; where a list can be given already, after the first is."""
        with anyio.move_on_after(QUIET_START):
            if self.pool.local is not None:
                # What it can be asked is told to upstreams when they are connected.
                await self.pool.local.known.wait()
                self._started = time.monotonic()
            if self.state.knows_tools:
                await self._asked.wait()
        if self.state.knows_tools:
            await anyio.sleep(COALESCE_SECONDS)
        self.pool.connect_missing()


def _ranking(used: Callable[[], tuple[ToolKey, ...]], settings: Settings) -> tuple[ToolKey, ...]:
    """Return the used tools if menus are ordered or lists filled by them."""
    return used() if settings.activity.record or settings.gateway.hybrid.fallback == "usage" else ()


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
    here = working_directory or WorkingDirectory.here()
    async with (
        own as common,
        open_redis(settings.storage.url, settings.storage.key, here.environ) as redis,
        open_results(settings, paths.results_dir, here, None if redis is None else RedisValues(redis)) as results,
        anyio.create_task_group() as tasks,
    ):
        used = partial(most_used, paths.activity_file, identity)
        indexer = Indexer(paths.cache_dir, examples=common.examples, most_used=used, indexes=common.indexes)
        documents = await anyio.to_thread.run_sync(open_documents, settings.storage, here.environ, redis)
        if documents is not None:
            shared_library(documents, paths.example_queries_dir)
        trust_gate = TrustGate(PinsFile(paths.pins_dir, identity, common.pins, documents), make_judge)

        manifests = partial(ManifestFile, paths.manifest_dir, identity)

        def read() -> tuple[tuple[ToolKey, ...], Listings, Catalog]:
            if documents is not None:
                documents.pull_or_warn()
            with collection_put_off():
                listings = Listings(
                    manifests, settings.naming, trust_gate, common.manifests, common.catalogs, documents
                )
                known = listings.catalog(settings, listings.first_names, frozenset())
                return _ranking(used, settings), listings, known

        ranking, listings, catalog = await anyio.to_thread.run_sync(read)
        current = CurrentState(GatewayState(settings, catalog, None, ranking, meta_tools))
        connects = connect or not current.now.knows_tools
        events = events or logged_events()
        recorded = partial(read_arguments, paths.activity_file, identity)
        gateway = Gateway(
            common,
            current,
            listings,
            results,
            indexer,
            used,
            recorded,
            events,
            here,
            redis,
            documents,
            connects=connects,
        )
        events.subscribe(ToolsSearched, lambda event: indexer.prefer(tool.qualified_name for tool in event.hits))
        if wanted is None:
            wanted = await anyio.to_thread.run_sync(gateway.pool.wanted, settings.servers, settings.upstreams)
        with closing(gateway.pool), gateway.approvals.following():
            updates, reading = gateway.updates, gateway.reading
            updates.begin(wanted)
            for run in (
                updates.run,
                updates.capability_listings.run,
                reading.run,
                gateway.index,
                indexer.follow_examples,
            ):
                tasks.start_soon(run)
            if gateway.replicas is not None and documents is not None:
                tasks.start_soon(gateway.replicas.feed.run)
                tasks.start_soon(gateway.replicas.run)
                tasks.start_soon(documents.run, gateway.replicas.server, gateway.replicas.feed)
            if connects:
                tasks.start_soon(gateway.connect_all)
            yield gateway
            tasks.cancel_scope.cancel()
