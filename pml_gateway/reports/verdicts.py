"""Reasons why each tool is listed, callable or absent for one client."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TypedDict, assert_never

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.ownership import Ownership
from pml_gateway.config.settings import GatewaySection
from pml_gateway.exposure.history import NOTHING_FOLLOWED, Followed
from pml_gateway.exposure.modes import JudgedTool, SelectTools, expose
from pml_gateway.index.selection import Cut
from pml_gateway.types import ExposureMode


class Omission(StrEnum):
    """Reason why a visible tool is not listed, besides those of `Cut`."""

    META_ONLY = "this mode lists meta-tools only"
    UNDERLYING_OFF = "hybrid.expose_underlying_tools is off"
    NO_INTENT = "no intent to select by"
    NOT_FOUND = "the search does not find it"
    COUNT_CAP = "cut by max_underlying_tools"
    TOKEN_CAP = "cut by max_tokens"


class ExplainedTool(TypedDict):
    """One tool: on the list with the reason, or off it with another; score and place are those of the search.

    `limit` is the value that decided, the threshold or the cap; `pattern` is the entry of a list that did.
    """

    name: str
    server: str
    listed: bool
    callable: bool
    reason: str
    score: float | None
    place: int | None
    limit: float | None
    pattern: str | None


def reason_in_words(row: ExplainedTool) -> str:
    """Return why a tool is listed or not, with the limit, the entry or the place that decided."""
    decided = f" ({row['limit']:g})" if row["limit"] is not None else ""
    matched = f" by {row['pattern']!r}" if row["pattern"] else ""
    place = f", place {row['place']}" if row["place"] is not None and not row["listed"] else ""
    return f"{row['reason']}{decided}{matched}{place}"


def unlisted(name: str, server: str, reason: str, pattern: str | None = None) -> ExplainedTool:
    """Return a tool that a client neither lists nor calls."""
    return {
        "name": name,
        "server": server,
        "listed": False,
        "callable": False,
        "reason": reason,
        "score": None,
        "place": None,
        "limit": None,
        "pattern": pattern,
    }


def verdicts(
    mode: ExposureMode,
    visible: Sequence[CatalogTool],
    select: SelectTools,
    settings: GatewaySection,
    intent: str | None,
    most_used: Sequence[CatalogTool] = (),
    *,
    ownership: Ownership,
    followed: Followed = NOTHING_FOLLOWED,
) -> list[ExplainedTool]:
    """Return the reason why each visible tool is listed or not, in catalog order.

    What is listed is what `expose` lists; the rest is told from what it had to go by.
    """
    exposure = expose(mode, visible, select, settings, intent, most_used, ownership=ownership, followed=followed)
    listed = {each.tool.qualified_name: each for each in exposure.tools}
    legacy = {tool.qualified_name for tool in exposure.legacy}
    judged: dict[str, tuple[int, JudgedTool]] = {}
    if exposure.selected_by_intent:
        texts = [*followed.searches, *([] if intent is None else [intent])]
        every = sorted((each for text in texts for each in select(text)), key=lambda each: each.cut is not None)
        for each in every:
            judged.setdefault(each.tool.qualified_name, (len(judged) + 1, each))

    def verdict(tool: CatalogTool) -> ExplainedTool:
        name = tool.qualified_name
        place, found = judged.get(name, (None, None))
        is_listed, limit = name in listed or name in legacy, None
        if is_listed:
            reason = listed[name].reason.value if name in listed else "legacy"
        else:
            omission, limit = _omission(mode, settings, exposure.selected_by_intent, found, len(listed))
            reason = omission.value
        return {
            **unlisted(name, tool.upstream_id, reason),
            "listed": is_listed,
            "callable": is_listed or settings.direct_calls == "visible",
            "score": None if found is None else found.score,
            "place": place,
            "limit": limit,
        }

    return [verdict(tool) for tool in visible]


def _omission(
    mode: ExposureMode, settings: GatewaySection, is_selected: bool, found: JudgedTool | None, listed: int
) -> tuple[Omission | Cut, float | None]:
    hybrid = settings.hybrid
    match mode:
        case ExposureMode.META_ONLY | ExposureMode.FULL_PROXY:
            return Omission.META_ONLY, None
        case ExposureMode.HYBRID if not hybrid.expose_underlying_tools:
            return Omission.UNDERLYING_OFF, None
        case ExposureMode.HYBRID if not hybrid.apply_semantic_filter:
            return _cap(settings, listed)
        case ExposureMode.HYBRID | ExposureMode.SEMANTIC:
            if not is_selected:
                return Omission.NO_INTENT, None
            if found is None:
                return Omission.NOT_FOUND, None
            if found.cut is None:
                return _cap(settings, listed)
            return found.cut, hybrid.semantic_threshold if found.cut is Cut.THRESHOLD else None
        case _:
            assert_never(mode)


def _cap(settings: GatewaySection, listed: int) -> tuple[Omission, float | None]:
    """Return the cap that leaves out a tool that fits: the list is full, or there is no room for its tokens."""
    hybrid = settings.hybrid
    if listed >= hybrid.max_underlying_tools or hybrid.max_tokens is None:
        return Omission.COUNT_CAP, hybrid.max_underlying_tools
    return Omission.TOKEN_CAP, hybrid.max_tokens
