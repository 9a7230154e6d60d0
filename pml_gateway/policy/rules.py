"""Rules: the entries that say what a principal may see and call."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from pml_gateway.catalog.ownership import Ownership
from pml_gateway.config.settings import Settings
from pml_gateway.exposure.patterns import (
    ToolGrants,
    ToolPatterns,
    about_meta_tools,
    compile_grants,
    compile_patterns,
)

GROUPS = "gateway.namespaces.groups."
"""The start of the keys of lists that give nothing: they sort what a client sees anyway."""


@dataclass(frozen=True)
class Rules:
    """Entries that allow, and entries that deny, which win; principals with equal rules share a view."""

    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """Return a short hash, for what is kept per rules."""
        return hashlib.sha256(json.dumps((self.allow, self.deny)).encode()).hexdigest()[:16]

    def grants(self, ownership: Ownership) -> ToolGrants:
        """Return what they allow, given the owners of names."""
        return compile_grants(self.allow, ownership)

    @property
    def denials(self) -> ToolPatterns:
        """Return what they deny."""
        return compile_patterns(self.deny)

    @property
    def denied_meta_tools(self) -> ToolPatterns:
        """Return what they deny of the gateway's own tools."""
        return about_meta_tools(self.deny)


EVERYTHING = Rules()


class HidingRule(StrEnum):
    """Cause that keeps a tool, prompt or resource from a client."""

    BLACKLISTED = "blacklisted"
    DENIED = "denied to this client"
    NOT_ALLOWED = "not among what this client is allowed"
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
    for name, client in settings.clients.items():
        yield RuleList(f"clients.{name}.allow", client.allow, True)
        yield RuleList(f"clients.{name}.deny", client.deny, False)
