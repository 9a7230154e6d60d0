"""Entries of lists that give or take no tool: they name none, or a name that any server could choose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pml_gateway.catalog.model import Catalog
from pml_gateway.config.findings import Area, Finding, Severity
from pml_gateway.config.servers import disabled_tools
from pml_gateway.config.settings import META_TOOLS, Settings
from pml_gateway.exposure.patterns import (
    about_meta_tools,
    compile_grants,
    compile_patterns,
    unmatched,
    without_grants,
)
from pml_gateway.policy.prompts_and_resources import is_about_offers
from pml_gateway.policy.rules import GROUPS, rule_lists
from pml_gateway.text import nearest
from pml_gateway.trust.pins import ServerPins

MAX_NAMED = 3

_FOR_TOOLS_ONLY = ("gateway.hybrid.", GROUPS, "rules.")
"""Lists that say nothing of prompts and resources; the others hold for them too."""


def idle_entries(
    settings: Settings, catalog: Catalog, pins: Mapping[str, ServerPins], silent: Sequence[str] = ()
) -> Iterator[Finding]:
    """Find entries without effect; those that no tool matches may be about tools of servers that are `silent`."""
    if not catalog.tools:
        return
    names = [name for tool in catalog.tools for name in (tool.qualified_name, tool.source)]
    for key, entry, named in _idle(settings, catalog, pins):
        severity, what = Severity.WARNING, f"{entry!r} matches no tool"
        if named:
            shown = ", ".join(named[:MAX_NAMED])
            what = f"{entry!r} gives no tool: any server could call one as it names {shown}, without a server"
            fix = f"write {named[0]} in {key}"
        else:
            near = nearest(entry, names)
            fix = f"write {near[0]} in {key}" if near else f"take it out of {key}, or see the names with pml tools"
            if silent:
                severity, what = Severity.NOTE, f"{what} that is known; {', '.join(silent)} did not answer"
        yield Finding(Area.TOOLS, severity, key, what, fix)
    yield from _idle_tool_settings(settings, catalog, pins)


def _idle_tool_settings(settings: Settings, catalog: Catalog, pins: Mapping[str, ServerPins]) -> Iterator[Finding]:
    """Find settings of tools that their server does not have; a server without known tools may have any."""
    for server, definition in settings.servers.items():
        known = {tool.name for tool in catalog.tools if tool.upstream_id == server}
        if not known or not definition.enabled:
            continue
        judged = pins.get(server)
        pinned = (
            {name for _, name in (*judged.held, *judged.rejected, *judged.accepted)} if judged is not None else set()
        )
        for name, tool in definition.tools.items():
            # What is disabled is in no catalog: only pins know if the server has it.
            if name not in known | pinned and (tool.enabled or pinned):
                key = f"servers.{server}.tools"
                near = nearest(name, known)
                fix = f"write {near[0]} in {key}" if near else f"take it out of {key}, or see the names with pml tools"
                yield Finding(Area.TOOLS, Severity.WARNING, key, f"{server} has no tool {name!r}", fix)


def _idle(settings: Settings, catalog: Catalog, pins: Mapping[str, ServerPins]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield entries that do nothing, by key, with the tools that they name and do not give."""
    # What is held back, rejected or disabled is in no catalog, and entries about it are right.
    judged = [(server, name) for server, each in pins.items() for _, name in (*each.held, *each.rejected)]
    absent = [
        f"{server}{separator}{name}"
        for server, name in (*judged, *disabled_tools(settings.servers))
        for separator in (":", "__")
    ]
    for key, entries, gives in rule_lists(settings):
        if gives:
            idle = without_grants(entries, catalog.tools, catalog.ownership)
        else:
            idle = {
                entry: []
                for entry in unmatched(entries, catalog.tools, catalog.ownership.ids)
                if not _denies_meta_tool(key, entry)
            }
        for entry, named in idle.items():
            patterns = compile_patterns([entry])
            rules = compile_grants([entry], catalog.ownership) if gives else patterns
            is_of_tools = key.startswith(_FOR_TOOLS_ONLY)
            if not patterns.matches_any(absent) and (
                is_of_tools or not is_about_offers(entry, rules, catalog.offers, settings.servers)
            ):
                yield key, entry, named


def _denies_meta_tool(key: str, entry: str) -> bool:
    """Return True if an entry hides a meta-tool from a client; the blacklist applies to servers' tools only."""
    return key.startswith(("clients.", "sets.")) and about_meta_tools([entry]).matches_any(META_TOOLS)
