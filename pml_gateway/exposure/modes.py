"""Exposure modes: one function each, from the tools a client may see to those it gets listed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.ownership import Ownership
from pml_gateway.catalog.wire import encode
from pml_gateway.config.settings import GatewaySection
from pml_gateway.exposure.history import NOTHING_FOLLOWED, Followed
from pml_gateway.exposure.patterns import compile_grants
from pml_gateway.exposure.token_count import count_definition_tokens
from pml_gateway.types import MODES, ExposureMode

if TYPE_CHECKING:
    from pml_gateway.index.selection import Cut

ScoredTools = Sequence[tuple[CatalogTool, float]]


@dataclass(frozen=True, slots=True)
class JudgedTool:
    """A tool that a search found for an intent, with its calibrated score, and why a list leaves it out, if it does."""

    tool: CatalogTool
    score: float
    cut: Cut | None = None


SelectTools = Callable[[str], Sequence[JudgedTool]]
"""Judges the tools that the client may see for an intent: those that fit first, best first."""


class ListReason(StrEnum):
    """Reason for listing a tool."""

    WHITELISTED = "whitelisted"
    HIT = "fits the intent"
    USED = "among the most used"
    FIRST = "first in catalog order"
    FOLLOWED = "fits what the session searched for"
    JUST_USED = "the session just used it"
    EVERYTHING = "everything is listed"


@dataclass(frozen=True, slots=True)
class ListedTool:
    """One upstream tool on the list, with the reason."""

    tool: CatalogTool
    reason: ListReason
    score: float | None = None


@dataclass(frozen=True, slots=True)
class ModeExposure:
    """The list for one request: upstream tools sorted by name, with or without the meta-tools.

    `namespaces` replaces the meta-tools other than the search with one tool per group; `legacy` are the upstream tools
    listed next to those, marked as such. With
    `as_sent`, valid schemas keep what model APIs refuse: the client gets the same as from the server itself.
    """

    meta_tools: bool
    tools: tuple[ListedTool, ...] = ()
    selected_by_intent: bool = False
    namespaces: bool = False
    legacy: tuple[CatalogTool, ...] = ()
    as_sent: bool = False

    def names(self) -> frozenset[str]:
        """Return the qualified names of the listed upstream tools."""
        listed = [*(listed.tool for listed in self.tools), *self.legacy]
        return frozenset(tool.qualified_name for tool in listed)


def expose(
    mode: ExposureMode,
    visible: Sequence[CatalogTool],
    select: SelectTools,
    settings: GatewaySection,
    intent: str | None,
    most_used: Sequence[CatalogTool] = (),
    *,
    ownership: Ownership,
    followed: Followed = NOTHING_FOLLOWED,
) -> ModeExposure:
    """Apply a mode to the tools that this client may see, without the blacklisted and forbidden ones.

    `most_used` are the visible tools that were called before, most used first; `ownership` decides which tools the
    whitelist means. What a session just `followed` selects as the intent does, and before it.
    """
    exposure = _expose(mode, visible, select, settings, intent, most_used, ownership, followed)
    if settings.style != "namespaces" or not MODES[mode].has_namespaces or not exposure.meta_tools:
        return exposure
    listed = exposure.names()
    legacy = [tool for tool in visible if settings.legacy_tools and tool.qualified_name not in listed]
    return replace(exposure, namespaces=True, legacy=tuple(sorted(legacy, key=lambda tool: tool.qualified_name)))


def lists_meta_tools(mode: ExposureMode, settings: GatewaySection) -> bool:
    """Return True if a mode lists the meta-tools."""
    match mode:
        case ExposureMode.META_ONLY | ExposureMode.SEMANTIC:
            return True
        case ExposureMode.HYBRID:
            return settings.hybrid.expose_meta_tools
        case ExposureMode.FULL_PROXY:
            return settings.full_proxy.expose_meta_tools
        case _:
            assert_never(mode)


def _expose(
    mode: ExposureMode,
    visible: Sequence[CatalogTool],
    select: SelectTools,
    settings: GatewaySection,
    intent: str | None,
    most_used: Sequence[CatalogTool],
    ownership: Ownership,
    followed: Followed,
) -> ModeExposure:
    match mode:
        case ExposureMode.META_ONLY:
            return ModeExposure(meta_tools=True)
        case ExposureMode.SEMANTIC:
            selected = _selected(visible, select, intent, followed)
            is_selected = intent is not None or bool(followed)
            return ModeExposure(True, _within_caps((), selected, settings), selected_by_intent=is_selected)
        case ExposureMode.HYBRID:
            return _hybrid(visible, select, settings, intent, most_used, ownership, followed)
        case ExposureMode.FULL_PROXY:
            everything = [ListedTool(tool, ListReason.EVERYTHING) for tool in visible]
            return ModeExposure(lists_meta_tools(mode, settings), _by_name(everything), as_sent=True)
        case _:
            assert_never(mode)


def _hybrid(
    visible: Sequence[CatalogTool],
    select: SelectTools,
    settings: GatewaySection,
    intent: str | None,
    most_used: Sequence[CatalogTool],
    ownership: Ownership,
    followed: Followed,
) -> ModeExposure:
    hybrid = settings.hybrid
    if not hybrid.expose_underlying_tools:
        return ModeExposure(hybrid.expose_meta_tools)
    whitelist = compile_grants(hybrid.whitelisted_tools, ownership)
    whitelisted = [ListedTool(tool, ListReason.WHITELISTED) for tool in visible if whitelist.admits(tool)]
    is_selected = False
    others: Iterable[ListedTool]
    if not hybrid.apply_semantic_filter:
        others = (ListedTool(tool, ListReason.FIRST) for tool in visible)
    elif intent is None and not followed:
        others = (ListedTool(tool, ListReason.USED) for tool in most_used if hybrid.fallback == "usage")
    else:
        others, is_selected = _selected(visible, select, intent, followed), True
    listed = _within_caps(whitelisted, others, settings)
    return ModeExposure(hybrid.expose_meta_tools, listed, selected_by_intent=is_selected)


def _selected(
    visible: Sequence[CatalogTool], select: SelectTools, intent: str | None, followed: Followed
) -> Iterator[ListedTool]:
    """Yield the tools that a session just used, then those that fit its searches, the latest first, or the intent."""
    if followed.used:
        by_source = {(tool.upstream_id, tool.name): tool for tool in visible}
        used = filter(None, map(by_source.get, followed.used))
        yield from (ListedTool(tool, ListReason.JUST_USED) for tool in used)
    texts = [(text, ListReason.FOLLOWED) for text in followed.searches]
    for text, reason in [*texts, *([] if intent is None else [(intent, ListReason.HIT)])]:
        yield from (ListedTool(each.tool, reason, each.score) for each in select(text) if each.cut is None)


def _within_caps(
    whitelisted: Sequence[ListedTool], others: Iterable[ListedTool], settings: GatewaySection
) -> tuple[ListedTool, ...]:
    """Return, by name, the whitelisted tools, which count towards the caps but are never cut, and the first `others`.

    One that `max_tokens` has no room for is left out; smaller ones may follow.
    """
    hybrid = settings.hybrid
    kept = {listed.tool.qualified_name: listed for listed in whitelisted}
    tokens = sum(map(_tokens, kept.values())) if hybrid.max_tokens is not None else 0
    for listed in others:
        if len(kept) >= hybrid.max_underlying_tools:
            break
        if listed.tool.qualified_name in kept:
            continue
        if hybrid.max_tokens is not None:
            if tokens + (more := _tokens(listed)) > hybrid.max_tokens:
                continue
            tokens += more
        kept[listed.tool.qualified_name] = listed
    return _by_name(kept.values())


def _tokens(listed: ListedTool) -> int:
    return count_definition_tokens(encode(listed.tool.definition))


def _by_name(tools: Iterable[ListedTool]) -> tuple[ListedTool, ...]:
    return tuple(sorted(tools, key=lambda listed: listed.tool.qualified_name))
