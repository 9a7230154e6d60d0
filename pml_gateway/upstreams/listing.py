"""What an upstream said of its tools and of everything else it offers, now and before."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

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

    A `polled` one was asked for because it was time to, and nothing says that anything changed.
    """

    tools: tuple[JsonObject, ...]
    listed_at: float
    era: str
    server_name: str
    server_version: str
    seconds: float
    offers: Offers = field(default_factory=Offers)
    polled: bool = False


@dataclass(frozen=True, slots=True)
class Remembered:
    """What an earlier connection found out: the protocol era, the tools as listed, and what else was offered."""

    era: str = ""
    tools: tuple[JsonObject, ...] = ()
    offers: Offers = field(default_factory=Offers)


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
    """The lists that are to be asked for again; announcements that come in bursts are answered by one listing."""

    def __init__(self) -> None:
        self._kinds: set[ListKind] = set()
        self.event = anyio.Event()

    def add(self, kinds: Iterable[ListKind] = tuple(ListKind)) -> None:
        """Ask for these lists again, soon."""
        self._kinds.update(kinds)
        self.event.set()

    def take(self) -> frozenset[ListKind]:
        """What is due, which from now on is no longer."""
        taken, self._kinds = frozenset(self._kinds), set()
        self.event = anyio.Event()
        return taken
