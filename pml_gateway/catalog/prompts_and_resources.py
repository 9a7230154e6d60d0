"""Prompts, resources and templates of all upstreams in one table, under the names that clients use.

A renamed URI is `pml://SERVER/URI`, so that a renamed template is still a template, and what it expands to leads to its
server.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import count
from types import MappingProxyType
from urllib.parse import quote, unquote

from pml_gateway.catalog.fields import sound_offer
from pml_gateway.catalog.hidden_characters import visible
from pml_gateway.catalog.uris import literal_length, matches_template, origin
from pml_gateway.mcp.listing import Offers
from pml_gateway.types import JsonObject

OfferNames = Mapping[tuple[str, str], str]
"""(upstream id, its own name or URI) to the one clients use."""

SCHEME = "pml://"


def public_uris(upstream_id: str, uri: str) -> Iterator[str]:
    """URIs that lead to an upstream's own one; the further ones are for where another lists the first as its own."""
    server = quote(upstream_id, safe="")
    yield f"{SCHEME}{server}/{uri}"
    yield from (f"{SCHEME}{server}:{attempt}/{uri}" for attempt in count(2))


def split_public_uri(uri: str) -> tuple[str, str]:
    """The upstream and its own URI that one of `public_uris` was made of; empty for any other."""
    if not uri.startswith(SCHEME):
        return "", ""
    server, _, own = uri.removeprefix(SCHEME).partition("/")
    return unquote(server.partition(":")[0]), own


def assign_offer_names(
    owners: Sequence[tuple[str, str]], *, is_uri: bool, earlier: OfferNames
) -> dict[tuple[str, str], str]:
    """Give every (upstream id, name) its public name: its own, unless that is hidden or another owner has it already.

    Owners of earlier names keep them, also while they are not listed: those that are follow first in the answer.
    """
    kept: dict[str, tuple[str, str]] = {}
    for owner, name in earlier.items():
        if is_uri or visible(name) == name:
            kept.setdefault(name, owner)
    assigned = {owner: name for name, owner in kept.items()}
    taken = set(kept)
    names: dict[tuple[str, str], str] = {}
    for owner in owners:
        name = assigned.get(owner) or next(name for name in _candidates(owner, is_uri=is_uri) if name not in taken)
        names[owner] = name
        taken.add(name)
    return names | {owner: name for owner, name in assigned.items() if owner not in names}


def _candidates(owner: tuple[str, str], *, is_uri: bool) -> Iterator[str]:
    upstream_id, name = owner
    if is_uri:
        yield name
        yield from public_uris(upstream_id, name)
    elif name := visible(name):
        yield name
    yield f"{upstream_id}__{name}"
    yield from (f"{upstream_id}__{name}_{attempt}" for attempt in count(2))


Permits = Callable[[str, str], bool]
"""(upstream id, its own name or URI): whether a client may see and use it."""


class OfferKind(StrEnum):
    """What can be offered beside tools; the values are those of the manifest."""

    PROMPT = "prompts"
    RESOURCE = "resources"
    TEMPLATE = "templates"


_KEYS: Mapping[OfferKind, str] = {
    OfferKind.PROMPT: "name",
    OfferKind.RESOURCE: "uri",
    OfferKind.TEMPLATE: "uriTemplate",
}
"""Where a definition names itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """One prompt, resource or template: its own name (or URI) at its upstream, and the one clients use."""

    kind: OfferKind
    upstream_id: str
    name: str
    public: str
    definition: JsonObject


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request for a resource goes: the upstream and the URI in its own words."""

    upstream_id: str
    uri: str


