"""Doctor: entries of lists that name no tool, and tools that had to be repaired."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from pml_gateway.catalog.model import Catalog, CatalogTool
from pml_gateway.config.servers import disabled_tools
from pml_gateway.config.settings import META_TOOLS, Settings
from pml_gateway.exposure.patterns import (
    about_meta_tools,
    compile_grants,
    compile_patterns,
    unmatched,
    without_grants,
)
from pml_gateway.exposure.validation import schema_digests
from pml_gateway.policy.prompts_and_resources import is_about_offers
from pml_gateway.reports.doctor.finding import Area, Finding, Severity
from pml_gateway.text import counted, nearest
from pml_gateway.trust.pins import ServerPins

MAX_NAMED = 3

_FOR_TOOLS_ONLY = ("gateway.hybrid.", "gateway.namespaces.")
"""Lists that say nothing of prompts and resources; the others hold for them too."""

NAME_REPAIR = "name:"
"""Prefix of the catalog's repairs that concern a name rather than a schema."""


def tools(
    settings: Settings, catalog: Catalog, silent: Sequence[str], kept_away: Collection[str] = ()
) -> Iterator[Finding]:
    """Check lists, then repairs; `silent` servers have no known tools, so entries may be theirs."""
    if not catalog.tools:
        return
    wrong = list(_unmatched(settings, catalog, silent, kept_away))
    yield from wrong
    if not wrong:
        yield Finding(Area.TOOLS, Severity.OK, "", f"{counted(len(catalog.tools), 'tool')}; every list entry names one")
    by_server: dict[str, list[CatalogTool]] = {}
    for tool in catalog.tools:
        if tool.repairs:
            by_server.setdefault(tool.upstream_id, []).append(tool)
    for server, repaired in by_server.items():
        yield from _repaired(server, repaired)


def checked_shallowly(catalog: Catalog, exceeded: Mapping[str, str]) -> Iterator[Finding]:
    """Tools whose schema took too much when arguments were checked with it, by server."""
    if not exceeded:
        return
    by_server: dict[str, list[str]] = {}
    for tool in catalog.tools:
        for why in [exceeded[digest] for digest in schema_digests(tool) if digest in exceeded][:1]:
            by_server.setdefault(tool.upstream_id, []).append(f"{tool.qualified_name}: ended after {why}")
    for server, lines in by_server.items():
        yield Finding(
            Area.TOOLS,
            Severity.WARNING,
            server,
            f"the input schemas of {counted(len(lines), 'tool')} take too long to check arguments with; only types and "
            "required names are checked, and the server gets the rest",
            "tell its author that combinations and references multiply in them, or take the tools away with "
            "gateway.blacklisted_tools",
            tuple(lines),
        )


def _entries(settings: Settings) -> Iterator[tuple[str, Sequence[str], bool]]:
    """Each list by its key, and whether its entries give tools or take them away."""
    gateway = settings.gateway
    yield "gateway.blacklisted_tools", gateway.blacklisted_tools, False
    yield "gateway.hybrid.whitelisted_tools", gateway.hybrid.whitelisted_tools, True
    for group, members in gateway.namespaces.groups.items():
        yield f"gateway.namespaces.groups.{group}", members, True
    for name, client in settings.clients.items():
        yield f"clients.{name}.allow", client.allow, True
        yield f"clients.{name}.deny", client.deny, False


def _denies_meta_tool(key: str, entry: str) -> bool:
    """Return True if an entry hides a meta-tool from a client; the blacklist applies to servers' tools only."""
    return key.startswith("clients.") and about_meta_tools([entry]).matches_any(META_TOOLS)


def kept_away(pinned: Mapping[str, ServerPins], settings: Settings) -> frozenset[str]:
    """Return the names held back, rejected or disabled: they are in no catalog, and rules about them are right."""
    judged = [(server, name) for server, pins in pinned.items() for _, name in (*pins.held, *pins.rejected)]
    return frozenset(
        f"{server}{separator}{name}"
        for server, name in (*judged, *disabled_tools(settings.servers))
        for separator in (":", "__")
    )


def disabled(settings: Settings) -> Iterator[Finding]:
    """Tools that are switched off in the configuration, by server."""
    for server, definition in settings.servers.items():
        if definition.enabled and (names := sorted(definition.disabled_tools)):
            yield Finding(
                Area.TOOLS,
                Severity.NOTE,
                server,
                f"{counted(len(names), 'tool')} disabled: {', '.join(names)}",
                f"to have one again: pml enable {server}:{names[0]}",
            )


def idle_entries(
    settings: Settings, catalog: Catalog, kept_away: Collection[str] = ()
) -> Iterator[tuple[str, str, list[str]]]:
    """Entries that do nothing, by key, with the tools that they name and do not give, since any server could."""
    for key, entries, gives in _entries(settings):
        if gives:
            idle = without_grants(entries, catalog.tools, catalog.ownership)
        else:
            idle = {entry: [] for entry in unmatched(entries, catalog.tools) if not _denies_meta_tool(key, entry)}
        for entry, named in idle.items():
            if compile_patterns([entry]).matches_any(kept_away):
                continue
            if not key.startswith(_FOR_TOOLS_ONLY):
                rules = compile_grants([entry], catalog.ownership) if gives else compile_patterns([entry])
                if is_about_offers(entry, rules, catalog.offers, settings.servers):
                    continue
            yield key, entry, named


def _unmatched(
    settings: Settings, catalog: Catalog, silent: Sequence[str], kept_away: Collection[str]
) -> Iterator[Finding]:
    names = [name for tool in catalog.tools for name in (tool.qualified_name, tool.source)]
    for key, entry, named in idle_entries(settings, catalog, kept_away):
        if named:
            shown = ", ".join(named[:MAX_NAMED])
            what = f"{entry!r} gives no tool: any server could call one as it names {shown}, without a server"
            yield Finding(Area.TOOLS, Severity.WARNING, key, what, f"write {named[0]} in {key}")
        else:
            near = nearest(entry, names)
            fix = f"write {near[0]} in {key}" if near else f"take it out of {key}, or see the names with pml tools"
            what = f"{entry!r} matches no tool"
            if silent:
                yield Finding(
                    Area.TOOLS, Severity.NOTE, key, f"{what} that is known; {', '.join(silent)} did not answer", fix
                )
            else:
                yield Finding(Area.TOOLS, Severity.WARNING, key, what, fix)


def _repaired(server: str, repaired: Sequence[CatalogTool]) -> Iterator[Finding]:
    for what, is_name in (("names", True), ("schemas", False)):
        lines = [
            f"{tool.qualified_name}: {repair.removeprefix(NAME_REPAIR).strip()}"
            for tool in repaired
            for repair in tool.repairs
            if repair.startswith(NAME_REPAIR) is is_name
        ]
        if not lines:
            continue
        yield Finding(
            Area.TOOLS,
            Severity.NOTE,
            server,
            f"{len(lines)} repairs of {what}, so that every client takes its tools",
            "nothing to do; its author may want to know",
            tuple(lines),
        )
