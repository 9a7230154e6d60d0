"""Everything one request is answered from, as one snapshot: built aside, then swapped in as one reference."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import numpy as np

from pml_gateway.activity.history import ToolKey
from pml_gateway.catalog.model import Catalog, CatalogTool
from pml_gateway.catalog.ownership import Ownership
from pml_gateway.catalog.prompts_and_resources import Offer, OfferKind
from pml_gateway.catalog.skills import skill_description, skill_name
from pml_gateway.config.settings import Settings
from pml_gateway.example_queries.library import ExampleQuery
from pml_gateway.example_queries.sources import parameter_names
from pml_gateway.exposure.grouping import Namespace, group
from pml_gateway.exposure.history import NOTHING_FOLLOWED, Followed
from pml_gateway.exposure.instructions import Systems, instructions
from pml_gateway.exposure.meta_tool import RESERVED, MetaTools
from pml_gateway.exposure.modes import JudgedTool, ModeExposure, ScoredTools, expose, lists_meta_tools
from pml_gateway.index.evidence import Mask
from pml_gateway.index.search import MIN_CANDIDATES, SearchResult, ToolIndex
from pml_gateway.index.text import ToolDocument
from pml_gateway.policy.call_rules import CallRules
from pml_gateway.policy.principal import Principal, rights, with_rights
from pml_gateway.policy.sets import Rights
from pml_gateway.policy.view import View
from pml_gateway.quotas import keep_latest
from pml_gateway.telemetry.observe import searching
from pml_gateway.types import Effect, ExposureMode, Ranking
from pml_gateway.workflow.checks import refused_arguments
from pml_gateway.workflow.composite import COMPOSITES, Composite, bind_composites, read_composites
from pml_gateway.workflow.plan import limits_of

MAX_VIEWS = 256
MAX_LISTS = 64
MAX_RIGHTS = 4096
"""Remembered views, finished lists, and rights of clients; the oldest go first."""

MAX_PREPARED = 16
"""Views of the state before, the newest ones, that are made for the next one before it serves."""


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """Result of a search: visible tools with calibrated scores, best first, and the evidence that ranked them."""

    tools: ScoredTools
    ranking: Ranking
    partial: str = ""
    """Warning about tools that are not indexed yet."""

    unknown: tuple[str, ...] = ()
    """Words that say what the query is about and that no visible tool knows."""


@dataclass(frozen=True, slots=True)
class FinishedList:
    """The JSON array of a list, a hash of it to compare lists by, and the servers that have something on it."""

    tools_json: bytes
    digest: bytes
    servers: frozenset[str] = frozenset()


NO_META_TOOLS = MetaTools()


@dataclass(frozen=True, slots=True)
class ListCache:
    """Finished lists of one state by what they depend on; those that an intent selected depend on the index as well.

    Lists that follow what a session did are apart, or they would put those out that everybody gets. `making` has
    an event for each list that is being made, for others that want the same one.
    """

    whole: dict[object, FinishedList] = field(default_factory=dict)
    selected: dict[object, FinishedList] = field(default_factory=dict)
    followed: dict[object, FinishedList] = field(default_factory=dict)
    making: dict[object, anyio.Event] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ViewCache:
    """Values derived from one catalog for each set of rights, and from a view."""

    views: dict[object, View] = field(default_factory=dict)
    meta_tools: dict[object, MetaTools] = field(default_factory=dict)
    offers: dict[object, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class GatewayState:
    """Settings, catalog, index and meta-tools that belong together, with what was derived from them."""

    settings: Settings
    catalog: Catalog
    index: ToolIndex | None
    ranking: tuple[ToolKey, ...] = ()
    meta_tools: MetaTools = NO_META_TOOLS
    starting: tuple[str, ...] = ()
    """Servers of which nothing is known yet, and that have not failed, in the order of the configuration."""
    lists: ListCache = field(default_factory=ListCache)
    cached: ViewCache = field(default_factory=ViewCache)
    _instructions: dict[object, str] = field(default_factory=dict)
    _namespaces: dict[object, dict[str, Namespace]] = field(default_factory=dict)
    _rights: dict[object, Rights | None] = field(default_factory=dict)
    _settings: dict[object, Settings] = field(default_factory=dict)

    @property
    def knows_tools(self) -> bool:
        """Return True if a tool of any upstream is known; composite tools do not count."""
        return any(tool.upstream_id != COMPOSITES for tool in self.catalog.tools)

    def with_current_rights(self, client: Principal) -> Principal | None:
        """Return a client with the rights that it has now; None if it may no longer ask."""
        key = (client.kind, client.shown, client.sets, client.client_name)
        if key not in self._rights:
            keep_latest(self._rights, key, rights(client, self.settings), MAX_RIGHTS)
        given = self._rights[key]
        return None if given is None else with_rights(client, given)

    def settings_of(self, client: Principal) -> Settings:
        """Return the settings with what the rights of this client replace."""
        replaced = (client.rules.preset, client.rules.meta_tools, client.rules.direct_calls)
        if not any(each is not None for each in replaced):
            return self.settings
        cached = self._settings.get(replaced)
        if cached is None:
            cached = self.settings.model_copy(update={"gateway": client.rules.replacing(self.settings.gateway)})
            keep_latest(self._settings, replaced, cached, MAX_VIEWS)
        return cached

    def view(self, client: Principal, *, inside: bool = False, for_apps: bool = False) -> View:
        """Tools that this client may see and call, or that steps of composite tools or user interfaces may call."""
        key = (client.rules, inside, for_apps, self.catalog.visibility.group(client.client_capabilities))
        cached = self.cached.views.get(key)
        if cached is None:
            hidden = self.settings.gateway.blacklisted_tools
            cached = View(self.catalog, client, hidden, inside=inside, for_apps=for_apps)
            keep_latest(self.cached.views, key, cached, MAX_VIEWS)
        return cached

    def namespaces(self, view: View) -> dict[str, Namespace]:
        """Return the namespaces of a view by name; none unless `gateway.style` asks for them."""
        if self.settings.gateway.style != "namespaces":
            return {}
        cached = self._namespaces.get(view)
        if cached is None:
            taken = {*view.names, *RESERVED}
            cached = group(
                view.tools,
                self.settings.gateway.namespaces,
                taken=taken,
                ownership=self.catalog.ownership,
                max_length=self.settings.naming.max_length,
            )
            keep_latest(self._namespaces, view, cached, MAX_VIEWS)
        return cached

    def meta_tools_of(self, view: View) -> MetaTools:
        """Return the meta-tools that exist for a view."""
        cached = self.cached.meta_tools.get(view)
        if cached is None:
            cached = MetaTools(*(tool for tool in self.meta_tools if view.has_meta_tool(tool.name)))
            keep_latest(self.cached.meta_tools, view, cached, MAX_VIEWS)
        return cached

    def systems(self, view: View) -> Systems:
        """Return the servers that a view's clients may know of."""
        starting = [each for each in self.starting if view.sees_all_of(each)]
        # What has not listed anything yet may have tools of any effect.
        is_complete = all(
            name in self.catalog.listed_upstreams or not definition.enabled or not view.may_have_tools_of(name)
            for name, definition in self.settings.servers.items()
        )
        known = dict.fromkeys((*view.servers, *view.skilled_servers))
        return Systems([*known], starting, view.effect if is_complete else Effect.UNKNOWN, bool(view.skills))

    def instructions(self, view: View, mode: ExposureMode) -> str:
        """Return the instructions for a view's clients. Blocks the first time: call it in a thread."""
        lists_search = lists_meta_tools(mode, self.settings_of(view.client).gateway)
        cached = self._instructions.get((view, lists_search))
        if cached is None:
            enabled = self.meta_tools_of(view).enabled(self.settings_of(view.client))
            can_search = lists_search and any(tool.name == "search_tools" for tool in enabled)
            budget = self.settings.gateway.instructions_tokens
            cached = instructions(self.systems(view), view.instructions, budget, can_search=can_search)
            keep_latest(self._instructions, (view, lists_search), cached, MAX_VIEWS)
        return cached

    def prepare(self, view: View) -> None:
        """Find out what requests ask a view for first, which takes long in a large catalog."""
        _ = view.tools, view.names, view.servers
        self.namespaces(view)

    @cached_property
    def composites(self) -> dict[str, Composite]:
        """The composite tools by name in the configuration, bound to the tools of this catalog."""
        return composites_of(self.settings, self.catalog)

    @cached_property
    def call_rules(self) -> CallRules:
        """The rules about single calls."""
        return CallRules(self.settings.rules, self.catalog.ownership)

    def search(
        self, view: View, query: str, limit: int, *, servers: Collection[str] = (), ranking: Ranking | None = None
    ) -> SearchOutcome:
        """Return the best visible tools for a query. Blocks for milliseconds: call it in a thread."""
        if not view.tools:
            return SearchOutcome((), Ranking.LEXICAL)
        if self.index is None:
            return SearchOutcome((), Ranking.LEXICAL, _partial(np.zeros(0, dtype=np.bool_), len(view.tools)))
        allowed, encoded, warning = self._allowed(view, servers), self.index.encoded, ""
        if encoded is not None or servers or not self._index_is_current:
            searched = sum(not servers or tool.upstream_id in servers for tool in view.tools)
            warning = _partial(allowed if encoded is None else allowed & encoded, searched)
        with searching():
            by = ranking or self.settings.search.ranking
            result = self.index.search(query, limit=limit, allowed=allowed, ranking=by)
        tools = ((self.catalog.by_name(hit.key), hit.score) for hit in result.hits)
        found = [(tool, score) for tool, score in tools if tool is not None]
        return SearchOutcome(found, result.ranking, warning, result.unknown)

    def search_skills(
        self, view: View, query: str, servers: Collection[str] = ()
    ) -> tuple[Sequence[tuple[Offer, float]], SearchResult | None]:
        """Return the visible skills for a query, best first, and the search that found them; None without skills.

        They are scored among the tools, so that their scores can be compared; those of tools stay as they are without
        skills. Blocks as `search` does.
        """
        skills = {uri: each for uri, each in view.skills.items() if not servers or each.upstream_id in servers}
        if self.index is None or not skills:
            return (), None
        are_skills = (document.key in skills for document in self.index.documents)
        allowed = self._allowed(view, servers) | np.fromiter(are_skills, np.bool_, len(self.index.documents))
        with searching():
            by = self.settings.search.ranking
            result = self.index.search(query, limit=MIN_CANDIDATES, allowed=allowed, ranking=by)
        return [(skills[hit.key], hit.score) for hit in result.hits if hit.key in skills], result

    def _allowed(self, view: View, servers: Collection[str] = ()) -> Mask:
        """Return the mask (n,) over the index of the tools that a view may find, of some servers or of all."""
        if not servers and self._index_is_current:
            skills = len(self.catalog.offers.of_kind(OfferKind.SKILL))
            return np.pad(view.mask, (0, skills)) if skills else view.mask
        # A search may meet an index that is a moment older than the catalog: names tie the two together.
        documents = () if self.index is None else self.index.documents
        names = {tool.qualified_name for tool in view.tools if not servers or tool.upstream_id in servers}
        return np.fromiter((document.key in names for document in documents), np.bool_, len(documents))

    @cached_property
    def _index_is_current(self) -> bool:
        documents = () if self.index is None else self.index.documents
        skills = self.catalog.offers.of_kind(OfferKind.SKILL)
        indexed = [tool.qualified_name for tool in self.catalog.tools] + [skill.public for skill in skills]
        return [document.key for document in documents] == indexed

    def expose(
        self, view: View, mode: ExposureMode, intent: str | None, followed: Followed = NOTHING_FOLLOWED
    ) -> ModeExposure:
        """Return the list for this view in a mode. Blocks if an intent selects: call it in a thread then."""
        settings, used, ownership = self.settings_of(view.client).gateway, self.used(view), self.catalog.ownership
        select = partial(self.select, view)
        return expose(mode, view.tools, select, settings, intent, used, ownership=ownership, followed=followed)

    def select(self, view: View, intent: str) -> list[JudgedTool]:
        """Return the visible tools found for an intent, as a list judges them. Blocks for milliseconds."""
        if self.index is None or not view.tools:
            return []
        hybrid, by = self.settings_of(view.client).gateway.hybrid, self.settings.search.ranking
        with searching():
            found = self.index.select(
                intent, threshold=hybrid.semantic_threshold, allowed=self._allowed(view), ranking=by
            )
        tools = ((self.catalog.by_name(each.key), each) for each in found)
        return [JudgedTool(tool, each.score, each.cut) for tool, each in tools if tool is not None]

    def used(self, view: View) -> list[CatalogTool]:
        """Return the tools of a view that were called before, most used first; `ranking` stays between refreshes."""
        by_key = {(tool.upstream_id, tool.name): tool for tool in view.tools} if self.ranking else {}
        return [by_key[key] for key in self.ranking if key in by_key]


