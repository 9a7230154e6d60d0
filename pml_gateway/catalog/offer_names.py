"""Prompt names and resource URIs are kept; who comes second to one gets another, and the same from then on.

A renamed URI is `pml://SERVER/URI`, so that a renamed template is still a template, and what it expands to leads to its
server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from urllib.parse import quote, unquote

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
    """Give every (upstream id, name) its public name: its own, unless another owner has it already.

    Owners of earlier names keep them, also while they are not listed: those that are follow first in the answer.
    """
    kept: dict[str, tuple[str, str]] = {}
    for owner, name in earlier.items():
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
    yield name
    if is_uri:
        yield from public_uris(upstream_id, name)
    yield f"{upstream_id}__{name}"
    yield from (f"{upstream_id}__{name}_{attempt}" for attempt in count(2))
