"""A catalog and a client's rules become that client's view: the one place that says what exists for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pml_gateway.catalog.model import Catalog, CatalogTool
from pml_gateway.catalog.visibility import absent_offers, absent_tools
from pml_gateway.exposure.patterns import compile_patterns
from pml_gateway.policy.client import Client
from pml_gateway.policy.prompts_and_resources import OfferView
from pml_gateway.text import LIKENESS, folded, likenesses

BARE_LIKENESS = 0.75
"""A name without its server's is shorter, and more alike by chance."""

ALIAS_SEPARATORS = (":", "/", ".", "__")


class View:
    """What one client may see and call.

    Listing, search, schema, call, closest names and counts all ask this object, so that a hidden tool cannot be told
    from one that does not exist. `inside` a composite tool, the tools that are hidden for it exist as well. What a
    server offers only to clients that can be asked something else does not exist for this one.
    """

    def __init__(self, catalog: Catalog, client: Client, blacklist: Sequence[str], *, inside: bool = False) -> None:
        allow, deny, denied = (compile_patterns(entries) for entries in (client.allow, client.deny, blacklist))
        absent = catalog.visibility.absent_for(client.client_capabilities)
        unlisted = absent_tools(absent)
        self.catalog = catalog
        self.absent = absent
        self.offers = OfferView(catalog.offers, allow, (deny, denied), absent_offers(absent))
        self.said = {**catalog.offers.upstreams, **catalog.visibility.said.get(client.client_capabilities, {})}
        self.tools = tuple(
            tool
            for tool in catalog.tools
            if (inside or not tool.hidden)
            and (tool.upstream_id, tool.name) not in unlisted
            and allow.matches(tool)
            and not deny.matches(tool)
            and not denied.matches(tool)
        )

    @cached_property
    def names(self) -> frozenset[str]:
        """The qualified names of the visible tools."""
        return frozenset(tool.qualified_name for tool in self.tools)

    @cached_property
    def searchable(self) -> tuple[CatalogTool, ...]:
        """The visible tools that a search may find; those that only run as tasks could not be called."""
        return tuple(tool for tool in self.tools if not tool.task_only)

    @cached_property
    def mask(self) -> npt.NDArray[np.bool_]:
        """Boolean mask of the searchable tools over catalog positions, shape (tools,), for the search index."""
        mask = np.zeros(len(self.catalog.tools), dtype=np.bool_)
        mask[[self.catalog.positions[tool.qualified_name] for tool in self.searchable]] = True
        return mask

    @cached_property
    def servers(self) -> dict[str, int]:
        """Visible tools per upstream, in configuration order; an upstream without any is absent."""
        counts: dict[str, int] = {}
        for tool in self.tools:
            counts[tool.upstream_id] = counts.get(tool.upstream_id, 0) + 1
        return counts

    @cached_property
    def _aliases(self) -> dict[str, list[CatalogTool]]:
        """Tools by each spelling; a bare name never takes part in a spelling that names another tool's server."""
        aliases: dict[str, list[CatalogTool]] = {}
        bare: dict[str, list[CatalogTool]] = {}
        for tool in self.tools:
            spellings = {f"{tool.upstream_id}{separator}{tool.name}" for separator in ALIAS_SEPARATORS}
            for spelling in spellings | {f"mcp__{tool.upstream_id}__{tool.name}"}:
                aliases.setdefault(spelling, []).append(tool)
            bare.setdefault(tool.name, []).append(tool)
        return bare | aliases

    def resolve(self, name: str) -> CatalogTool | None:
        """The visible tool of this name: qualified, `server:tool` and its spellings, or bare when unambiguous."""
        tool = self.catalog.by_name(name)
        if tool is not None and name in self.names:
            return tool
        candidates = self._aliases.get(name, ())
        return candidates[0] if len(candidates) == 1 else None

    def closest(self, name: str, limit: int = 3) -> list[str]:
        """The visible names most like `name`, best first."""
        asked = folded(name)
        scored: dict[str, float] = {}
        for spellings, likeness in ((self._qualified_spellings, LIKENESS), (self._bare_spellings, BARE_LIKENESS)):
            for qualified_name, score in likenesses(asked, spellings, count=limit, likeness=likeness).items():
                scored[qualified_name] = max(score, scored.get(qualified_name, 0.0))
        return sorted(scored, key=lambda candidate: (-scored[candidate], candidate))[:limit]

    @cached_property
    def _qualified_spellings(self) -> dict[str, str]:
        return {tool.qualified_name: folded(tool.qualified_name) for tool in self.tools}

    @cached_property
    def _bare_spellings(self) -> dict[str, str]:
        return {tool.qualified_name: folded(tool.name) for tool in self.tools}
