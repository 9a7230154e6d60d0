"""Snapshots of a FastMCP server's tools, from which lists, searches and calls are answered.

Sessions and users may see different tools, and tools may come and go: each set of them that is asked about is one
snapshot. What a request may not see is in none of its answers, because it is not in its snapshot.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import anyio.to_thread
from fastmcp import FastMCP
from fastmcp.server.middleware import Middleware
from fastmcp.server.middleware.dereference import DereferenceRefsMiddleware
from fastmcp.server.transforms import Namespace
from fastmcp.tools import Tool
from fastmcp.utilities.json_schema import dereference_refs

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.model import Catalog, CatalogTool, UpstreamListing
from pml_gateway.catalog.ownership import ILLEGAL, Ownership
from pml_gateway.config.settings import Settings
from pml_gateway.exposure.meta_tool import RESERVED, MetaTools
from pml_gateway.exposure.patterns import compile_patterns
from pml_gateway.gateway.state import GatewayState, ListCache
from pml_gateway.index.search import ToolIndex
from pml_gateway.log import get_logger
from pml_gateway.text import escaped
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

MAX_SNAPSHOTS = 8
"""Sets of tools that are remembered, one for each group of users that see the same; the oldest go first."""

_NAMESPACE = re.compile(r"Namespace\('([^']+)'\)")

Said = tuple[Any, ...]
"""Everything of a tool that clients can tell, to see whether it is still the same."""


def said(tool: Tool) -> Said:
    """Return what clients can see of a tool. Most parts are the same objects as before, so comparing is fast."""
    return (
        *(tool.name, tool.title, tool.description, tool.parameters, tool.output_schema, tool.annotations),
        *(tool.icons, tool.execution, tool.tags, tool.version, tool.meta, tool.task_config),
    )


def systems(server: FastMCP[Any]) -> tuple[str, ...]:
    """Namespaces of a server's tools: its own, and those of mounted servers."""
    found = [ILLEGAL.sub("_", server.name)]
    for provider in server.providers:
        for transform in provider.transforms:
            # FastMCP says the prefix of a namespace nowhere else.
            named = _NAMESPACE.fullmatch(repr(transform)) if isinstance(transform, Namespace) else None
            if named is not None:
                found.append(named[1])
    return tuple(dict.fromkeys(found))


def inlines_references(middleware: Middleware) -> bool:
    """Return True for FastMCP's own transform, which only rewrites schemas and is slow for each list.

    What it does is done once for each tool here.
    """
    return type(middleware) is DereferenceRefsMiddleware


def inlined(schema: JsonObject) -> JsonObject:
    """Return a schema without references, as FastMCP lists it."""
    return dereference_refs(schema) if '"$ref"' in json.dumps(schema) else schema


def hints_of(tool: Tool) -> JsonObject | None:
    """Return a tool's annotations as they are listed."""
    if tool.annotations is None:
        return None
    return tool.annotations.model_dump(mode="json", by_alias=True, exclude_none=True)


class Snapshot:
    """One set of tools with everything derived from it."""

    def __init__(self, belong_to: tuple[str, ...], told: tuple[Said, ...], state: GatewayState) -> None:
        self.belong_to = belong_to
        self.told = told
        self.state = state
        self.names = frozenset(tool.qualified_name for tool in state.catalog.tools)

    def indexed_by(self, index: ToolIndex | None) -> GatewayState:
        """Return the state, searching by the newest index."""
        if self.state.index is not index:
            self.state = replace(self.state, index=index, lists=ListCache(self.state.lists.whole))
        return self.state


