"""Everything one request is answered from, as one snapshot: built aside, then swapped in as one reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import anyio
import numpy as np

from pml_gateway.catalog.model import Catalog, CatalogTool
from pml_gateway.catalog.ownership import Ownership
from pml_gateway.catalog.schema import combines_only_at_root
from pml_gateway.catalog.wire import decoded_items, encode, tool_for_version
from pml_gateway.config.settings import Settings
from pml_gateway.exposure.focus import NOT_FOCUSED, FocusedTools
from pml_gateway.exposure.grouping import Namespace, group
from pml_gateway.exposure.instructions import Systems, instructions
from pml_gateway.exposure.meta_tool import RESERVED, MetaTools
from pml_gateway.exposure.modes import ModeExposure, ScoredTools, expose
from pml_gateway.index.search import ToolIndex
from pml_gateway.index.text import ToolDocument
from pml_gateway.index.vectors import Mask
from pml_gateway.policy.client import Client
from pml_gateway.policy.view import View
from pml_gateway.quotas import keep_latest
from pml_gateway.requests.library import ExampleRequest
from pml_gateway.requests.sources import parameter_names
from pml_gateway.telemetry.observe import searching
from pml_gateway.types import ExposureMode, JsonObject, Ranking
from pml_gateway.usage.history import ToolKey
from pml_gateway.workflow.checks import refused_arguments
from pml_gateway.workflow.composite import Composite, bind_composites, read_composites
from pml_gateway.workflow.plan import limits_of

MAX_VIEWS = 256
MAX_LISTS = 64
"""Remembered views and finished lists; the oldest go first."""

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

    def decoded(self) -> list[JsonObject]:
        """Return the list as objects, for transports that write JSON themselves. Slow: call it in a thread."""
        return list(decoded_items(self.tools_json))


class WireCache:
    """Finished JSON per protocol version and tool; tools that a new catalog takes over keep theirs."""

    def __init__(self, catalog: Catalog, previous: WireCache | None = None) -> None:
        self._by_version: dict[str, dict[CatalogTool, bytes]] = {}
        if previous is not None:
            kept = set(catalog.tools)
            # Copied first: lists are made from the one before meanwhile.
            for version, tools in list(previous._by_version.items()):
                self._by_version[version] = {tool: json for tool, json in list(tools.items()) if tool in kept}

    def tool_json(self, tool: CatalogTool, version: str, as_sent: bool = False) -> bytes:
        """Return the tool's definition as this version's JSON; `as_sent` keeps the server's schema if it is sound."""
        if as_sent and tool.repairs and combines_only_at_root(tool.input_schema):
            return encode(tool_for_version({**tool.definition, "inputSchema": tool.input_schema}, version))
        cached = self._by_version.setdefault(version, {})
        if tool not in cached:
            cached[tool] = encode(tool_for_version(tool.definition, version))
        return cached[tool]


NO_META_TOOLS = MetaTools()


