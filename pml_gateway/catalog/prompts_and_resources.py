"""Prompts, resources, templates and skills of all upstreams in one table, under the names that clients use.

A renamed URI is `pml://SERVER/URI`, so that a renamed template is still a template, and its expansions lead to its
server; that of a user interface is `ui://pml/SERVER/URI`, as clients show pages of that scheme only. URIs covered by a
server's templates belong to that server: another one configured later gets them renamed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import count
from types import MappingProxyType
from urllib.parse import quote, unquote

from pml_gateway.catalog.fields import sound_offer
from pml_gateway.catalog.hidden_characters import visible
from pml_gateway.catalog.ownership import Ownership
from pml_gateway.catalog.uris import (
    canonical,
    example,
    is_malformed,
    literal_length,
    matches_template,
    origin,
    scheme_of,
    unusable,
    with_scheme,
    written_scheme,
)
from pml_gateway.mcp.listing import Offers
from pml_gateway.types import SEPARATORS, JsonObject

OfferNames = Mapping[tuple[str, str], str]
"""Names or URIs that clients use, by (upstream id, its own name or URI)."""

SCHEME = "pml://"
UI_SCHEME = "ui://"
UI_START = f"{UI_SCHEME}pml/"

Permits = Callable[[str, str], bool]
"""A check by (upstream id, its own name or URI) whether a client may see and use it."""

NO_NAMES: Mapping[OfferKind, OfferNames] = MappingProxyType({})


def public_uris(upstream_id: str, uri: str) -> Iterator[str]:
    """Yield URIs that lead to an upstream's own one; the later ones are used if another upstream lists the first."""
    server = quote(upstream_id, safe="")
    start = UI_START if uri[: len(UI_SCHEME)].lower() == UI_SCHEME else SCHEME
    yield f"{start}{server}/{uri}"
    yield from (f"{start}{server}:{attempt}/{uri}" for attempt in count(2))


def split_public_uri(uri: str) -> tuple[str, str]:
    """Return the upstream and its own URI that one of `public_uris` was made of; empty for any other."""
    start = next((each for each in (SCHEME, UI_START) if uri[: len(each)].lower() == each), None)
    if start is None:
        return "", ""
    server, _, own = uri[len(start) :].partition("/")
    return unquote(server.partition(":")[0]), own


def assign_offer_names(
    owners: Sequence[tuple[str, str]],
    *,
    is_uri: bool,
    earlier: OfferNames,
    ownership: Ownership,
    foreign: Collection[tuple[str, str]] = (),
) -> dict[tuple[str, str], str]:
    """Return a public name for every (upstream id, name): its own, unless it is taken or has hidden characters.

    Owners keep their earlier names, even while they are not listed; the result begins with those that are listed. A
    prompt gets no name that begins with another server's id, and a URI that is `foreign` to its owner is never public.
    """

    def allows(name: str, owner: tuple[str, str]) -> bool:
        return is_uri or (visible(name) == name and ownership.allows(name, owner[0]))

    kept: dict[str, tuple[str, str]] = {}
    for owner, name in earlier.items():
        if allows(name, owner) and (name != owner[1] or owner not in foreign):
            kept.setdefault(name, owner)
    assigned = {owner: name for name, owner in kept.items()}
    taken = set(kept)
    names: dict[tuple[str, str], str] = {}
    for owner in owners:
        candidates = _candidates(owner, is_uri=is_uri, is_foreign=owner in foreign)
        name = assigned.get(owner) or next(name for name in candidates if name not in taken and allows(name, owner))
        names[owner] = name
        taken.add(name)
    return names | {owner: name for owner, name in assigned.items() if owner not in names}


def _candidates(owner: tuple[str, str], *, is_uri: bool, is_foreign: bool) -> Iterator[str]:
    upstream_id, name = owner
    if is_uri:
        if not is_foreign:
            yield name
        yield from public_uris(upstream_id, name)
    elif name := visible(name):
        yield name
    yield f"{upstream_id}__{name}"
    # Without a separator, the name begins with no other server's id, which this server's own id might.
    joined = f"{upstream_id}_{name}"
    while any(separator in joined for separator in SEPARATORS):
        for separator in SEPARATORS:
            joined = joined.replace(separator, "_")
    for attempt in count(2):
        yield f"{upstream_id}__{name}_{attempt}"
        yield f"{joined.rstrip('_')}_{attempt}"


