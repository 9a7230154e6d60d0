"""The prompts and resources that a client may list, get, read, complete and follow."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import count
from typing import Protocol

from pml_gateway.catalog.prompts_and_resources import (
    Offer,
    OfferKind,
    OfferTable,
    Origins,
    Route,
    origins_of,
    split_public_uri,
)
from pml_gateway.catalog.skills import folder_of, is_within
from pml_gateway.catalog.uris import canonical, readings, unusable, without_user
from pml_gateway.exposure.patterns import ToolPatterns
from pml_gateway.policy.rules import CompiledGrants, HidingRule

_ADDRESS = r"\[[0-9a-f.]*:[0-9a-f.]*:[0-9a-f:.]*\](?=[:/?#]|$)"
_GLOB = re.compile(rf"\*|\?|(?!{_ADDRESS})\[!?\]?[^\]]*\]", re.IGNORECASE)
"""A wildcard in a rule; an IPv6 address in brackets is not one."""

_FIRST_MASK = 0xF0000
"""The first of a range of unassigned characters that stand for globs while a URI is parsed."""

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:(?!\s*$)", re.IGNORECASE)
_OPEN_HOST = re.compile(r"file://[^/\\*?\[]*(?=[*?\[])", re.IGNORECASE)


class OfferView:
    """The prompts, resources and templates of one client.

    Rules name them as `server:name` and `server:uri`; `server__*` covers them together with a server's tools. A URI is
    allowed by its canonical form, and denied by any form that a reader may take it for; denying rules also match the
    bare name. Those in `absent` exist only for other clients.
    """

    def __init__(
        self,
        table: OfferTable,
        allow: CompiledGrants,
        denied: Sequence[ToolPatterns],
        absent: frozenset[tuple[str, str]] = frozenset(),
    ) -> None:
        self._table = table
        self._allow = allow
        self._denied = denied
        self._absent = absent
        self._allowed_uris = [[UriRules(each, table.lookalikes) for each in group] for group in allow.of_offers]
        self._denied_uris = [UriRules(patterns, table.lookalikes, takes_bare=True) for patterns in denied]

    @property
    def hides_any(self) -> bool:
        """Return True if a rule may hide something from the client."""
        return not self._allow.matches_all or bool(self._absent) or any(patterns.names_any for patterns in self._denied)

    def permits(self, upstream_id: str, name: str) -> bool:
        """Return True if the client may use an upstream's `name`, listed or not."""
        return not self.hides_any or self.hidden_by(upstream_id, name) is None

    def hidden_by(self, upstream_id: str, name: str) -> HidingRule | None:
        """Return the rule that keeps an upstream's `name` from the client, if one does; for the owner."""
        taken_for = readings(name)
        if self._is_absent(upstream_id, name, taken_for):
            return HidingRule.CAPABILITIES
        if not all(any(rules.cover(upstream_id, name) for rules in group) for group in self._allowed_uris):
            return HidingRule.NOT_ALLOWED
        refused = {name, canonical(name), *taken_for, *map(without_user, taken_for), *_addressed({name, *taken_for})}
        denied = zip(self._denied_uris, (HidingRule.DENIED, HidingRule.BLACKLISTED), strict=False)
        return next((cause for rules, cause in denied if any(rules.fits(upstream_id, each) for each in refused)), None)

    def may_permit(self, upstream_id: str) -> bool:
        """Return True if the client may see anything of an upstream whose listing is not known yet."""
        starts = [f"{upstream_id}{separator}" for separator in (":", "__")]
        is_denied = any(patterns.matches_any(starts) for patterns in self._denied)
        return not is_denied and all(
            any(grants.may_admit(upstream_id) for grants in group) for group in self._allow.of_offers
        )

    def listed(self, kind: OfferKind) -> tuple[Offer, ...]:
        """Return the visible offers of one kind, in catalog order."""
        return self._listed[kind]

    def find(self, kind: OfferKind, public: str) -> Offer | None:
        """Return the visible offer with this name or URI; None if there is none."""
        offer = self._table.find(kind, public)
        return offer if offer is not None and self.permits(offer.upstream_id, offer.name) else None

    def routes(self, uri: str) -> list[Route]:
        """Return the upstreams that may have a resource for this client, the likeliest first; none if held back."""
        return [each for each in self.routes_to_entry(uri) if not self._is_held_back(each)]

    def routes_to_entry(self, uri: str) -> list[Route]:
        """Return the same for what lists a resource or skill, and reads nothing of it."""
        return [] if unusable(uri) else self._table.routes(uri, self.permits, self._origins, self.may_permit)

    def holds_back(self, uri: str) -> bool:
        """Return True if a URI is of a file of a skill that the client could see, and that is held back."""
        return any(map(self._is_held_back, self.routes_to_entry(uri)))

    def _is_held_back(self, route: Route) -> bool:
        # Of the folder, too.
        inside = f"{route.uri.rstrip('/')}/-"
        return any(
            upstream_id == route.upstream_id and is_within(folder_of(skill), inside)
            for upstream_id, skill in self._table.held_skills
        )

    @cached_property
    def _origins(self) -> Origins:
        return origins_of(offer for offers in self._listed.values() for offer in offers)

    @cached_property
    def upstream_ids(self) -> frozenset[str]:
        """Return the upstreams that offer anything to this client."""
        return frozenset[str]().union(*self.upstreams_of.values())

    @cached_property
    def upstreams_of(self) -> dict[OfferKind, frozenset[str]]:
        """Return the upstreams with something of each kind in this client's lists."""
        return {kind: frozenset(offer.upstream_id for offer in offers) for kind, offers in self._listed.items()}

    @cached_property
    def _listed(self) -> dict[OfferKind, tuple[Offer, ...]]:
        return {
            kind: tuple(offer for offer in self._table.of_kind(kind) if self.permits(offer.upstream_id, offer.name))
            for kind in OfferKind
        }

    def _is_absent(self, upstream_id: str, uri: str, taken_for: frozenset[str]) -> bool:
        if (upstream_id, uri) in self._absent:
            return True
        # One that is listed next to an absent one is another resource, however similar they are.
        return not self._table.is_listed(upstream_id, uri) and any(
            (upstream_id, each) in self._absent_readings for each in taken_for
        )

    @cached_property
    def _absent_readings(self) -> frozenset[tuple[str, str]]:
        return frozenset((upstream_id, each) for upstream_id, name in self._absent for each in readings(name))


