"""What upstreams list for some clients only, and the names that therefore do not exist for others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from pml_gateway.mcp.listing import TOOLS, Difference, Offers, gains, names, with_gained
from pml_gateway.types import JsonObject

Names = frozenset[tuple[str, str, str]]
"""(upstream id, kind, its own name or URI)."""

NOTHING: Names = frozenset()


@dataclass(frozen=True)
class Visibility:
    """By what clients can be asked: the names that do not exist for them, and what servers say to them alone.

    `others` is what does not exist for clients of which no upstream was told.
    """

    absent: Mapping[str, Names] = field(default_factory=lambda: MappingProxyType({}))
    others: Names = NOTHING
    said: Mapping[str, Mapping[str, Offers]] = field(default_factory=lambda: MappingProxyType({}))

    def absent_for(self, client_capabilities: str) -> Names:
        """What does not exist for a client that can be asked this."""
        return self.absent.get(client_capabilities, self.others)

    def group(self, client_capabilities: str) -> str:
        """One name for all clients for whom the same exists; empty for those who cannot be asked anything."""
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
    """What one upstream lists for everybody, and the differences for clients by what they can be asked."""

    tools: tuple[JsonObject, ...]
    offers: Offers
    differences: Mapping[str, Difference]


def build_visibility(upstreams: Mapping[str, Variants]) -> Visibility:
    """The visibility of these upstreams; those that list the same for all clients add nothing."""
    differing = {upstream_id: each for upstream_id, each in upstreams.items() if any(each.differences.values())}
    if not differing:
        return Visibility()
    sets = sorted({client_capabilities for each in differing.values() for client_capabilities in each.differences})
    others: set[tuple[str, str, str]] = set()
    absent: dict[str, set[tuple[str, str, str]]] = {client_capabilities: set() for client_capabilities in sets}
    said: dict[str, dict[str, Offers]] = {}
    for upstream_id, each in differing.items():
        everybody = names(each.tools, each.offers)
        extra = {named for other in each.differences.values() for named in other.more()} - everybody
        others |= {(upstream_id, *named) for named in extra}
        for client_capabilities in sets:
            own = each.differences.get(client_capabilities, Difference())
            hidden = (extra - set(own.more())) | set(own.missing)
            absent[client_capabilities] |= {(upstream_id, *named) for named in hidden}
            if gains(own.offers):
                said.setdefault(client_capabilities, {})[upstream_id] = with_gained(each.offers, own.offers)
    return Visibility({key: frozenset(value) for key, value in absent.items()}, frozenset(others), said)


def absent_tools(absent: Names) -> frozenset[tuple[str, str]]:
    """The tools among names, as (upstream id, name)."""
    return frozenset((upstream_id, name) for upstream_id, kind, name in absent if kind == TOOLS)


def absent_offers(absent: Names) -> frozenset[tuple[str, str]]:
    """The prompts, resources and templates among names, as (upstream id, name or URI)."""
    return frozenset((upstream_id, name) for upstream_id, kind, name in absent if kind != TOOLS)