class OfferKind(StrEnum):
    """The kinds of offers in addition to tools; the values are used in the manifest."""

    PROMPT = "prompts"
    RESOURCE = "resources"
    TEMPLATE = "templates"
    SKILL = "skills"


_KEYS: Mapping[OfferKind, str] = {
    OfferKind.PROMPT: "name",
    OfferKind.RESOURCE: "uri",
    OfferKind.TEMPLATE: "uriTemplate",
    OfferKind.SKILL: "uri",
}
"""Field of a definition that identifies it."""

_NAMED = (OfferKind.PROMPT, OfferKind.RESOURCE, OfferKind.TEMPLATE)
"""The kinds that are given names; a skill is reached under the URI of its SKILL.md, a resource, listed or not."""

_WITH_ORIGINS = (OfferKind.RESOURCE, OfferKind.TEMPLATE)
"""The kinds that say which URIs a server serves."""


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """One prompt, resource, template or skill: its own name (or URI) at its upstream, and the one clients use."""

    kind: OfferKind
    upstream_id: str
    name: str
    public: str
    definition: JsonObject


@dataclass(frozen=True, slots=True)
class UriConflict:
    """A URI or template that an upstream lists although another upstream's template covers it."""

    upstream_id: str
    uri: str
    owner_id: str
    template: str


@dataclass(frozen=True, slots=True)
class Route:
    """The destination of a request for a resource: the upstream, and the URI as that upstream spells it."""

    upstream_id: str
    uri: str


@dataclass(frozen=True, slots=True)
class Origins:
    """Origins by upstream id: of resources and templates that keep their URI for clients, and of all."""

    unaddressed: dict[str, set[str]]
    every: dict[str, set[str]]