NO_NAMES: Mapping[OfferKind, OfferNames] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class OfferTable:
    """All offers in catalog order, with what each upstream said of itself; an unknown upstream is None."""

    offers: tuple[Offer, ...] = ()
    upstreams: Mapping[str, Offers | None] = field(default_factory=lambda: MappingProxyType({}))
    names: Mapping[OfferKind, OfferNames] = field(default_factory=lambda: NO_NAMES)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything a client can observe."""
        facts: list[object] = [[offer.upstream_id, offer.name, offer.definition] for offer in self.offers]
        for upstream_id, said in self.upstreams.items():
            facts.append(upstream_id)
            if said is not None:
                facts += [said.instructions, said.has_prompts, said.has_resources, said.completes, said.subscribes]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    def of_kind(self, kind: OfferKind) -> tuple[Offer, ...]:
        """The offers of one kind."""
        return self._by_kind[kind]

    def find(self, kind: OfferKind, public: str) -> Offer | None:
        """The offer that clients know by this name or URI."""
        return self._by_public.get((kind, public))

    def routes(self, uri: str, permits: Permits) -> list[Route]:
        """The upstreams that may have a resource, the likeliest first; none where nothing permitted may have it.

        A listed URI has one owner. Others go to the template that fits most closely, then to a server that has
        resources of the same origin (scheme and authority), or the only one that has resources at all.
        """
        listed = self.find(OfferKind.RESOURCE, uri)
        if listed is not None and permits(listed.upstream_id, listed.name):
            return [Route(listed.upstream_id, listed.name)]
        routes = self._addressed(uri) or [*self._by_template(uri, permits), *self._by_origin(uri, permits)]
        return list(dict.fromkeys(route for route in routes if permits(route.upstream_id, route.uri)))

    def public_uri(self, upstream_id: str, uri: str) -> str:
        """The URI under which clients reach what an upstream calls `uri`."""
        offer = self._owned.get((upstream_id, uri))
        if offer is not None:
            return offer.public
        said = self.upstreams.get(upstream_id)
        if said is None or not said.has_resources or uri.startswith(("http://", "https://")):
            # Not the upstream's to serve: clients fetch such URIs by themselves.
            return uri
        routes = self.routes(uri, lambda _upstream_id, _name: True)
        if routes and routes[0] == Route(upstream_id, uri):
            return uri
        return next(each for each in public_uris(upstream_id, uri) if self.find(OfferKind.RESOURCE, each) is None)

    @cached_property
    def renames(self) -> bool:
        """Whether more than one upstream has resources, so that URIs in results have to be looked at."""
        return sum(1 for said in self.upstreams.values() if said is not None and said.has_resources) > 1

    @cached_property
    def _by_kind(self) -> dict[OfferKind, tuple[Offer, ...]]:
        return {kind: tuple(offer for offer in self.offers if offer.kind is kind) for kind in OfferKind}

    @cached_property
    def _by_public(self) -> dict[tuple[OfferKind, str], Offer]:
        return {(offer.kind, offer.public): offer for offer in self.offers}

    @cached_property
    def _owned(self) -> dict[tuple[str, str], Offer]:
        return {(offer.upstream_id, offer.name): offer for offer in self.of_kind(OfferKind.RESOURCE)}

    @cached_property
    def _templates(self) -> list[Offer]:
        """The templates, those with the most fixed characters first."""
        return sorted(self.of_kind(OfferKind.TEMPLATE), key=lambda offer: -literal_length(offer.name))

    @cached_property
    def _origins(self) -> dict[str, set[str]]:
        """Upstream id to the origins of what it lists."""
        origins: dict[str, set[str]] = {}
        for offer in self.offers:
            if offer.kind is not OfferKind.PROMPT:
                origins.setdefault(offer.upstream_id, set()).update(origin(offer.name))
        return origins

    def _addressed(self, uri: str) -> list[Route]:
        upstream_id, own = split_public_uri(uri)
        said = self.upstreams.get(upstream_id)
        return [Route(upstream_id, own)] if said is not None and said.has_resources else []

    def _by_template(self, uri: str, permits: Permits) -> Iterable[Route]:
        for template in self._templates:
            prefix = template.public.removesuffix(template.name)
            if not uri.startswith(prefix) or not permits(template.upstream_id, template.name):
                continue
            own = uri.removeprefix(prefix)
            if matches_template(template.name, own):
                yield Route(template.upstream_id, own)

    def _by_origin(self, uri: str, permits: Permits) -> Iterable[Route]:
        able = [
            upstream_id
            for upstream_id, said in self.upstreams.items()
            if said is not None and said.has_resources and permits(upstream_id, uri)
        ]
        wanted = origin(uri)
        for part in wanted:
            yield from (Route(each, uri) for each in able if part in self._origins.get(each, ()))
        if len(able) == 1:
            yield Route(able[0], uri)


def build_offers(
    upstreams: Mapping[str, Offers | None], earlier: Mapping[OfferKind, OfferNames] = NO_NAMES
) -> OfferTable:
    """The table of what these upstreams offer, in their order.

    Args:
        upstreams: server id to its offers; None for one that has not been heard of yet.
        earlier: names given in earlier builds, which their owners keep.
    """
    offers: list[Offer] = []
    names: dict[OfferKind, OfferNames] = {}
    for kind in OfferKind:
        found = _unique(kind, upstreams)
        kept = {owner: name for owner, name in earlier.get(kind, {}).items() if owner[0] in upstreams}
        names[kind] = assign_offer_names(list(found), is_uri=kind is not OfferKind.PROMPT, earlier=kept)
        for (upstream_id, name), raw in found.items():
            public = names[kind][upstream_id, name]
            definition = {**sound_offer(raw, kind), _KEYS[kind]: public}
            offers.append(Offer(kind, upstream_id, name, public, definition))
    return OfferTable(tuple(offers), MappingProxyType(dict(upstreams)), MappingProxyType(names))


def _unique(kind: OfferKind, upstreams: Mapping[str, Offers | None]) -> dict[tuple[str, str], JsonObject]:
    """Every definition by its owner and own name; what has no name cannot be asked for."""
    found: dict[tuple[str, str], JsonObject] = {}
    for upstream_id, said in upstreams.items():
        listed: Sequence[JsonObject] = getattr(said, kind) if said is not None else ()
        for raw in listed:
            name = raw.get(_KEYS[kind])
            if isinstance(name, str) and name:
                found.setdefault((upstream_id, name), raw)
    return found
