"""Two listings of one upstream, for clients that can be asked different things, become what one has more and less."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pml_gateway.types import JsonObject
from pml_gateway.upstreams.listing import Offers

TOOLS = "tools"
NAMED_BY: Mapping[str, str] = {TOOLS: "name", "prompts": "name", "resources": "uri", "templates": "uriTemplate"}
"""Where a definition of each kind names itself."""

_FLAGS = ("has_prompts", "has_resources", "completes", "subscribes")


@dataclass(frozen=True, slots=True)
class Difference:
    """What an upstream lists for clients that can be asked something, beside what it lists for everybody.

    `tools` and `offers` are what there is more; `missing` names what there is less, as (kind, name). Definitions of
    what both have are those for everybody.
    """

    tools: tuple[JsonObject, ...] = ()
    offers: Offers = field(default_factory=Offers)
    missing: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return self != Difference()

    def more(self) -> Iterable[tuple[str, str]]:
        """Kind and name of what there is more."""
        for kind in NAMED_BY:
            yield from ((kind, name) for name in _named(kind, self.tools, self.offers))


def difference(tools: Sequence[JsonObject], offers: Offers, *, base: tuple[Sequence[JsonObject], Offers]) -> Difference:
    """What these lists have more and less than those for everybody."""
    everybody = {kind: _named(kind, *base) for kind in NAMED_BY}
    given = {kind: _named(kind, tools, offers) for kind in NAMED_BY}
    added = {
        kind: tuple(item for name, item in items.items() if name not in everybody[kind])
        for kind, items in given.items()
    }
    gained: dict[str, Any] = {flag: getattr(offers, flag) and not getattr(base[1], flag) for flag in _FLAGS}
    more = Offers(prompts=added["prompts"], resources=added["resources"], templates=added["templates"], **gained)
    missing = ((kind, name) for kind, names in everybody.items() for name in names if name not in given[kind])
    return Difference(added[TOOLS], more, tuple(missing))


def with_more(
    tools: Sequence[JsonObject], offers: Offers, differences: Iterable[Difference]
) -> tuple[tuple[JsonObject, ...], Offers]:
    """The lists for everybody, followed by what any of the others has more; of equal names the first counts."""
    known = {kind: dict(_named(kind, tools, offers)) for kind in NAMED_BY}
    added: dict[str, list[JsonObject]] = {kind: [] for kind in NAMED_BY}
    for each in differences:
        for kind in NAMED_BY:
            for name, item in _named(kind, each.tools, each.offers).items():
                if name not in known[kind]:
                    known[kind][name] = item
                    added[kind].append(item)
    return (*tools, *added[TOOLS]), replace(
        offers,
        prompts=(*offers.prompts, *added["prompts"]),
        resources=(*offers.resources, *added["resources"]),
        templates=(*offers.templates, *added["templates"]),
    )


def with_gained(offers: Offers, more: Offers) -> Offers:
    """What a server said of itself, and what it can do beyond that for clients that can be asked something."""
    return replace(offers, **{flag: getattr(offers, flag) or getattr(more, flag) for flag in _FLAGS})


def gains(more: Offers) -> bool:
    """Whether a server can do more for some clients than it says to everybody."""
    return any(getattr(more, flag) for flag in _FLAGS)


def names(tools: Sequence[JsonObject], offers: Offers) -> frozenset[tuple[str, str]]:
    """Kind and name of everything in these lists."""
    return frozenset((kind, name) for kind in NAMED_BY for name in _named(kind, tools, offers))


def _named(kind: str, tools: Sequence[JsonObject], offers: Offers) -> dict[str, JsonObject]:
    items: Sequence[JsonObject] = tools if kind == TOOLS else getattr(offers, kind)
    named: dict[str, JsonObject] = {}
    for item in items:
        named.setdefault(str(item.get(NAMED_BY[kind]) or ""), item)
    return named
