"""Doctor: entries of lists that name no tool, tools that had to be repaired, and definitions that are held back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.config.findings import Area, Finding, SettingsCase, Severity
from pml_gateway.exposure.validation import schema_digests
from pml_gateway.policy.idle_entries import idle_entries
from pml_gateway.reports.doctor.cases import StartedCase
from pml_gateway.text import counted, quoted
from pml_gateway.trust.identity import SERVER, Key

MAX_NAMED = 5

NAME_REPAIR = "name:"
"""Prefix of the catalog's repairs that concern a name rather than a schema."""


def rules(case: StartedCase) -> Iterator[Finding]:
    """Find entries of lists that give or take no tool; they may be about tools of servers that are still unknown."""
    catalog = case.state.catalog
    wrong = [*idle_entries(case.settings, catalog, case.trust_gate.servers, case.silent)]
    yield from wrong
    if catalog.tools and not wrong:
        yield Finding(Area.TOOLS, Severity.OK, "", f"{counted(len(catalog.tools), 'tool')}; every list entry names one")


def repairs(case: StartedCase) -> Iterator[Finding]:
    """Tell what had to be repaired of the tools of each server."""
    by_server: dict[str, list[CatalogTool]] = {}
    for tool in case.state.catalog.tools:
        if tool.repairs:
            by_server.setdefault(tool.upstream_id, []).append(tool)
    for server, repaired in by_server.items():
        yield from _repaired(server, repaired)


def checked_shallowly(case: StartedCase) -> Iterator[Finding]:
    """Find tools whose schema took too much when arguments were checked with it, by server."""
    exceeded = case.exceeded
    if not exceeded:
        return
    by_server: dict[str, list[str]] = {}
    for tool in case.state.catalog.tools:
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


def disabled(case: SettingsCase) -> Iterator[Finding]:
    """Tell which tools are switched off in the configuration, by server."""
    for server, definition in case.settings.servers.items():
        if definition.enabled and (names := sorted(definition.disabled_tools)):
            yield Finding(
                Area.TOOLS,
                Severity.NOTE,
                server,
                f"{counted(len(names), 'tool')} disabled: {', '.join(names)}",
                f"to have one again: pml enable {server}:{names[0]}",
            )


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


def trust(case: StartedCase) -> Iterator[Finding]:
    """Check for definitions held back or flagged, and for an unusable file of pins."""
    trust_gate = case.trust_gate
    if trust_gate.file.problem:
        is_own = str(trust_gate.file.path) in trust_gate.file.problem
        fix = "make the folder writable, and see that the disk is not full" if is_own else "see storage below"
        yield Finding(
            Area.TRUST,
            Severity.WARNING,
            "",
            f"{trust_gate.file.problem}: what is accepted and held back is forgotten at every end",
            fix,
        )
    is_quiet = True
    for server, pins in trust_gate.servers.items():
        for keys, what in (
            (tuple(pins.held), f"{counted(len(pins.held), 'definition')} held back"),
            (pins.flagged, f"{counted(len(pins.flagged), 'accepted definition')} may be an attack"),
        ):
            if keys:
                is_quiet = False
                first = quoted(server if keys[0] == SERVER else f"{server}:{keys[0][1]}")
                fix = f"pml trust show {first}, then pml trust approve {first} or pml trust reject {first}"
                yield Finding(Area.TRUST, Severity.WARNING, server, f"{what}: {_names(keys)}", fix)
    if is_quiet and trust_gate.servers:
        pinned = sum(len(pins.accepted) for pins in trust_gate.servers.values())
        yield Finding(Area.TRUST, Severity.OK, "", f"{counted(pinned, 'definition')} pinned; none is held back")


def _names(keys: Sequence[Key]) -> str:
    names, more = ["the server itself" if key == SERVER else key[1] for key in keys[:MAX_NAMED]], len(keys) - MAX_NAMED
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")
