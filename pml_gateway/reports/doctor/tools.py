"""Doctor: entries of lists that name no tool, and tools that had to be repaired."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pml_gateway.catalog.model import Catalog, CatalogTool
from pml_gateway.config.settings import Settings
from pml_gateway.exposure.patterns import compile_grants, compile_patterns, unmatched, without_grants
from pml_gateway.exposure.validation import schema_digests
from pml_gateway.policy.prompts_and_resources import OfferView
from pml_gateway.reports.doctor.finding import Area, Finding, Severity
from pml_gateway.text import counted, nearest

MAX_NAMED = 3

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


def idle_entries(settings: Settings, catalog: Catalog) -> Iterator[tuple[str, str, list[str]]]:
    """Entries without a tool, by key, with the tools that they name and do not give, since any server could.

    What is about prompts or resources is not among them.
    """
    for key, entries, gives in _entries(settings):
        if gives:
            idle = without_grants(entries, catalog.tools, catalog.ownership)
        else:
            idle = {entry: [] for entry in unmatched(entries, catalog.tools)}
        yield from ((key, entry, named) for entry, named in idle.items() if not _is_about_offers(entry, catalog))


def _is_about_offers(entry: str, catalog: Catalog) -> bool:
    """Whether an entry means prompts or resources; a URI may be one that no server lists."""
    if "://" in entry:
        return True
    view = OfferView(catalog.offers, compile_grants(["*"], catalog.ownership), (compile_patterns([entry]),))
    return any(not view.permits(offer.upstream_id, offer.name) for offer in catalog.offers.offers)


def _unmatched(settings: Settings, catalog: Catalog, silent: Sequence[str]) -> Iterator[Finding]:
    names = [name for tool in catalog.tools for name in (tool.qualified_name, tool.source)]
    for key, entry, named in idle_entries(settings, catalog):
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
