"""Words of the domain that more than one stage uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, assert_never

JsonObject = dict[str, Any]
"""A decoded JSON object."""


class ExposureMode(StrEnum):
    """Share of the catalog that a client sees."""

    META_ONLY = "meta_only"
    SEMANTIC = "semantic"
    HYBRID = "hybrid"
    FULL_PROXY = "full_proxy"


@dataclass(frozen=True, slots=True)
class ModeFacts:
    """Fixed properties of a mode.

    `reads_intent`: it can search for what an intent asks for, needs an index then, and keeps within `gateway.hybrid`.
    `has_namespaces`: `gateway.style: namespaces` changes its meta part. `presets` configure it, from the fewest listed
    tools to the most.
    """

    presets: tuple[str, ...]
    reads_intent: bool = False
    has_namespaces: bool = False


MODES: Mapping[ExposureMode, ModeFacts] = {
    ExposureMode.META_ONLY: ModeFacts(("meta_only",), has_namespaces=True),
    ExposureMode.SEMANTIC: ModeFacts(("semantic",), reads_intent=True),
    ExposureMode.HYBRID: ModeFacts(("hybrid_balanced", "hybrid_permissive"), reads_intent=True, has_namespaces=True),
    ExposureMode.FULL_PROXY: ModeFacts(("full_proxy",)),
}
"""The modes, from the one that lists least to the one that lists everything."""


class Effect(StrEnum):
    """The effect of a tool's calls as its annotations declare it, the mildest first."""

    READ = "read"
    WRITE = "write"
    """Changes something and destroys nothing."""

    UNKNOWN = "unknown"
    DESTRUCTIVE = "destructive"

    def is_within(self, limit: Effect) -> bool:
        """Return True if it is no stronger than `limit`; an unknown effect may be any, as MCP has it."""
        order = {Effect.READ: 0, Effect.WRITE: 1}
        return order.get(self, len(order)) <= order.get(limit, len(order))

    @property
    def promise(self) -> JsonObject:
        """The annotation of something that may have this effect, in as few words as MCP allows."""
        return {"readOnlyHint": True} if self is Effect.READ else {"destructiveHint": self is not Effect.WRITE}

    @property
    def hints(self) -> JsonObject:
        """The annotations that declare this effect."""
        match self:
            case Effect.READ:
                return {"readOnlyHint": True}
            case Effect.WRITE:
                return {"readOnlyHint": False, "destructiveHint": False}
            case Effect.DESTRUCTIVE:
                return {"readOnlyHint": False, "destructiveHint": True}
            case Effect.UNKNOWN:
                return {}
            case _:
                assert_never(self)


def strongest(effects: Iterable[Effect], default: Effect = Effect.UNKNOWN) -> Effect:
    """Return the gravest of some effects; the default if there are none."""
    return max(effects, key=list(Effect).index, default=default)


EFFECT_HINTS = ("readOnlyHint", "destructiveHint")
"""The annotations that say what the effect of a tool's calls is."""


def effect_of(annotations: object) -> Effect:
    """Return the effect that a tool's annotations declare by MCP, and of contradictory ones the graver.

    A hint that is not a boolean counts as absent.
    """
    hints = annotations if isinstance(annotations, dict) else {}
    match hints.get("readOnlyHint"), hints.get("destructiveHint"):
        case _, True:
            return Effect.DESTRUCTIVE
        case True, _:
            return Effect.READ
        case _, False:
            return Effect.WRITE
        case False, _:
            # By MCP, a tool that is not read-only may destroy something unless it denies that.
            return Effect.DESTRUCTIVE
        case _:
            return Effect.UNKNOWN


def is_idempotent(annotations: object) -> bool:
    """Return True if a call changes nothing, or nothing more when it is made again."""
    if effect_of(annotations) is Effect.READ:
        return True
    return isinstance(annotations, dict) and annotations.get("idempotentHint") is True


class Ranking(StrEnum):
    """Evidence that orders search hits."""

    FUSED = "fused"
    DENSE = "dense"
    LEXICAL = "lexical"


SEPARATORS = (":", "/", ".", "__")
"""Separators between a server's id and a tool's name, in calls and rules."""
