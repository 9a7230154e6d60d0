"""Reasons why each tool is listed, callable or absent for one client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from pml_gateway.catalog.model import Catalog, CatalogTool
from pml_gateway.catalog.ownership import Ownership
from pml_gateway.catalog.visibility import absent_tools
from pml_gateway.config.settings import GatewaySection
from pml_gateway.exposure.modes import ListedTool, SearchTools, expose
from pml_gateway.exposure.patterns import ToolGrants, compile_grants, compile_patterns
from pml_gateway.policy.client import Client
from pml_gateway.types import ExposureMode


class HidingRule(StrEnum):
    """Cause that removed a tool from a client's view."""

    BLACKLISTED = "blacklisted"
    DENIED = "denied to this client"
    NOT_ALLOWED = "not among what this client is allowed"
    HIDDEN = "hidden: runs inside composite tools only"
    CAPABILITIES = "its server offers it only to clients that can be asked for something"


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A tool outside a client's view, the rule, and the entry of it that matched."""

    tool: CatalogTool
    rule: HidingRule
    pattern: str | None = None


def exclusions(catalog: Catalog, client: Client, blacklist: Sequence[str]) -> tuple[Exclusion, ...]:
    """Return the reason for each tool outside the client's view, in catalog order. For the owner, never the client."""
    unlisted = absent_tools(catalog.visibility.absent_for(client.client_capabilities))
    allow = compile_grants(client.allow, catalog.ownership)
    found = (_exclusion(tool, client, allow, blacklist, unlisted) for tool in catalog.tools)
    return tuple(each for each in found if each is not None)


def _exclusion(
    tool: CatalogTool,
    client: Client,
    allow: ToolGrants,
    blacklist: Sequence[str],
    unlisted: frozenset[tuple[str, str]],
) -> Exclusion | None:
    for rule, entries in ((HidingRule.BLACKLISTED, blacklist), (HidingRule.DENIED, client.deny)):
        pattern = next((entry for entry in entries if compile_patterns([entry]).matches(tool)), None)
        if pattern is not None:
            return Exclusion(tool, rule, pattern)
    if not allow.admits(tool):
        return Exclusion(tool, HidingRule.NOT_ALLOWED)
    if tool.hidden:
        return Exclusion(tool, HidingRule.HIDDEN)
    return Exclusion(tool, HidingRule.CAPABILITIES) if (tool.upstream_id, tool.name) in unlisted else None


class Omission(StrEnum):
    """Return the reason why a visible tool is not listed."""

    META_ONLY = "this mode lists meta-tools only"
    UNDERLYING_OFF = "hybrid.expose_underlying_tools is off"
    NO_INTENT = "no intent to select by"
    NOT_FOUND = "the search does not find it"
    BELOW_THRESHOLD = "score below the threshold"
    COUNT_CAP = "cut by max_underlying_tools"
    TOKEN_CAP = "cut by max_tokens"


@dataclass(frozen=True, slots=True)
class VisibilityVerdict:
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
    *,
    ownership: Ownership,
) -> tuple[VisibilityVerdict, ...]:
    """Return the reason why each visible tool is listed or not, in catalog order.

    What is listed is what `expose` lists; the rest is told from what it had to go by.
    """
    exposure = expose(mode, visible, search, settings, intent, most_used, ownership=ownership)
    listed = {each.tool.qualified_name: each for each in exposure.tools}
    legacy = {tool.qualified_name for tool in exposure.legacy}
    places: dict[str, tuple[int, float]] = {}
    if exposure.selected_by_intent and intent is not None:
        found = search(intent, len(visible))
        places = {tool.qualified_name: (place, score) for place, (tool, score) in enumerate(found, 1)}

    def verdict(tool: CatalogTool) -> VisibilityVerdict:
        name = tool.qualified_name
        place, score = places.get(name, (None, None))
        if name in listed:
            return VisibilityVerdict(tool, True, listed[name].reason.value, score, place)
        if name in legacy:
            return VisibilityVerdict(tool, True, "legacy", score, place)
        reason, limit = _omission(mode, settings, intent, score, listed)
        return VisibilityVerdict(tool, False, reason.value, score, place, limit)

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
    """Return the list goes up to the count, or it ends earlier at the first tool that would pass the token limit."""
    hybrid = settings.hybrid
    if len(listed) >= hybrid.max_underlying_tools or hybrid.max_tokens is None:
        return Omission.COUNT_CAP, hybrid.max_underlying_tools
    return Omission.TOKEN_CAP, hybrid.max_tokens
