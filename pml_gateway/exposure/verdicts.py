"""An exposure becomes a verdict on every visible tool: listed or not, and what decided it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.config.settings import GatewaySection
from pml_gateway.exposure.modes import ListedTool, SearchTools, expose
from pml_gateway.types import ExposureMode


class Omission(StrEnum):
    """Why a visible tool is not listed."""

    META_ONLY = "this mode lists meta-tools only"
    UNDERLYING_OFF = "hybrid.expose_underlying_tools is off"
    NO_INTENT = "no intent to select by"
    NOT_FOUND = "the search does not find it"
    BELOW_THRESHOLD = "score below the threshold"
    COUNT_CAP = "cut by max_underlying_tools"
    TOKEN_CAP = "cut by max_tokens"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One tool: on the list with the reason, or off it with another; score and place are those of the search.

    `limit` is the value that decided: the threshold or the cap.
    """

    tool: CatalogTool
    listed: bool
    reason: str
    score: float | None = None
    place: int | None = None
    limit: float | None = None


def verdicts(
    mode: ExposureMode,
    visible: Sequence[CatalogTool],
    search: SearchTools,
    settings: GatewaySection,
    intent: str | None,
    most_used: Sequence[CatalogTool] = (),
) -> tuple[Verdict, ...]:
    """Why each tool this client may see is listed or not, in catalog order.

    What is listed is what `expose` lists; the rest is told from what it had to go by.
    """
    exposure = expose(mode, visible, search, settings, intent, most_used)
    listed = {each.tool.qualified_name: each for each in exposure.tools}
    legacy = {tool.qualified_name for tool in exposure.legacy}
    places: dict[str, tuple[int, float]] = {}
    if exposure.selected_by_intent and intent is not None:
        found = search(intent, len(visible))
        places = {tool.qualified_name: (place, score) for place, (tool, score) in enumerate(found, 1)}

    def verdict(tool: CatalogTool) -> Verdict:
        name = tool.qualified_name
        place, score = places.get(name, (None, None))
        if name in listed:
            return Verdict(tool, True, listed[name].reason.value, score, place)
        if name in legacy:
            return Verdict(tool, True, "legacy", score, place)
        reason, limit = _omission(mode, settings, intent, score, listed)
        return Verdict(tool, False, reason.value, score, place, limit)

    return tuple(verdict(tool) for tool in visible)


def _omission(
    mode: ExposureMode,
    settings: GatewaySection,
    intent: str | None,
    score: float | None,
    listed: Mapping[str, ListedTool],
) -> tuple[Omission, float | None]:
    hybrid = settings.hybrid
    match mode:
        case ExposureMode.META_ONLY | ExposureMode.FULL_PROXY:
            return Omission.META_ONLY, None
        case ExposureMode.SEMANTIC:
            return _unselected(settings, intent, score, listed)
        case ExposureMode.HYBRID:
            if not hybrid.expose_underlying_tools:
                return Omission.UNDERLYING_OFF, None
            if not hybrid.apply_semantic_filter:
                return _cut(settings, listed)
            return _unselected(settings, intent, score, listed)
        case _:
            assert_never(mode)


def _unselected(
    settings: GatewaySection, intent: str | None, score: float | None, listed: Mapping[str, ListedTool]
) -> tuple[Omission, float | None]:
    threshold = settings.hybrid.semantic_threshold
    if intent is None:
        return Omission.NO_INTENT, None
    if score is None:
        return Omission.NOT_FOUND, None
    if score < threshold:
        return Omission.BELOW_THRESHOLD, threshold
    return _cut(settings, listed)


def _cut(settings: GatewaySection, listed: Mapping[str, ListedTool]) -> tuple[Omission, float | None]:
    """The list goes up to the count, or it ends earlier at the first tool that would pass the token limit."""
    hybrid = settings.hybrid
    if len(listed) >= hybrid.max_underlying_tools or hybrid.max_tokens is None:
        return Omission.COUNT_CAP, hybrid.max_underlying_tools
    return Omission.TOKEN_CAP, hybrid.max_tokens
