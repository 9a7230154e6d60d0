"""Recommends a preset, by what a catalog costs, which clients read it and what matters to its owner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pml_gateway.clients.known import CLIENTS

if TYPE_CHECKING:
    from pml_gateway.reports.token_costs import CatalogCosts

CONTEXT_WINDOW = 200_000
"""Tokens that the models of most coding clients read."""

FEW_SEARCHES = 5
"""Listing everything pays as long as it costs no more than the meta-tools and this many searches."""

SMALL_SHARE = 0.05
"""Of the context window: a list below it leaves nearly all of it to the work."""

LARGE_SHARE = 0.15
"""Of the context window: from here on clients slow down, and models choose worse."""


class Priority(StrEnum):
    """Priority of the owner."""

    TOKENS = "tokens"
    ACCURACY = "accuracy"
    COMPATIBILITY = "compatibility"


@dataclass(frozen=True, slots=True)
class Situation:
    """Facts that the choice depends on; tokens are for a list with the expected number of servers.

    `deferring` are the clients that search tools themselves, `others` those that read every list whole.
    """

    servers: int
    full_tokens: int
    meta_tokens: int
    search_tokens: int | None
    context_window: int
    priority: Priority
    deferring: Sequence[str] = ()
    others: Sequence[str] = ()

    @classmethod
    def of(cls, costs: CatalogCosts, servers: int, clients: Sequence[str], priority: Priority) -> Situation:
        """Return the situation of a catalog; servers that it lacks are taken to be as large as those it knows."""
        deferring = {client.name for client in CLIENTS if client.defers}
        tokens = {each["preset"]: each["tokens"] for each in costs["presets"]}
        return cls(
            servers=servers,
            full_tokens=round(tokens["full_proxy"] * servers / max(costs["known"], 1)),
            meta_tokens=tokens["meta_only"],
            search_tokens=costs["search_tokens"],
            context_window=CONTEXT_WINDOW,
            priority=priority,
            deferring=[name for name in clients if name in deferring],
            others=[name for name in clients if name not in deferring],
        )

    @property
    def full_share(self) -> float:
        """The part of the context window that listing everything takes."""
        return self.full_tokens / self.context_window

    @property
    def is_small(self) -> bool:
        """Return True if a few searches would cost more than listing everything."""
        return self.full_tokens <= self.meta_tokens + FEW_SEARCHES * (self.search_tokens or 0)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A preset, why, and what else to know."""

    preset: str
    reason: str
    notes: tuple[str, ...] = ()


def recommend(situation: Situation) -> Recommendation:
    """Return the preset for a situation."""
    preset, reason = _choice(situation)
    return Recommendation(preset, reason, tuple(_notes(situation, preset)))


def _choice(situation: Situation) -> tuple[str, str]:
    size = f"{situation.full_tokens:,} tokens, {situation.full_share:.1%} of the context"
    if situation.is_small:
        return (
            "full_proxy",
            f"everything is only {size}: {FEW_SEARCHES} searches with meta_only would cost about as much",
        )
    match situation.priority:
        case Priority.COMPATIBILITY if situation.deferring and not situation.others:
            names = ", ".join(situation.deferring)
            return "full_proxy", f"{names} defers tools and searches them itself, so that the {size} are not read whole"
        case Priority.COMPATIBILITY if situation.full_share <= SMALL_SHARE:
            return "full_proxy", f"every client can use a plain list, and this one is {size}"
        case Priority.COMPATIBILITY:
            return (
                "hybrid_permissive",
                f"every client can use a plain list, and up to 50 tools are one; all of them would be {size}",
            )
        case Priority.ACCURACY if situation.full_share <= LARGE_SHARE:
            return (
                "hybrid_permissive",
                f"up to 50 tools that fit are listed, ready to call, instead of {size}; on labelled intents the right "
                "one is among them in 96 % of cases",
            )
        case Priority.ACCURACY:
            return (
                "hybrid_balanced",
                f"everything would be {size}, among which models choose badly; up to 20 tools that clearly fit are "
                "listed, and the rest is searched for",
            )
        case Priority.TOKENS:
            return (
                "meta_only",
                f"the meta-tools are {situation.meta_tokens:,} tokens however many servers come; everything would be "
                f"{size}",
            )


def _notes(situation: Situation, preset: str) -> list[str]:
    notes = []
    if situation.deferring and preset != "full_proxy":
        first = situation.deferring[0]
        notes.append(
            f"{', '.join(situation.deferring)} also defers tools itself, and would search twice; the entry that "
            f"`pml connect {first}` makes has it load the gateway's tools at once"
        )
    elif situation.deferring and situation.others and preset == "full_proxy":
        notes.append(f"{', '.join(situation.others)} reads the whole list in every conversation")
    return notes