@dataclass(frozen=True, eq=False)
class OfferTable:
    """All offers in catalog order, with the answers of each upstream; None for one that has not answered yet.

    `held_skills` are skills whose latest form is held back, by upstream id and own URI.
    """

    offers: tuple[Offer, ...] = ()
    upstreams: Mapping[str, Offers | None] = field(default_factory=lambda: MappingProxyType({}))
    names: Mapping[OfferKind, OfferNames] = field(default_factory=lambda: NO_NAMES)
    claims: tuple[UriConflict, ...] = ()
    held_skills: frozenset[tuple[str, str]] = frozenset()

    @cached_property
    def fingerprint(self) -> str:
        """Return a hash of everything that a client can observe."""
        facts: list[object] = [[offer.upstream_id, offer.name, offer.definition] for offer in self.offers]
        facts.append(sorted(self.held_skills))
        for upstream_id, said in self.upstreams.items():
            facts.append(upstream_id)
            if said is not None:
                facts += [said.instructions, said.capabilities.announced]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

    def of_kind(self, kind: OfferKind) -> tuple[Offer, ...]:
        """Return the offers of one kind."""
        return self._by_kind[kind]

    def find(self, kind: OfferKind, public: str) -> Offer | None:
        """Return the offer that clients know by this name or URI."""
        return self._by_public.get((kind, public))

    def routes(
        self, uri: str, permits: Permits, origins: Origins | None = None, knows: Callable[[str], bool] | None = None
    ) -> list[Route]:
        """Return the upstreams that may have a resource, the likeliest first; empty if no permitted one may have it.

        A listed URI has one owner, however it is written. Others go to the template that fits most closely, then to a
        server that has resources of the same origin (scheme and authority), or the only one that has resources at all.
        A URI that the client may not use as it wrote it is not permitted in the server's spelling either. What the
        client does not see decides nothing, or the answers of other servers would tell that it exists: `origins` are
        those of what it sees, and it `knows` the servers that it may see anything of.
        """
        listed = self.find(OfferKind.RESOURCE, uri)
        if listed is not None and permits(listed.upstream_id, listed.name):
            return [Route(listed.upstream_id, listed.name)]
        addressed, own = split_public_uri(uri)
        if addressed in self.upstreams and (knows is None or knows(addressed)):
            candidates = [addressed] if addressed in self._with_resources else []
        else:
            own, candidates = uri, self._candidates(uri, permits, origins or self._origins)
        if is_malformed(own):
            return []
        routes = [Route(upstream_id, self._own_uri(upstream_id, own)) for upstream_id in dict.fromkeys(candidates)]
        return [route for route in routes if permits(route.upstream_id, own) and permits(route.upstream_id, route.uri)]

    def public_uri(self, upstream_id: str, uri: str) -> str:
        """Return the URI under which clients reach the `uri` of an upstream."""
        offer = self._owned.get((upstream_id, uri))
        if offer is not None:
            return offer.public
        if upstream_id not in self._with_resources or scheme_of(uri) in ("http", "https"):
            # The upstream does not serve such URIs: clients fetch them by themselves.
            return uri
        routes = self.routes(uri, lambda _upstream_id, _name: True)
        if routes and routes[0] == Route(upstream_id, self._own_uri(upstream_id, uri)):
            return uri
        return next(each for each in public_uris(upstream_id, uri) if self.find(OfferKind.RESOURCE, each) is None)

    def is_same(self, route: Route, uri: str) -> bool:
        """Return True if an upstream's URI means the requested resource; a URI that it lists separately does not."""
        if uri == route.uri or self.is_listed(route.upstream_id, uri):
            return uri == route.uri
        return canonical(uri) == canonical(route.uri)

    def is_listed(self, upstream_id: str, uri: str) -> bool:
        """Return True if an upstream lists a resource under exactly this URI."""
        return (upstream_id, uri) in self._owned

    @cached_property
    def lookalikes(self) -> frozenset[tuple[str, str]]:
        """Return (upstream id, URI) of resources that differ only insignificantly from others that are listed too."""
        alike = (owned for owned in self._spelled.values() if len(owned) > 1)
        return frozenset(
            (each.upstream_id, each.name) for owned in alike for each in owned if canonical(each.name) != each.name
        )

    @cached_property
    def renames(self) -> bool:
        """Return True if more than one upstream has resources, so that URIs in results have to be checked."""
        return len(self._with_resources) > 1

    @cached_property
    def _with_resources(self) -> tuple[str, ...]:
        known = ((upstream_id, said) for upstream_id, said in self.upstreams.items() if said is not None)
        return tuple(upstream_id for upstream_id, said in known if said.capabilities.offers("resources"))

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
    def _spelled(self) -> dict[tuple[str, str], list[Offer]]:
        """Return the listed resources in any spelling, by (upstream id, canonical URI)."""
        spelled: dict[tuple[str, str], list[Offer]] = {}
        for offer in self.of_kind(OfferKind.RESOURCE):
            spelled.setdefault((offer.upstream_id, canonical(offer.name)), []).append(offer)
        return spelled

    @cached_property
    def _unaddressed(self) -> tuple[Offer, ...]:
        """Return the resources and templates that keep their URI for clients; other URIs name their server."""
        return tuple(offer for offer in self.offers if offer.kind in _WITH_ORIGINS and offer.public == offer.name)

    @cached_property
    def _owners(self) -> dict[str, list[str]]:
        """Return the upstreams that list a URI in any spelling, by canonical URI."""
        owners: dict[str, list[str]] = {}
        for offer in self._unaddressed:
            if offer.kind is OfferKind.RESOURCE:
                owners.setdefault(canonical(offer.name), []).append(offer.upstream_id)
        return owners

    @cached_property
    def _templates(self) -> list[Offer]:
        """Return the templates that keep their URI for clients, those with the most fixed characters first."""
        templates = (offer for offer in self._unaddressed if offer.kind is OfferKind.TEMPLATE)
        return sorted(templates, key=lambda offer: -literal_length(offer.name))

    @cached_property
    def _origins(self) -> Origins:
        return origins_of(self.offers)

    def _own_uri(self, upstream_id: str, uri: str) -> str:
        """Return the URI to request from an upstream: as it lists it, else in canonical form with the scheme it writes.

        Schemes are equal in upper and lower case, but servers that compare texts with their templates ignore that.
        """
        if self.is_listed(upstream_id, uri):
            return uri
        form = canonical(uri)
        spelled = self._spelled.get((upstream_id, form), ())
        if len(spelled) == 1:
            return spelled[0].name
        return with_scheme(form, self._schemes.get((upstream_id, scheme_of(form)), scheme_of(form)))

    @cached_property
    def _schemes(self) -> dict[tuple[str, str], str]:
        """Return schemes as the upstream's first template writes them, by (upstream id, scheme in lower case)."""
        schemes: dict[tuple[str, str], str] = {}
        for offer in self.of_kind(OfferKind.TEMPLATE):
            written = written_scheme(offer.name)
            schemes.setdefault((offer.upstream_id, written.lower()), written)
        return schemes

    def _candidates(self, uri: str, permits: Permits, origins: Origins) -> list[str]:
        """Return the upstreams that may have a resource that no upstream lists in exactly this spelling."""
        form = canonical(uri)
        spelled = {each: self._own_uri(each, form) for each in self._owners.get(form, ())}
        owners = [each for each, own in spelled.items() if permits(each, uri) and permits(each, own)]
        if not owners and self._is_awaited(form, permits):
            return []
        fitting = [
            template
            for template in self._templates
            if (matches_template(template.name, uri) or matches_template(template.name, form))
            and permits(template.upstream_id, template.name)
        ]
        close = [template.upstream_id for template in fitting if scheme_of(template.name)]
        loose = [template.upstream_id for template in fitting if not scheme_of(template.name)]
        # A template with an open scheme claims nothing.
        templates = (offer for offer in self.of_kind(OfferKind.TEMPLATE) if scheme_of(offer.name))
        holders = {
            offer.upstream_id
            for offer in templates
            if (matches_template(offer.name, uri) or matches_template(offer.name, form))
            and permits(offer.upstream_id, offer.name)
        }
        holders |= set(owners)
        candidates = [*owners, *close, *self._by_origin(uri, permits, origins), *loose]
        # Only the holders of a URI answer for it, even if the client may not use theirs.
        return [each for each in candidates if each in holders] if holders else candidates

    def _is_awaited(self, form: str, permits: Permits) -> bool:
        """Return True if a canonical URI belongs to an upstream that has not answered yet; no other may serve it."""
        return any(permits(*each) for each in self._awaited.get(form, ())) or any(
            matches_template(template, form) and permits(upstream_id, template)
            for upstream_id, template in self._awaited_templates
        )

    @cached_property
    def _awaited(self) -> dict[str, list[tuple[str, str]]]:
        awaited: dict[str, list[tuple[str, str]]] = {}
        for each in _awaited(self.names, OfferKind.RESOURCE, self.upstreams):
            awaited.setdefault(canonical(each[1]), []).append(each)
        return awaited

    @cached_property
    def _awaited_templates(self) -> tuple[tuple[str, str], ...]:
        return tuple(each for each in _awaited(self.names, OfferKind.TEMPLATE, self.upstreams) if scheme_of(each[1]))

    def _by_origin(self, uri: str, permits: Permits, origins: Origins) -> Iterable[str]:
        candidates = [upstream_id for upstream_id in self._with_resources if permits(upstream_id, uri)]
        parts = origin(uri)
        for part in parts:
            yield from (each for each in candidates if part in origins.unaddressed.get(each, ()))
        # If the client may not read this of the server that has this origin, no other server is asked instead.
        knowing = {each for part in parts for each, known in origins.every.items() if part in known}
        if len(candidates) == 1 and (not knowing or candidates[0] in knowing):
            yield candidates[0]


