"""What an upstream lists (tools, prompts, resources), and what some clients get more or less of."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import anyio
import anyio.lowlevel

from pml_gateway.types import JsonObject

COMPARED_AT_ONCE = 10
"""Tools compared with those listed before between two turns of everybody else, about 0.2 ms."""


class ListKind(StrEnum):
    """A list that an upstream gives and says the changes of; that of resources comes with their templates."""

    TOOLS = "tools"
    PROMPTS = "prompts"
    RESOURCES = "resources"


def announced_kind(method: str) -> ListKind | None:
    """The list that a notification says has changed."""
    for kind in ListKind:
        if method == f"notifications/{kind}/list_changed":
            return kind
    return None


@dataclass(frozen=True, slots=True)
class Offers:
    """What an upstream offers beside tools, in its own words, and what it says it can do with it."""

    prompts: tuple[JsonObject, ...] = ()
    resources: tuple[JsonObject, ...] = ()
    templates: tuple[JsonObject, ...] = ()
    instructions: str = ""
    has_prompts: bool = False
    has_resources: bool = False
    completes: bool = False
    subscribes: bool = False


@dataclass(frozen=True, slots=True)
class Listed:
    """One answer to every list, with what the manifest remembers of the peer.

    `asks` are the capabilities of clients for which it has ever asked. A `polled` one was asked for because it was time
    to, and nothing says that anything changed. `faults` say of lists that are not complete why, and what was wrong with
    others. `announced` are the lists whose change the peer announced since the
    answer before, each with whether it lists other things now.
    """

    tools: tuple[JsonObject, ...]
    listed_at: float
    era: str
    server_name: str
    server_version: str
    seconds: float
    offers: Offers = field(default_factory=Offers)
    asks: frozenset[str] = frozenset()
    polled: bool = False
    announced: Mapping[ListKind, bool] = field(default_factory=dict)
    version: str = ""
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Remembered:
    """What an earlier connection found out: the protocol era, what was listed, and what clients have been asked.

    `version` is the older protocol version that the server took when the latest was refused.
    """

    era: str = ""
    tools: tuple[JsonObject, ...] = ()
    offers: Offers = field(default_factory=Offers)
    asks: frozenset[str] = frozenset()
    version: str = ""


async def known_again(tools: tuple[JsonObject, ...], before: tuple[JsonObject, ...]) -> tuple[JsonObject, ...]:
    """A listing in which what is word for word as before is the very same object: each tool, and the whole of them."""
    known = {str(tool.get("name")): tool for tool in before}
    kept: list[JsonObject] = []
    for start in range(0, len(tools), COMPARED_AT_ONCE):
        kept += [_same(tool, known.get(str(tool.get("name")))) for tool in tools[start : start + COMPARED_AT_ONCE]]
        # In pieces rather than in a thread: all upstreams may list at once, and each thread takes its time to start.
        await anyio.lowlevel.checkpoint()
    is_same = len(kept) == len(before) and all(now is then for now, then in zip(kept, before, strict=True))
    return before if is_same else tuple(kept)


def _same(tool: JsonObject, before: JsonObject | None) -> JsonObject:
    try:
        # Python holds 1, 1.0 and true for equal; JSON does not.
        is_same = before is not None and tool == before and json.dumps(tool) == json.dumps(before)
    except RecursionError:
        return tool
    return before if before is not None and is_same else tool


class Due:
    """The lists that are to be asked for again; announcements that come in bursts are answered by one listing.

    A list that its upstream gave against the protocol rests: it would be as faulty a moment later, however often the
    upstream announces it.
    """

    def __init__(self) -> None:
        self._kinds: set[ListKind] = set()
        self._rests_until: dict[ListKind, float] = {}
        self.is_requested = False
        """Whether they were asked for by the gateway itself since they were taken; whoever did waits for that."""
        self.event = anyio.Event()

    @property
    def is_any(self) -> bool:
        """Whether a list is to be asked for now."""
        return any(map(self._is_awake, self._kinds))

    @property
    def rest_seconds(self) -> float:
        """Seconds until the next rest is over; infinite where none is."""
        now = anyio.current_time()
        return min((until - now for until in self._rests_until.values() if until > now), default=math.inf)

    def add(self, kinds: Iterable[ListKind] = tuple(ListKind)) -> None:
        """Ask for these lists again, soon, also where they rest."""
        for kind in kinds:
            self._rests_until.pop(kind, None)
            self._kinds.add(kind)
        self.is_requested = True
        self.event.set()

    def announce(self, kinds: Iterable[ListKind] = tuple(ListKind)) -> None:
        """Ask for these lists again as the upstream wishes: soon, or once they have rested."""
        self._kinds.update(kinds)
        if self.is_any:
            self.event.set()

    def rest(self, kinds: Iterable[ListKind], seconds: float) -> None:
        """Ask for these lists again after so many seconds only."""
        self._kinds.update(kinds)
        self._rests_until |= dict.fromkeys(kinds, anyio.current_time() + seconds)

    def quiet(self, kinds: Iterable[ListKind], seconds: float) -> None:
        """Ask for these lists, where they are announced, after so many seconds at the earliest."""
        until = anyio.current_time() + seconds
        for kind in kinds:
            # A longer rest goes on.
            self._rests_until[kind] = max(self._rests_until.get(kind, until), until)

    def take(self, polled: frozenset[ListKind] = frozenset()) -> frozenset[ListKind]:
        """What is due or `polled`, which from now on is due no longer."""
        taken = frozenset(filter(self._is_awake, self._kinds | polled))
        self._kinds -= taken
        self.is_requested = False
        self.event = anyio.Event()
        return taken

    def _is_awake(self, kind: ListKind) -> bool:
        return self._rests_until.get(kind, 0.0) <= anyio.current_time()


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
