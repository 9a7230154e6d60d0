"""Exposure modes: one function each, from the tools a client may see to those it gets listed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.ownership import Ownership
from pml_gateway.catalog.wire import encode
from pml_gateway.config.settings import GatewaySection
from pml_gateway.exposure.focus import NOT_FOCUSED, FocusedTools
from pml_gateway.exposure.patterns import compile_grants
from pml_gateway.exposure.token_count import count_definition_tokens
from pml_gateway.types import MODES, ExposureMode

ScoredTools = Sequence[tuple[CatalogTool, float]]
SearchTools = Callable[[str, int], ScoredTools]
"""Searches: (intent, limit) to the best tools that the client may see, best first, with calibrated scores."""


class ListReason(StrEnum):
    """Reason for listing a tool."""

    WHITELISTED = "whitelisted"
    HIT = "hit"
    USED = "among the most used"
    FIRST = "first in catalog order"
    FOCUSED = "the session focused on it"
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
    listed next to those, marked as such. `offers_focus` lists the meta-tool `focus` even if no setting does. With
    `as_sent`, valid schemas keep what model APIs refuse: the client gets the same as from the server itself.
    """

    meta_tools: bool
    tools: tuple[ListedTool, ...] = ()
    selected_by_intent: bool = False
    namespaces: bool = False
    legacy: tuple[CatalogTool, ...] = ()
    offers_focus: bool = False
    as_sent: bool = False

    def names(self) -> frozenset[str]:
        """Return the qualified names of the listed upstream tools."""
        listed = [*(listed.tool for listed in self.tools), *self.legacy]
        return frozenset(tool.qualified_name for tool in listed)


def expose(
    mode: ExposureMode,
    visible: Sequence[CatalogTool],
    search: SearchTools,
    settings: GatewaySection,
    intent: str | None,
    most_used: Sequence[CatalogTool] = (),
    *,
    ownership: Ownership,
    focused: FocusedTools = NOT_FOCUSED,
) -> ModeExposure:
    """Apply a mode to the tools that this client may see, without the blacklisted and forbidden ones.

    `most_used` are the visible tools that were called before, most used first; `ownership` decides which tools the
    whitelist means. Tools in `focused` are listed as if they were whitelisted.
    """
    first = [ListedTool(tool, ListReason.FOCUSED) for tool in focused.tools]
    exposure = _expose(mode, visible, search, settings, intent, most_used, ownership, first)
    if focused.is_offered and exposure.meta_tools:
        exposure = replace(exposure, offers_focus=True)
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
    search: SearchTools,
    settings: GatewaySection,
    intent: str | None,
    most_used: Sequence[CatalogTool],
    ownership: Ownership,
    focused: Sequence[ListedTool],
) -> ModeExposure:
    match mode:
        case ExposureMode.META_ONLY:
            return ModeExposure(meta_tools=True, tools=_by_name(focused))
        case ExposureMode.SEMANTIC:
            return _semantic(search, settings, intent, focused)
        case ExposureMode.HYBRID:
            return _hybrid(visible, search, settings, intent, most_used, ownership, focused)
        case ExposureMode.FULL_PROXY:
            everything = [ListedTool(tool, ListReason.EVERYTHING) for tool in visible]
            return ModeExposure(lists_meta_tools(mode, settings), _by_name(everything), as_sent=True)
        case _:
            assert_never(mode)


def _semantic(
    search: SearchTools, settings: GatewaySection, intent: str | None, focused: Sequence[ListedTool]
) -> ModeExposure:
    if intent is None:
        return ModeExposure(meta_tools=True, tools=_by_name(focused))
    listed = _within_caps(focused, _hits(search, settings, intent, len(focused)), settings)
    return ModeExposure(meta_tools=True, tools=_by_name(listed), selected_by_intent=True)


def _hybrid(
    visible: Sequence[CatalogTool],
    search: SearchTools,
    settings: GatewaySection,
    intent: str | None,
    most_used: Sequence[CatalogTool],
    ownership: Ownership,
    focused: Sequence[ListedTool],
) -> ModeExposure:
    hybrid = settings.hybrid
    if not hybrid.expose_underlying_tools:
        return ModeExposure(hybrid.expose_meta_tools, _by_name(focused))
    whitelist = compile_grants(hybrid.whitelisted_tools, ownership)
    whitelisted = [ListedTool(tool, ListReason.WHITELISTED) for tool in visible if whitelist.admits(tool)]
    whitelisted += focused
    if not hybrid.apply_semantic_filter:
        first: Iterable[ListedTool] = (ListedTool(tool, ListReason.FIRST) for tool in visible)
        return ModeExposure(hybrid.expose_meta_tools, _by_name(_within_caps(whitelisted, first, settings)))
    if intent is None:
        used = [ListedTool(tool, ListReason.USED) for tool in most_used] if hybrid.fallback == "usage" else []
        return ModeExposure(hybrid.expose_meta_tools, _by_name(_within_caps(whitelisted, used, settings)))
    hits = _hits(search, settings, intent, len(whitelisted))
    return ModeExposure(
        hybrid.expose_meta_tools, _by_name(_within_caps(whitelisted, hits, settings)), selected_by_intent=True
    )


def _hits(search: SearchTools, settings: GatewaySection, intent: str, whitelisted: int) -> list[ListedTool]:
    hybrid = settings.hybrid
    # Whitelisted tools may take any of the first places, so that many more hits are requested.
    scored = search(intent, hybrid.max_underlying_tools + whitelisted)
    return [ListedTool(tool, ListReason.HIT, score) for tool, score in scored if score >= hybrid.semantic_threshold]


def _within_caps(
    whitelisted: Sequence[ListedTool], others: Iterable[ListedTool], settings: GatewaySection
) -> list[ListedTool]:
    """Return whitelisted and focused tools, which count towards the caps but are never cut, and the best `others`."""
    hybrid = settings.hybrid
    kept = list({listed.tool.qualified_name: listed for listed in whitelisted}.values())
    names = {listed.tool.qualified_name for listed in kept}
    tokens = sum(_tokens(listed) for listed in kept) if hybrid.max_tokens is not None else 0
    for listed in others:
        if len(kept) >= hybrid.max_underlying_tools:
            break
        if listed.tool.qualified_name in names:
            continue
        if hybrid.max_tokens is not None:
            tokens += _tokens(listed)
            if tokens > hybrid.max_tokens:
                break
        names.add(listed.tool.qualified_name)
        kept.append(listed)
    return kept


def _tokens(listed: ListedTool) -> int:
    return count_definition_tokens(encode(listed.tool.definition))


def _by_name(tools: Iterable[ListedTool]) -> tuple[ListedTool, ...]:
    return tuple(sorted(tools, key=lambda listed: listed.tool.qualified_name))
