"""Rules about single calls: which of them may decide about a tool for a client, in their order."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.ownership import Ownership
from pml_gateway.config.settings import RULE_PRESETS, MatchedEffect, RuleSettings
from pml_gateway.exposure.patterns import ToolGrants, ToolPatterns, compile_grants, compile_patterns
from pml_gateway.policy.principal import Principal
from pml_gateway.quotas import keep_latest
from pml_gateway.types import Effect

MAX_REMEMBERED = 4096
"""Pairs of a tool and a client of which the rules are remembered, as finding them takes microseconds a rule."""

Action = Literal["allow", "ask", "deny"]


@dataclass(frozen=True, slots=True)
class CallRule:
    """One rule, with its place in the configuration as its name; `tools` is None if it is about every tool."""

    name: str
    action: Action
    answered_by: Literal["owner", "client"]
    where: str | None
    tools: ToolPatterns | ToolGrants | None
    settings: RuleSettings

    def fits(self, tool: CatalogTool, client: Principal) -> bool:
        """Return True if the rule is about the calls of a tool by a client, whatever their arguments.

        Each step of a composite tool is decided by itself, so only rules that name a composite tool are about it.
        """
        match = self.settings.match
        if tool.reach and match.tool is None and match.server is None:
            return False
        if self.tools is not None:
            names_it = self.tools.admits if isinstance(self.tools, ToolGrants) else self.tools.matches
            if not names_it(tool):
                return False
        if match.server is not None and not _any_matches(match.server, tool.upstream_id):
            return False
        if match.effect is not None and not any(_has_effect(tool, effect) for effect in match.effect):
            return False
        if match.role is not None and not any(_any_matches(match.role, role) for role in client.roles):
            return False
        return match.client is None or _any_matches(match.client, client.shown)


class CallRules:
    """The rules of a configuration for the servers of one catalog."""

    def __init__(self, settings: Iterable[RuleSettings], ownership: Ownership) -> None:
        self.rules = tuple(_compiled(name, each, ownership) for name, each in named_rules(settings))
        self.may_ask = any(rule.action == "ask" or rule.where is not None for rule in self.rules)
        """True if a call may need an approval; a condition without a value asks as well."""
        self._about: dict[object, Sequence[CallRule]] = {}

    def about(self, tool: CatalogTool, client: Principal) -> Sequence[CallRule]:
        """Return the rules that may decide about calls of a tool by a client; the last of them has no condition."""
        key = (tool, client.roles, client.shown)
        known = self._about.get(key)
        if known is None:
            known = tuple(self._fitting(tool, client))
            keep_latest(self._about, key, known, MAX_REMEMBERED)
        return known

    def _fitting(self, tool: CatalogTool, client: Principal) -> Iterator[CallRule]:
        for rule in self.rules:
            if rule.fits(tool, client):
                yield rule
                if rule.where is None:
                    return


def named_rules(settings: Iterable[RuleSettings]) -> Iterator[tuple[str, RuleSettings]]:
    """Yield each rule under the key that it has in the configuration, those of presets in the preset's place."""
    for position, entry in enumerate(settings):
        if entry.preset is None:
            yield f"rules[{position}]", entry
        else:
            yield from ((f"rules[{position}] ({entry.preset})", each) for each in RULE_PRESETS[entry.preset])


def _compiled(name: str, settings: RuleSettings, ownership: Ownership) -> CallRule:
    action: Action = settings.do or "deny"
    named = settings.match.tool
    tools: ToolPatterns | ToolGrants | None = None
    if named is not None:
        # A server must not be able to name a tool so that it is allowed.
        allowing = action == "allow"
        tools = compile_grants(named, ownership) if allowing else compile_patterns(named, ownership.ids)
    return CallRule(name, action, settings.answered_by, settings.match.where, tools, settings)


def _any_matches(patterns: Iterable[str], name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _has_effect(tool: CatalogTool, wanted: MatchedEffect) -> bool:
    match wanted:
        case "destructive":
            return tool.effect in (Effect.DESTRUCTIVE, Effect.UNKNOWN)
        case "open_world":
            said = (tool.definition.get("annotations") or {}).get("openWorldHint")
            return said is True or (said is not False and tool.effect is not Effect.READ)
        case _:
            return tool.effect == Effect(wanted)