def build_offers(
    upstreams: Mapping[str, Offers | None],
    earlier: Mapping[OfferKind, OfferNames] = NO_NAMES,
    ownership: Ownership | None = None,
) -> OfferTable:
    """Return the table of the offers of these upstreams, in their order.

    Args:
        upstreams: offers by server id; None for a server that has not answered yet.
        earlier: names given in earlier builds, which their owners keep.
        ownership: the configured servers, including those that offer nothing; by default these upstreams.
    """
    ownership = ownership or Ownership(tuple(upstreams))
    offers: list[Offer] = []
    names: dict[OfferKind, OfferNames] = {}
    kept = {
        kind: {owner: name for owner, name in earlier.get(kind, {}).items() if owner[0] in upstreams} for kind in _NAMED
    }
    found = {kind: _unique(kind, upstreams) for kind in _NAMED}
    templates = {**found[OfferKind.TEMPLATE], **kept[OfferKind.TEMPLATE]}
    template_ownership = _TemplateOwnership(list(upstreams), templates)
    claims: list[UriConflict] = []
    for kind in _NAMED:
        is_uri = kind is not OfferKind.PROMPT
        foreign = template_ownership.foreign(kind, found[kind]) if is_uri else {}
        claims += foreign.values()
        names[kind] = assign_offer_names(
            list(found[kind]), is_uri=is_uri, earlier=kept[kind], ownership=ownership, foreign=foreign
        )
        for (upstream_id, name), raw in found[kind].items():
            public = names[kind][upstream_id, name]
            definition = {**sound_offer(raw, kind), _KEYS[kind]: public}
            offers.append(Offer(kind, upstream_id, name, public, definition))
    table = OfferTable(tuple(offers), MappingProxyType(dict(upstreams)), MappingProxyType(names), tuple(claims))
    skills = [
        Offer(OfferKind.SKILL, upstream_id, uri, table.public_uri(upstream_id, uri), definition)
        for (upstream_id, uri), definition in _unique(OfferKind.SKILL, upstreams).items()
    ]
    return replace(table, offers=(*table.offers, *skills)) if skills else table


