"""A catalog and a client's rules become the reasons for which tools do not exist for that client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pml_gateway.catalog.gates import absent_tools
from pml_gateway.catalog.model import Catalog, CatalogTool
from pml_gateway.exposure.patterns import compile_patterns
from pml_gateway.policy.client import Client


class Rule(StrEnum):
    """What took a tool out of a client's view."""

    BLACKLISTED = "blacklisted"
    DENIED = "denied to this client"
    NOT_ALLOWED = "not among what this client is allowed"
    HIDDEN = "hidden: runs inside composite tools only"
    ABILITIES = "its server offers it only to clients that can be asked for something"


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A tool outside a client's view, the rule, and the entry of it that matched."""

    tool: CatalogTool
    rule: Rule
    pattern: str | None = None


def exclusions(catalog: Catalog, client: Client, blacklist: Sequence[str]) -> tuple[Exclusion, ...]:
    """Why each tool outside the client's view is there, in catalog order. For the owner's eyes, never the client's."""
    unlisted = absent_tools(catalog.gates.absent_for(client.abilities))
    found = (_exclusion(tool, client, blacklist, unlisted) for tool in catalog.tools)
    return tuple(each for each in found if each is not None)


def _exclusion(
    tool: CatalogTool, client: Client, blacklist: Sequence[str], unlisted: frozenset[tuple[str, str]]
) -> Exclusion | None:
    for rule, entries in ((Rule.BLACKLISTED, blacklist), (Rule.DENIED, client.deny)):
        pattern = next((entry for entry in entries if compile_patterns([entry]).matches(tool)), None)
        if pattern is not None:
            return Exclusion(tool, rule, pattern)
    if not compile_patterns(client.allow).matches(tool):
        return Exclusion(tool, Rule.NOT_ALLOWED)
    if tool.hidden:
        return Exclusion(tool, Rule.HIDDEN)
    return Exclusion(tool, Rule.ABILITIES) if (tool.upstream_id, tool.name) in unlisted else None
