"""What an upstream said of its tools and of everything else it offers, now and before."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import anyio

from pml_gateway.types import JsonObject


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


def known_again(tools: Sequence[JsonObject], before: Sequence[JsonObject]) -> tuple[JsonObject, ...]:
    """A listing in which tools that are word for word as before are the very same objects."""
    known = {str(tool.get("name")): tool for tool in before}
    return tuple(_same(tool, known.get(str(tool.get("name")))) for tool in tools)


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