@dataclass(frozen=True, eq=False)
class GatewayState:
    """Settings, catalog, index and meta-tools that belong together, with what was derived from them."""

    settings: Settings
    catalog: Catalog
    index: ToolIndex | None
    wire: WireCache
    lists: dict[object, FinishedList] = field(default_factory=dict)
    selected: dict[object, FinishedList] = field(default_factory=dict)
    """Lists that an intent selected, which depend on the index as well."""
    focused: dict[object, FinishedList] = field(default_factory=dict)
    """Lists of sessions that focused on something: apart, or they would put those out that everybody gets."""
    making: dict[object, anyio.Event] = field(default_factory=dict)
    """Set when a list is made: others that want the same one meanwhile wait for it."""
    offer_lists: dict[object, Any] = field(default_factory=dict)
    ranking: tuple[ToolKey, ...] = ()
    meta_tools: MetaTools = NO_META_TOOLS
    starting: tuple[str, ...] = ()
    """Servers of which nothing is known yet, and that have not failed, in the order of the configuration."""
    _instructions: dict[object, str] = field(default_factory=dict)
    _views: dict[object, View] = field(default_factory=dict)
    _namespaces: dict[object, dict[str, Namespace]] = field(default_factory=dict)
    _meta_tools: dict[object, MetaTools] = field(default_factory=dict)

    def view(self, client: Client, *, inside: bool = False) -> View:
        """Tools that this client may see and call, or that steps of composite tools may call for it."""
        key = (client.rules, inside, self.catalog.visibility.group(client.client_capabilities))
        cached = self._views.get(key)
        if cached is None:
            cached = View(self.catalog, client, self.settings.gateway.blacklisted_tools, inside=inside)
            keep_latest(self._views, key, cached, MAX_VIEWS)
        return cached

    def namespaces(self, view: View) -> dict[str, Namespace]:
        """Return the namespaces of a view by name; none unless `gateway.style` asks for them."""
        if self.settings.gateway.style != "namespaces":
            return {}
        cached = self._namespaces.get(view)
        if cached is None:
            taken = {*view.names, *RESERVED}
            cached = group(
                view.searchable,
                self.settings.gateway.namespaces,
                taken=taken,
                ownership=self.catalog.ownership,
                max_length=self.settings.naming.max_length,
            )
            keep_latest(self._namespaces, view, cached, MAX_VIEWS)
        return cached

    def meta_tools_of(self, view: View) -> MetaTools:
        """Return the meta-tools that exist for a view."""
        cached = self._meta_tools.get(view)
        if cached is None:
            cached = MetaTools(*(tool for tool in self.meta_tools if view.has_meta_tool(tool.name)))
            keep_latest(self._meta_tools, view, cached, MAX_VIEWS)
        return cached

    def systems(self, view: View) -> Systems:
        """Return the servers that a view's clients may know of."""
        return Systems([*view.servers], [each for each in self.starting if view.sees_all_of(each)])

    def instructions(self, view: View) -> str:
        """Return the instructions for a view's clients. Blocks the first time: call it in a thread."""
        cached = self._instructions.get(view)
        if cached is None:
            can_search = any(tool.name == "search_tools" for tool in self.meta_tools_of(view).enabled(self.settings))
            budget = self.settings.gateway.instructions_tokens
            cached = instructions(self.systems(view), view.instructions, budget, can_search=can_search)
            keep_latest(self._instructions, view, cached, MAX_VIEWS)
        return cached

    def prepare(self, view: View) -> None:
        """Find out what requests ask a view for first, which takes long in a large catalog."""
        _ = view.tools, view.names, view.searchable, view.servers
        self.namespaces(view)

    @cached_property
    def composites(self) -> dict[str, Composite]:
        """The composite tools by name in the configuration, bound to the tools of this catalog."""
        return composites_of(self.settings, self.catalog)

    def search(
        self, view: View, query: str, limit: int, *, server: str | None = None, ranking: Ranking | None = None
    ) -> SearchOutcome:
        """Return the best visible tools for a query. Blocks for milliseconds: call it in a thread."""
        if not view.searchable:
            return SearchOutcome((), Ranking.LEXICAL)
        if self.index is None:
            return SearchOutcome((), Ranking.LEXICAL, _partial(np.zeros(0, dtype=np.bool_), len(view.searchable)))
        encoded, partial = self.index.encoded, ""
        if server is None and self._index_is_current:
            allowed = view.mask
            if encoded is not None:
                partial = _partial(allowed & encoded, len(view.searchable))
        else:
            # A search may meet an index that is a moment older than the catalog: names tie the two together.
            names = {tool.qualified_name for tool in view.searchable if server is None or tool.upstream_id == server}
            keys = (document.key in names for document in self.index.documents)
            allowed = np.fromiter(keys, np.bool_, len(self.index.documents))
            partial = _partial(allowed if encoded is None else allowed & encoded, len(names))
        with searching():
            by = ranking or self.settings.search.ranking
            result = self.index.search(query, limit=limit, allowed=allowed, ranking=by)
        tools = ((self.catalog.by_name(hit.key), hit.score) for hit in result.hits)
        found = [(tool, score) for tool, score in tools if tool is not None]
        return SearchOutcome(found, result.ranking, partial, result.unknown)

    @cached_property
    def _index_is_current(self) -> bool:
        documents = () if self.index is None else self.index.documents
        return [document.key for document in documents] == [tool.qualified_name for tool in self.catalog.tools]

    def expose(
        self, view: View, mode: ExposureMode, intent: str | None, focused: FocusedTools = NOT_FOCUSED
    ) -> ModeExposure:
        """Return the list for this view in a mode. Blocks if an intent selects: call it in a thread then."""

        def search(query: str, limit: int) -> ScoredTools:
            return self.search(view, query, limit).tools

        used, ownership = self.used(view), self.catalog.ownership
        return expose(
            mode, view.tools, search, self.settings.gateway, intent, used, ownership=ownership, focused=focused
        )

    def used(self, view: View) -> list[CatalogTool]:
        """Return the tools of a view that were called before, most used first; `ranking` stays between refreshes."""
        by_key = {(tool.upstream_id, tool.name): tool for tool in view.tools} if self.ranking else {}
        return [by_key[key] for key in self.ranking if key in by_key]


def _partial(indexed: Mask, tools: int) -> str:
    """Return the warning about an index that is being built, or nothing if all searched tools are indexed."""
    ready = int(np.count_nonzero(indexed))
    return f"{ready} of {tools} tools indexed by meaning so far" if ready < tools else ""


def documents(
    tools: Sequence[CatalogTool], ownership: Ownership, requests: Sequence[tuple[ExampleRequest, ...]] | None = None
) -> list[ToolDocument]:
    """Return the indexed text of each tool with its example requests; another server's name matches none by itself."""
    return [
        ToolDocument(
            key=tool.qualified_name,
            server=tool.upstream_id,
            name=tool.name if ownership.allows(tool.name, tool.upstream_id) else tool.qualified_name,
            title=tool.title,
            description=tool.description,
            parameters=parameter_names(tool),
            requests=tuple(request.text for request in asked),
        )
        for tool, asked in zip(tools, [()] * len(tools) if requests is None else requests, strict=True)
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
            lists={},
            selected={},
            _instructions={},
            focused={},
            _namespaces=before._namespaces if grouped_alike else {},
        )
    else:
        wire = before.wire if catalog is before.catalog else WireCache(catalog, before.wire)
        after = GatewayState(
            settings, catalog, before.index, wire, ranking=before.ranking, meta_tools=before.meta_tools
        )
    for view in list(before._views.values())[-MAX_PREPARED:]:
        after.prepare(after.view(view.client, inside=view.inside))
    _ = catalog.positions, catalog.own_names, catalog.listed_upstreams
    return after


OnSwap = Callable[[GatewayState, GatewayState], None]
"""(before, after), called on the event loop right after a swap."""