def _addressed(taken_for: Iterable[str]) -> Iterator[str]:
    """Yield the URIs that a gateway behind this one would request from its own servers."""
    for reading in taken_for:
        _, own = split_public_uri(reading)
        for _ in range(MAX_GATEWAYS):
            if not own:
                break
            yield from readings(own)
            _, own = split_public_uri(own)


MAX_GATEWAYS = 8
"""Maximum number of chained gateways; a URI that leads through more is requested as it is."""


class Entries(Protocol):
    """Entries that allow or deny."""

    def about(self, upstream_id: str, /) -> Iterator[str]:
        """Yield the entries that may concern this server."""
        ...

    def fit(self, upstream_id: str, names: Iterable[str], /) -> bool:
        """Return True if any entry matches something of this server under any of these names."""
        ...


class UriRules:
    """Rules about URIs, each in canonical form however it was written.

    A rule that matches one of several lookalikes exactly as its server lists it applies only to that one.
    """

    def __init__(self, rules: Entries, lookalikes: frozenset[tuple[str, str]], *, takes_bare: bool = False) -> None:
        self._rules = rules
        self._lookalikes = lookalikes
        self._takes_bare = takes_bare
        self._of_upstream: dict[str, tuple[frozenset[str], ToolPatterns]] = {}

    def cover(self, upstream_id: str, uri: str) -> bool:
        """Return True if a URI is covered in canonical form, in every reading of it."""
        exact, _ = self._of(upstream_id)
        return uri in exact or all(self.fits(upstream_id, each) for each in readings(canonical(uri)))

    def fits(self, upstream_id: str, reading: str) -> bool:
        """Return True if a rule matches a reading of a URI; rules about a folder's content also match the folder."""
        exact, patterns = self._of(upstream_id)
        forms = (reading, f"{reading}/")
        if reading in exact or patterns.matches_any(forms):
            return True
        names = (f"{upstream_id}{separator}{form}" for form in forms for separator in (":", "__"))
        return self._rules.fit(upstream_id, names)

    def _of(self, upstream_id: str) -> tuple[frozenset[str], ToolPatterns]:
        """Return the rules about one upstream: URIs as they were written, and patterns of readings."""
        known = self._of_upstream.get(upstream_id)
        if known is None:
            written = frozenset(self._about(upstream_id))
            meant = [rule for rule in written if (upstream_id, rule) not in self._lookalikes]
            known = self._of_upstream[upstream_id] = written, _compiled(meant)
        return known

    def _about(self, upstream_id: str) -> Iterator[str]:
        """Yield the parts of entries about an upstream's URIs, without its name."""
        for entry in self._rules.about(upstream_id):
            if self._takes_bare or entry.startswith("*"):
                yield entry
            server, own = split_public_uri(entry)
            if own and fnmatch.fnmatchcase(upstream_id, server):
                yield own
            for separator in re.finditer("(?=(:|__))", entry):
                if fnmatch.fnmatchcase(upstream_id, entry[: separator.start(1)]):
                    yield entry[separator.end(1) :]


def is_about_offers(entry: str, rules: Entries, table: OfferTable, upstream_ids: Iterable[str]) -> bool:
    """Return True if an entry, compiled as `rules`, is about a listed offer or any server's URIs.

    A server may have resources that it does not list.
    """
    if any(
        fnmatch.fnmatchcase(each, entry[: separator.start(1)]) and _SCHEME.match(entry, separator.end(1))
        for separator in re.finditer("(?=(:|__))", entry)
        for each in upstream_ids
    ):
        return True
    uris = UriRules(rules, table.lookalikes, takes_bare=isinstance(rules, ToolPatterns))
    return any(
        uris.fits(offer.upstream_id, each)
        for kind in OfferKind
        for offer in table.of_kind(kind)
        for each in (offer.name, *readings(offer.name))
    )


def _compiled(rules: Sequence[str]) -> ToolPatterns:
    exact: set[str] = set()
    globs: list[str] = []
    for rule in rules:
        wildcards = _GLOB.findall(rule)
        if not wildcards:
            exact |= readings(canonical(rule))
            continue
        # A wildcard for the host may also match the path after it.
        for form in {rule, _OPEN_HOST.sub("file:///", rule, count=1)}:
            masked = _masked(form)
            globs += [fnmatch.translate(_unmasked(each, wildcards)) for each in readings(canonical(masked))]
    return ToolPatterns(frozenset(exact), re.compile("|".join(globs)) if globs else None)


def _masked(pattern: str) -> str:
    masks = map(chr, count(_FIRST_MASK))
    return _GLOB.sub(lambda _: next(masks), pattern)


def _unmasked(reading: str, wildcards: Sequence[str]) -> str:
    """Return a pattern with the masks turned back into wildcards, and other wildcard characters escaped."""
    return "".join(
        wildcards[ord(each) - _FIRST_MASK]
        if 0 <= ord(each) - _FIRST_MASK < len(wildcards)
        else f"[{each}]"
        if each in "*?["
        else each
        for each in reading
    )