def _partial(indexed: Mask, tools: int) -> str:
    """Return the warning about an index that is being built, or nothing if all searched tools are indexed."""
    ready = int(np.count_nonzero(indexed))
    return f"{ready} of {tools} tools indexed by meaning so far" if ready < tools else ""


def documents(
    tools: Sequence[CatalogTool], ownership: Ownership, examples: Sequence[tuple[ExampleQuery, ...]] | None = None
) -> list[ToolDocument]:
    """Return the indexed text of each tool with its example queries; another server's name matches none by itself."""
    return [
        ToolDocument(
            key=tool.qualified_name,
            server=tool.upstream_id,
            name=tool.name if ownership.allows(tool.name, tool.upstream_id) else tool.qualified_name,
            title=tool.title,
            description=tool.description,
            parameters=parameter_names(tool),
            examples=tuple(example.text for example in asked),
            is_destructive=tool.effect is Effect.DESTRUCTIVE,
        )
        for tool, asked in zip(tools, [()] * len(tools) if examples is None else examples, strict=True)
    ]


def skill_documents(skills: Iterable[Offer]) -> list[ToolDocument]:
    """Return the indexed text of each skill, which follows that of tools in an index."""
    return [
        ToolDocument(each.public, each.upstream_id, skill_name(each), "", skill_description(each), parameters=())
        for each in skills
    ]