class Snapshots:
    """The sets of tools that were asked about last."""

    def __init__(self, settings: Settings, meta_tools: MetaTools) -> None:
        self._settings = settings
        self._meta_tools = meta_tools
        self.kept: list[Snapshot] = []
        """The latest ones, in the order of their last use."""
        self._raw: dict[str, tuple[Said, JsonObject]] = {}
        self._names: dict[tuple[str, str], str] = {}
        self.catalog = Catalog()
        """The tools of all of them, which one index serves."""

    async def of(self, tools: Sequence[Tool], server: FastMCP[Any]) -> Snapshot:
        """Return the snapshot of exactly these tools of a server."""
        belong_to, told = systems(server), tuple(map(said, tools))
        if (known := self._known(belong_to, told)) is not None:
            return known
        inlines = any(map(inlines_references, server.middleware))
        state = await anyio.to_thread.run_sync(self._built, tools, told, belong_to, inlines)
        if (known := self._known(belong_to, told)) is not None:
            return known
        snapshot = Snapshot(belong_to, told, state)
        self.kept = [*self.kept, snapshot][-MAX_SNAPSHOTS:]
        self.catalog = _merged(each.state.catalog for each in reversed(self.kept))
        tools_kept = [tool for each in self.kept for tool in each.state.catalog.tools]
        self._names = {(tool.upstream_id, tool.name): tool.qualified_name for tool in tools_kept}
        names = {tool.name for tool in tools_kept} | {tool.name for tool in tools}
        self._raw = {name: known for name, known in tuple(self._raw.items()) if name in names}
        return snapshot

    def denies(self, tool: Tool, server: FastMCP[Any]) -> bool:
        """Return True if the blacklist matches a tool that is in no snapshot, such as one for apps."""
        return compile_patterns(self._settings.gateway.blacklisted_tools).matches(self.alone(tool, server))

    def alone(self, tool: Tool, server: FastMCP[Any]) -> CatalogTool:
        """Return a tool that is in no snapshot as rules know it."""
        raw: JsonObject = {"name": tool.name, "inputSchema": tool.parameters, "annotations": hints_of(tool) or {}}
        belong_to = systems(server)
        alone = UpstreamListing(_system_of(tool.name, belong_to), (raw,))
        ownership = Ownership(own=frozenset(belong_to))
        [known] = build_catalog([alone], prefix="never", reserved=RESERVED, ownership=ownership).tools
        return known

    def _known(self, belong_to: tuple[str, ...], told: tuple[Said, ...]) -> Snapshot | None:
        same = (each for each in reversed(self.kept) if (each.belong_to, each.told) == (belong_to, told))
        found = next(same, None)
        if found is not None and found is not self.kept[-1]:
            self.kept = [*(each for each in self.kept if each is not found), found]
        return found

    def _built(
        self, tools: Sequence[Tool], told: Sequence[Said], belong_to: tuple[str, ...], inlines: bool
    ) -> GatewayState:
        by_system: dict[str, list[JsonObject]] = {system: [] for system in belong_to}
        for tool, what in zip(tools, told, strict=True):
            raw = self._definition(tool, what, inlines=inlines)
            if raw:
                by_system[_system_of(tool.name, belong_to)].append(raw)
        listings = [UpstreamListing(system, tuple(raw)) for system, raw in by_system.items()]
        catalog = build_catalog(
            listings,
            prefix=self._settings.naming.prefix,
            max_length=self._settings.naming.max_length,
            reserved=RESERVED,
            earlier=self._names,
            previous=self.kept[-1].state.catalog if self.kept else None,
            # All of them are the author's own, who is free to name tools by their bare names in rules.
            ownership=Ownership(own=frozenset(belong_to)),
        )
        in_order = {tool.name: place for place, tool in enumerate(tools)}
        ordered = tuple(sorted(catalog.tools, key=lambda tool: in_order[tool.name]))
        catalog = replace(catalog, tools=ordered)
        return GatewayState(self._settings, catalog, None, meta_tools=self._meta_tools)

    def _definition(self, tool: Tool, what: Said, *, inlines: bool) -> JsonObject:
        """Return the tool as it is listed; empty if that cannot be written, for one tool's fault is not the others'."""
        known = self._raw.get(tool.name)
        if known is not None and known[0] == what:
            return known[1]
        raw: JsonObject = {}
        try:
            raw = tool.to_mcp_tool(name=tool.name).model_dump(mode="json", by_alias=True, exclude_none=True)
            if inlines:
                raw |= {key: inlined(raw[key]) for key in ("inputSchema", "outputSchema") if key in raw}
        except (ValueError, RecursionError) as error:
            logger.warning("%s: left out, as its definition cannot be written: %s", escaped(tool.name), error)
            raw = {}
        self._raw[tool.name] = (what, raw)
        return raw


def _system_of(name: str, belong_to: tuple[str, ...]) -> str:
    """Return the namespace whose prefix a tool's name has, the longest first; else the server itself."""
    prefixes = sorted(belong_to[1:], key=len, reverse=True)
    return next((system for system in prefixes if name.startswith(f"{system}_")), belong_to[0])


def _merged(newest_first: Iterable[Catalog]) -> Catalog:
    """Return the tools of all catalogs; of two with one name, the newest."""
    newest, *others = newest_first
    tools: dict[str, CatalogTool] = {tool.qualified_name: tool for tool in newest.tools}
    for catalog in others:
        for tool in catalog.tools:
            tools.setdefault(tool.qualified_name, tool)
    if len(tools) == len(newest.tools):
        return newest
    ids = frozenset(tool.upstream_id for tool in tools.values())
    return Catalog(tools=tuple(tools.values()), ownership=Ownership(own=ids))
