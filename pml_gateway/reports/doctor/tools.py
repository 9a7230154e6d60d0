"""Doctor: entries of lists that name no tool, and tools that had to be repaired."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pml_gateway.catalog.model import Catalog, CatalogTool
from pml_gateway.config.settings import Settings
from pml_gateway.exposure.patterns import unmatched
from pml_gateway.exposure.validation import schema_digests
from pml_gateway.reports.doctor.finding import Area, Finding, Severity
from pml_gateway.text import counted, nearest

NAME_REPAIR = "name:"
"""How the catalog marks the repair of a name, among those of schemas."""


def tools(settings: Settings, catalog: Catalog, silent: Sequence[str]) -> Iterator[Finding]:
    """Lists first, then repairs; `silent` servers have no known tools, so that entries may be theirs."""
    if not catalog.tools:
        return
    wrong = list(_unmatched(settings, catalog, silent))
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


def _entries(settings: Settings) -> Mapping[str, Sequence[str]]:
    gateway = settings.gateway
    entries: dict[str, Sequence[str]] = {
        "gateway.blacklisted_tools": gateway.blacklisted_tools,
        "gateway.hybrid.whitelisted_tools": gateway.hybrid.whitelisted_tools,
    }
    for group, members in gateway.namespaces.groups.items():
        entries[f"gateway.namespaces.groups.{group}"] = members
    for name, client in settings.clients.items():
        entries[f"clients.{name}.allow"] = client.allow
        entries[f"clients.{name}.deny"] = client.deny
    return entries


def _unmatched(settings: Settings, catalog: Catalog, silent: Sequence[str]) -> Iterator[Finding]:
    names = [name for tool in catalog.tools for name in (tool.qualified_name, tool.source)]
    for key, entries in _entries(settings).items():
        for entry in unmatched(entries, catalog.tools):
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