def composites_of(settings: Settings, catalog: Catalog) -> dict[str, Composite]:
    """Return the composite tools of a configuration, each with what it misses in a catalog."""
    read = read_composites(settings.workflows, limits_of(settings.workflow))
    return bind_composites(read, catalog, refused_arguments)


def successor(before: GatewayState, settings: Settings, catalog: Catalog) -> GatewayState:
    """Return the state for these settings and this catalog, with the views that are in use; call it in a thread.

    Of what was derived from the state before, all that would come out the same is taken over.
    """
    was, now = before.settings.gateway, settings.gateway
    if catalog is before.catalog and now.blacklisted_tools == was.blacklisted_tools:
        grouped_alike = (now.style, now.namespaces, settings.naming) == (
            was.style,
            was.namespaces,
            before.settings.naming,
        )
        after = replace(
            before,
            settings=settings,
            lists=ListCache(),
            _instructions={},
            _rights={},
            _settings={},
            _namespaces=before._namespaces if grouped_alike else {},
        )
    else:
        after = GatewayState(settings, catalog, before.index, before.ranking, before.meta_tools)
    for view in list(before.cached.views.values())[-MAX_PREPARED:]:
        after.prepare(after.view(view.client, inside=view.inside))
    _ = catalog.positions, catalog.own_names, catalog.listed_upstreams
    return after


