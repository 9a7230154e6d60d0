"""Words of the domain that more than one stage uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

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


class Ranking(StrEnum):
    """Evidence that orders search hits."""

    FUSED = "fused"
    DENSE = "dense"
    LEXICAL = "lexical"


SEPARATORS = (":", "/", ".", "__")
"""Separators between a server's id and a tool's name, in calls and rules."""
