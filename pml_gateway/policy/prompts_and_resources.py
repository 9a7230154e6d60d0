"""Which prompts and resources a client may list, get, read, complete and follow."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from pml_gateway.catalog.prompts_and_resources import Offer, OfferKind, OfferTable, Route
from pml_gateway.catalog.uris import spellings
from pml_gateway.exposure.patterns import ToolGrants, ToolPatterns


class OfferView:
    """The prompts, resources and templates of one client.

    Rules name them as `server:name` and `server:uri`; `server__*` covers them with the tools of a server. What a rule
    takes away is matched by the bare name as well, and by every way to write the same URI. What is `absent` is there
    for other clients only.
    """

    def __init__(
        self,
        table: OfferTable,
        allow: ToolGrants,
        denied: Sequence[ToolPatterns],
        absent: frozenset[tuple[str, str]] = frozenset(),
    ) -> None:
        self._table = table
        self._allow = allow
        self._denied = denied
        self._absent = absent

    @property
    def hides_any(self) -> bool:
        """Whether a rule may hide something from the client."""
        return not self._allow.matches_all or bool(self._absent) or any(patterns.names_any for patterns in self._denied)

    def permits(self, upstream_id: str, name: str) -> bool:
        """Whether the client may use what an upstream calls `name`, listed or not."""
        written = spellings(name) if ":" in name else (name,)
        for spelling in written:
            if (upstream_id, spelling) in self._absent:
                return False
            sources = (f"{upstream_id}:{spelling}", f"{upstream_id}__{spelling}")
            if not self._allow.admits_any(upstream_id, sources):
                return False
            if any(patterns.matches_any((*sources, spelling)) for patterns in self._denied):
                return False
        return True

    def may_permit(self, upstream_id: str) -> bool:
        """Whether the client may see anything of an upstream of which nothing is known yet."""
        starts = (f"{upstream_id}:", f"{upstream_id}__")
        is_denied = any(patterns.matches_any(starts) for patterns in self._denied)
        return not is_denied and self._allow.may_admit(upstream_id)

    def listed(self, kind: OfferKind) -> tuple[Offer, ...]:
        """The visible offers of one kind, in catalog order."""
        return self._listed[kind]

    def find(self, kind: OfferKind, public: str) -> Offer | None:
        """The visible offer of this name or URI."""
        offer = self._table.find(kind, public)
        return offer if offer is not None and self.permits(offer.upstream_id, offer.name) else None

    def routes(self, uri: str) -> list[Route]:
        """The upstreams that may have a resource for this client, the likeliest first."""
        return self._table.routes(uri, self.permits)

    @cached_property
    def upstream_ids(self) -> frozenset[str]:
        """The upstreams that have anything to offer to this client."""
        return frozenset(offer.upstream_id for offers in self._listed.values() for offer in offers)

    @cached_property
    def _listed(self) -> dict[OfferKind, tuple[Offer, ...]]:
        return {
            kind: tuple(offer for offer in self._table.of_kind(kind) if self.permits(offer.upstream_id, offer.name))
            for kind in OfferKind
        }