def origins_of(offers: Iterable[Offer]) -> Origins:
    """Return the origins of the resources and templates among these offers."""
    origins = Origins({}, {})
    for offer in offers:
        if offer.kind in _WITH_ORIGINS:
            origins.every.setdefault(offer.upstream_id, set()).update(origin(offer.name))
            if offer.public == offer.name:
                origins.unaddressed.setdefault(offer.upstream_id, set()).update(origin(offer.name))
    return origins


def _awaited(
    names: Mapping[OfferKind, OfferNames], kind: OfferKind, upstreams: Mapping[str, Offers | None]
) -> Iterator[tuple[str, str]]:
    """Return (upstream id, own name) of earlier offers whose upstreams have not answered since."""
    away = {upstream_id for upstream_id, said in upstreams.items() if said is None}
    return (owner for owner, name in names.get(kind, {}).items() if name == owner[1] and owner[0] in away)


class _TemplateOwnership:
    """The ownership of URIs by the templates of all upstreams.

    If two servers claim the same URIs, the one with the name of the scheme wins, then the one configured first: so the
    configuration decides, alike after every start, and servers cannot change it. A template that leaves the scheme open
    claims nothing.
    """

    def __init__(self, upstream_ids: Sequence[str], templates: Collection[tuple[str, str]]) -> None:
        self._ranks = {upstream_id: rank for rank, upstream_id in enumerate(upstream_ids)}
        self._templates: dict[str, list[tuple[str, str]]] = {}
        for upstream_id, template in templates:
            self._templates.setdefault(scheme_of(template), []).append((upstream_id, template))
        self._templates.pop("", None)

    def foreign(self, kind: OfferKind, owners: Iterable[tuple[str, str]]) -> dict[tuple[str, str], UriConflict]:
        """Return the claims among these (upstream id, URI or template) on URIs of other upstreams."""
        found = (self._claim(kind, upstream_id, uri) for upstream_id, uri in owners)
        return {(claim.upstream_id, claim.uri): claim for claim in found if claim is not None}

    def _claim(self, kind: OfferKind, upstream_id: str, uri: str) -> UriConflict | None:
        addressed, _ = split_public_uri(uri)
        if addressed in self._ranks and addressed != upstream_id:
            return UriConflict(upstream_id, uri, addressed, f"{SCHEME}{addressed}/")
        sample = example(uri) if kind is OfferKind.TEMPLATE else uri
        form, scheme = canonical(sample), scheme_of(uri)
        for owner_id, template in self._templates.get(scheme, ()):
            is_first = self._rank(owner_id, scheme) < self._rank(upstream_id, scheme)
            # The same template is no claim on a part of it: the assignment of names decides which server has it.
            if (
                is_first
                and template != uri
                and (matches_template(template, form) or matches_template(template, sample))
            ):
                return UriConflict(upstream_id, uri, owner_id, template)
        return None

    def _rank(self, upstream_id: str, scheme: str) -> tuple[bool, int]:
        return upstream_id.lower() != scheme, self._ranks[upstream_id]


def _unique(kind: OfferKind, upstreams: Mapping[str, Offers | None]) -> dict[tuple[str, str], JsonObject]:
    """Return every definition by its owner and own name, without those that have no usable name."""
    found: dict[tuple[str, str], JsonObject] = {}
    for upstream_id, said in upstreams.items():
        listed: Sequence[JsonObject] = getattr(said, kind) if said is not None else ()
        for raw in listed:
            name = raw.get(_KEYS[kind])
            if isinstance(name, str) and name and (kind is OfferKind.PROMPT or not unusable(name)):
                found.setdefault((upstream_id, name), raw)
    return found
