"""Visibility: names that upstreams list for some clients only, and that therefore do not exist for others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from pml_gateway.mcp.capabilities import union
from pml_gateway.mcp.listing import TOOLS, Difference, Offers, names
from pml_gateway.types import JsonObject

Names = frozenset[tuple[str, str, str]]
"""Names as (upstream id, kind, its own name or URI)."""

NOTHING: Names = frozenset()


@dataclass(frozen=True)
class Visibility:
    """The names that do not exist for clients, and the offers for them alone, by the capabilities of clients.

    `others` are the names that do not exist for clients with capabilities that no upstream was told of.
    """

    absent: Mapping[str, Names] = field(default_factory=lambda: MappingProxyType({}))
    others: Names = NOTHING
    said: Mapping[str, Mapping[str, Offers]] = field(default_factory=lambda: MappingProxyType({}))

    def absent_for(self, client_capabilities: str) -> Names:
        """Return the names that do not exist for a client with these capabilities."""
        return self.absent.get(client_capabilities, self.others)

    def group(self, client_capabilities: str) -> str:
        """Return one key for all clients for which the same exists; empty for those that cannot be asked anything."""
        return self._groups.get(client_capabilities, "")

    @cached_property
    def _groups(self) -> dict[str, str]:
        groups: dict[str, str] = {}
        first: dict[object, str] = {(self.others, ()): ""}
        for client_capabilities, absent in self.absent.items():
            said = tuple(sorted((key, repr(offers)) for key, offers in self.said.get(client_capabilities, {}).items()))
            groups[client_capabilities] = first.setdefault((absent, said), client_capabilities)
        return groups


@dataclass(frozen=True, slots=True)
class Variants:
    """The listing of one upstream for all clients, and the differences by the capabilities of clients."""

    tools: tuple[JsonObject, ...]
    offers: Offers
    differences: Mapping[str, Difference]


def build_visibility(upstreams: Mapping[str, Variants]) -> Visibility:
    """Return the visibility of these upstreams; those that list the same for all clients add nothing."""
    differing = {upstream_id: each for upstream_id, each in upstreams.items() if any(each.differences.values())}
    if not differing:
        return Visibility()
    sets = sorted({client_capabilities for each in differing.values() for client_capabilities in each.differences})
    others: set[tuple[str, str, str]] = set()
    absent: dict[str, set[tuple[str, str, str]]] = {client_capabilities: set() for client_capabilities in sets}
    said: dict[str, dict[str, Offers]] = {}
    for upstream_id, each in differing.items():
        common = names(each.tools, each.offers)
        extra = {named for other in each.differences.values() for named in other.more()} - common
        others |= {(upstream_id, *named) for named in extra}
        for client_capabilities in sets:
            own = each.differences.get(client_capabilities, Difference())
            hidden = (extra - own.more()) | set(own.missing)
            absent[client_capabilities] |= {(upstream_id, *named) for named in hidden}
            if (gained := own.offers.capabilities).declared:
                offers = replace(each.offers, capabilities=union(each.offers.capabilities, gained))
                said.setdefault(client_capabilities, {})[upstream_id] = offers
    return Visibility({key: frozenset(value) for key, value in absent.items()}, frozenset(others), said)


def absent_tools(absent: Names) -> frozenset[tuple[str, str]]:
    """Return the tools among names, as (upstream id, name)."""
    return frozenset((upstream_id, name) for upstream_id, kind, name in absent if kind == TOOLS)


def absent_offers(absent: Names) -> frozenset[tuple[str, str]]:
    """Return the prompts, resources and templates among names, as (upstream id, name or URI)."""
    return frozenset((upstream_id, name) for upstream_id, kind, name in absent if kind != TOOLS)
