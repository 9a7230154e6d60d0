"""The listings of an upstream (tools, prompts, resources), and their differences between clients."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import anyio
import anyio.lowlevel

from pml_gateway.mcp.capabilities import ServerCapabilities
from pml_gateway.types import JsonObject

COMPARED_AT_ONCE = 10
"""Tools compared with the previous listing before other tasks get a turn, about 0.2 ms."""

TOOLS = "tools"

NAMED_BY: Mapping[str, str] = {
    TOOLS: "name",
    "prompts": "name",
    "resources": "uri",
    "templates": "uriTemplate",
    "skills": "uri",
}
"""The field that identifies a definition of each kind."""


class ListKind(StrEnum):
    """A list that an upstream serves and announces changes of; that of resources includes templates and skills."""

    TOOLS = "tools"
    PROMPTS = "prompts"
    RESOURCES = "resources"


def announced_kind(method: str) -> ListKind | None:
    """Return the list that a notification announces a change of; None for other notifications."""
    for kind in ListKind:
        if method == f"notifications/{kind}/list_changed":
            return kind
    return None


@dataclass(frozen=True, slots=True)
class Offers:
    """An upstream's offers other than tools, unchanged, and its capabilities."""

    prompts: tuple[JsonObject, ...] = ()
    resources: tuple[JsonObject, ...] = ()
    templates: tuple[JsonObject, ...] = ()
    skills: tuple[JsonObject, ...] = ()
    instructions: str = ""
    capabilities: ServerCapabilities = field(default_factory=ServerCapabilities)


@dataclass(frozen=True, slots=True)
class Listed:
    """One answer to every list request, with what the manifest stores about the peer.

    `asks` are the client capabilities that it has ever asked for. A `polled` listing was requested by a timer, without
    an announced change. `faults` are the reasons why lists are incomplete, and errors in others. `announced` are the
    lists whose change the peer has announced since the previous answer, each with True if its content did change.
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
class RememberedListing:
    """Findings of an earlier connection: the protocol era, the listing, and the questions asked of clients.

    `version` is the older protocol version that the server accepted after refusing the latest.
    """

    era: str = ""
    tools: tuple[JsonObject, ...] = ()
    offers: Offers = field(default_factory=Offers)
    asks: frozenset[str] = frozenset()
    version: str = ""


async def known_again(tools: tuple[JsonObject, ...], before: tuple[JsonObject, ...]) -> tuple[JsonObject, ...]:
    """Return the listing with unchanged tools replaced by the previous objects; if all are, the previous tuple."""
    known = {str(tool.get("name")): tool for tool in before}
    kept: list[JsonObject] = []
    for start in range(0, len(tools), COMPARED_AT_ONCE):
        kept += [_same(tool, known.get(str(tool.get("name")))) for tool in tools[start : start + COMPARED_AT_ONCE]]
        # In batches rather than in a thread: all upstreams may list at once, and threads are slow to start.
        await anyio.lowlevel.checkpoint()
    is_same = len(kept) == len(before) and all(now is then for now, then in zip(kept, before, strict=True))
    return before if is_same else tuple(kept)


def _same(tool: JsonObject, before: JsonObject | None) -> JsonObject:
    try:
        # Python considers 1, 1.0 and true equal; JSON does not.
        is_same = before is not None and tool == before and json.dumps(tool) == json.dumps(before)
    except RecursionError:
        return tool
    return before if before is not None and is_same else tool


class DueLists:
    """The lists to request again; a burst of announcements is answered by one listing.

    A list that was malformed is paused: it would be just as faulty a moment later, however often it is announced.
    """

    def __init__(self) -> None:
        self._kinds: set[ListKind] = set()
        self._rests_until: dict[ListKind, float] = {}
        self.is_requested = False
        """True if the gateway itself has requested lists since the last `take`; the requester waits for them."""
        self.event = anyio.Event()

    @property
    def is_any(self) -> bool:
        """Return True if a list is due now."""
        return any(map(self._is_awake, self._kinds))

    @property
    def rest_seconds(self) -> float:
        """Return the seconds until the next pause ends; infinite if there is none."""
        now = anyio.current_time()
        return min((until - now for until in self._rests_until.values() if until > now), default=math.inf)

    def add(self, kinds: Iterable[ListKind] = tuple(ListKind)) -> None:
        """Request these lists again soon, even if they are paused."""
        for kind in kinds:
            self._rests_until.pop(kind, None)
            self._kinds.add(kind)
        self.is_requested = True
        self.event.set()

    def announce(self, kinds: Iterable[ListKind] = tuple(ListKind)) -> None:
        """Request these lists again after an announcement: soon, or when their pause ends."""
        self._kinds.update(kinds)
        if self.is_any:
            self.event.set()

    def rest(self, kinds: Iterable[ListKind], seconds: float) -> None:
        """Request these lists again only after this many seconds."""
        self._kinds.update(kinds)
        self._rests_until |= dict.fromkeys(kinds, anyio.current_time() + seconds)

    def quiet(self, kinds: Iterable[ListKind], seconds: float) -> None:
        """Delay announced requests of these lists by at least this many seconds."""
        until = anyio.current_time() + seconds
        for kind in kinds:
            # A longer pause stays in effect.
            self._rests_until[kind] = max(self._rests_until.get(kind, until), until)

    def take(self, polled: frozenset[ListKind] = frozenset()) -> frozenset[ListKind]:
        """Return the lists that are due or `polled`, and mark them as no longer due."""
        taken = frozenset(filter(self._is_awake, self._kinds | polled))
        self._kinds -= taken
        self.is_requested = False
        self.event = anyio.Event()
        return taken

    def _is_awake(self, kind: ListKind) -> bool:
        return self._rests_until.get(kind, 0.0) <= anyio.current_time()


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between an upstream's lists for clients with certain capabilities and those for all clients.

    `tools` and `offers` are the additional entries; `missing` names the absent ones, as (kind, name). Definitions that
    both have are those for all clients.
    """

    tools: tuple[JsonObject, ...] = ()
    offers: Offers = field(default_factory=Offers)
    missing: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return self != Difference()

    def more(self) -> frozenset[tuple[str, str]]:
        """Return kind and name of the additional entries."""
        return names(self.tools, self.offers)