OnSwap = Callable[[GatewayState, GatewayState], None]
"""(before, after), called on the event loop right after a swap."""

ResultT = TypeVar("ResultT")


class CurrentState:
    """The state that requests are answered from, which is only ever replaced as a whole."""

    def __init__(self, first: GatewayState) -> None:
        self.now = first
        self.turn = anyio.Lock()
        """Held by who builds the next state."""
        # Of its own, so that new rights never wait for threads that make lists or encode.
        self._builders = anyio.CapacityLimiter(1)
        self._on_swap: list[OnSwap] = []

    def on_swap(self, callback: OnSwap) -> Callable[[], None]:
        """Call back after every swap of the state; returns the function that ends this."""
        self._on_swap.append(callback)
        return lambda: self._on_swap.remove(callback)

    async def build(self, work: Callable[[], ResultT]) -> ResultT:
        """Work on the next state in a thread; hold the turn meanwhile."""
        return await anyio.to_thread.run_sync(work, limiter=self._builders)

    def replace(self, after: GatewayState) -> None:
        """Serve from another state."""
        before, self.now = self.now, after
        for callback in list(self._on_swap):
            callback(before, after)

    def swap_index(self, index: ToolIndex) -> None:
        """Serve searches from a new index."""
        self.replace(replace(self.now, index=index, lists=ListCache(self.now.lists.whole)))

    def rank(self, ranking: tuple[ToolKey, ...]) -> None:
        """Fill lists by another ranking."""
        if ranking != self.now.ranking:
            self.replace(replace(self.now, ranking=ranking, lists=ListCache()))
