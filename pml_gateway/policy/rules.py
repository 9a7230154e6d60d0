"""Rules: the entries that say what a principal may see and call."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.ownership import Ownership
from pml_gateway.config.presets import with_preset
from pml_gateway.config.settings import DirectCalls, GatewaySection, Settings
from pml_gateway.exposure.patterns import ToolGrants, ToolPatterns, about_meta_tools, compile_grants
from pml_gateway.types import Effect

GROUPS = "gateway.namespaces.groups."
"""The start of the keys of lists that give nothing: they sort what a client sees anyway."""


@dataclass(frozen=True)
class Grant:
    """Entries that give tools of these effects, of any if there are none, and prompts and resources, which are read."""

    entries: tuple[str, ...] = ("*",)
    effects: tuple[Effect, ...] = ()


@dataclass(frozen=True)
class Rules:
    """The rights of a principal; principals with equal rules share a view and its lists.

    Each group of `grants` must give a thing by one of its grants, and no entry of `deny` may match it. The others
    replace what the gateway's settings say, if they are not None.
    """

    grants: tuple[tuple[Grant, ...], ...] = ((Grant(),),)
    deny: tuple[str, ...] = ()
    meta_tools: tuple[str, ...] | None = None
    direct_calls: DirectCalls | None = None
    preset: str | None = None

    @cached_property
    def digest(self) -> str:
        """Return a short hash, for what is kept per rules."""
        return hashlib.sha256(json.dumps(astuple(self)[:2]).encode()).hexdigest()[:16]

    def compiled(self, ownership: Ownership) -> CompiledGrants:
        """Return what they give, given the owners of names."""
        return CompiledGrants(
            tuple(
                tuple((compile_grants(each.entries, ownership), frozenset(each.effects)) for each in group)
                for group in self.grants
            )
        )

    def replacing(self, gateway: GatewaySection) -> GatewaySection:
        """Return the gateway's settings with what these rules replace."""
        gateway = gateway if self.preset is None else with_preset(gateway, self.preset)
        given = {"meta_tools": self.meta_tools, "direct_calls": self.direct_calls}
        return gateway.model_copy(update={key: each for key, each in given.items() if each is not None})

    @property
    def denied_meta_tools(self) -> ToolPatterns:
        """Return what they deny of the gateway's own tools."""
        return about_meta_tools(self.deny)


@dataclass(frozen=True, slots=True)
class CompiledGrants:
    """The grants of rules, each with the effects that it is limited to."""

    groups: tuple[tuple[tuple[ToolGrants, frozenset[Effect]], ...], ...]

    @property
    def matches_all(self) -> bool:
        """Return True if everything is given."""
        return all(any(grants.matches_all and not effects for grants, effects in group) for group in self.groups)

    @property
    def of_offers(self) -> tuple[tuple[ToolGrants, ...], ...]:
        """Return the grants that may give prompts and resources, by group."""
        return tuple(
            tuple(grants for grants, effects in group if not effects or Effect.READ in effects) for group in self.groups
        )

    def admits(self, tool: CatalogTool, *, of_any_effect: bool = False) -> bool:
        """Return True if a tool is given, or would be if it had another effect."""
        return all(
            any(
                (of_any_effect or not effects or tool.effect in effects) and grants.admits(tool)
                for grants, effects in group
            )
            for group in self.groups
        )

    def gives_all_of(self, upstream_id: str) -> bool:
        """Return True if all tools that a server may have are given."""
        return all(
            any(not effects and grants.gives_all_of(upstream_id) for grants, effects in group) for group in self.groups
        )

    def may_admit(self, upstream_id: str) -> bool:
        """Return True if something of a server whose lists are not known yet may be given."""
        return all(any(grants.may_admit(upstream_id) for grants, _ in group) for group in self.groups)


EVERYTHING = Rules()


class HidingRule(StrEnum):
    """Cause that keeps a tool, prompt or resource from a client."""

    BLACKLISTED = "blacklisted"
    DENIED = "denied to this client"
    NOT_ALLOWED = "not among what this client is allowed"
    EFFECT = "no set that gives it allows its effect"
    HIDDEN = "hidden: runs inside composite tools only"
    APPS = "app-only: its server's user interface calls it, and no model"
    CAPABILITIES = "its server offers it only to clients that can be asked for something"
    REACH = "a tool that it calls is not available to this client"


class RuleList(NamedTuple):
    """One list of entries in the configuration, by its key."""

    key: str
    entries: tuple[str, ...]
    grants: bool


def rule_lists(settings: Settings) -> Iterator[RuleList]:
    """Yield each list whose entries name tools, prompts or resources."""
    gateway = settings.gateway
    yield RuleList("gateway.blacklisted_tools", gateway.blacklisted_tools, False)
    yield RuleList("gateway.hybrid.whitelisted_tools", gateway.hybrid.whitelisted_tools, True)
    for group, members in gateway.namespaces.groups.items():
        yield RuleList(GROUPS + group, members, True)
    for name, each in settings.sets.items():
        yield RuleList(f"sets.{name}.include", each.include, True)
        yield RuleList(f"sets.{name}.exclude", each.exclude, False)
    for name, client in settings.clients.items():
        yield RuleList(f"clients.{name}.allow", client.allow or (), True)
        yield RuleList(f"clients.{name}.deny", client.deny, False)
    for position, rule in enumerate(settings.rules):
        yield RuleList(f"rules.{position}.match.tool", rule.match.tool or (), rule.do == "allow")