def difference(tools: Sequence[JsonObject], offers: Offers, *, base: tuple[Sequence[JsonObject], Offers]) -> Difference:
    """Return the entries added to and missing from these lists, compared with those for all clients."""
    base_names = {kind: _named(kind, *base) for kind in NAMED_BY}
    given = {kind: _named(kind, tools, offers) for kind in NAMED_BY}
    added = {
        kind: tuple(item for name, item in items.items() if name not in base_names[kind])
        for kind, items in given.items()
    }
    gained = offers.capabilities.beyond(base[1].capabilities)
    more = Offers(added["prompts"], added["resources"], added["templates"], added["skills"], capabilities=gained)
    missing = ((kind, name) for kind, names in base_names.items() for name in names if name not in given[kind])
    return Difference(added[TOOLS], more, tuple(missing))


def with_more(
    tools: Sequence[JsonObject], offers: Offers, differences: Iterable[Difference]
) -> tuple[tuple[JsonObject, ...], Offers]:
    """Return the lists for all clients, followed by the additional entries; the first of equal names counts."""
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
        skills=(*offers.skills, *added["skills"]),
    )


def names(tools: Sequence[JsonObject], offers: Offers) -> frozenset[tuple[str, str]]:
    """Return kind and name of everything in these lists."""
    return frozenset((kind, name) for kind in NAMED_BY for name in _named(kind, tools, offers))


def _named(kind: str, tools: Sequence[JsonObject], offers: Offers) -> dict[str, JsonObject]:
    items: Sequence[JsonObject] = tools if kind == TOOLS else getattr(offers, kind)
    named: dict[str, JsonObject] = {}
    for item in items:
        named.setdefault(str(item.get(NAMED_BY[kind]) or ""), item)
    return named
