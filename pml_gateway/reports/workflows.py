"""The configured workflows: which tool each is, and why one is unavailable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypedDict

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.manifest import ManifestFile
from pml_gateway.catalog.model import Catalog, UpstreamListing
from pml_gateway.config.findings import Area, Finding, Severity
from pml_gateway.config.settings import Settings
from pml_gateway.errors import ErrorCode
from pml_gateway.exposure.meta_tool import RESERVED
from pml_gateway.gateway.state import GatewayState, composites_of
from pml_gateway.paths import Paths
from pml_gateway.policy.principal import LOCAL, configured
from pml_gateway.policy.view import View
from pml_gateway.text import first_sentence
from pml_gateway.types import JsonObject
from pml_gateway.workflow.composite import (
    COMPOSITES,
    Composite,
    composite_listing,
    ownership_of,
    read_composites,
    with_composites,
)
from pml_gateway.workflow.plan import limits_of

MAX_NAMED = 4
"""Clients in a warning, and tools that each of them lacks."""


class CheckedWorkflow(TypedDict):
    """Workflow of the configuration, checked with the current tools."""

    name: str
    tool: str | None
    description: str
    steps: int
    hidden: bool
    problems: list[JsonObject]
    warnings: list[str]


def composite_status(state: GatewayState) -> list[CheckedWorkflow]:
    """Return every workflow of the configuration, checked with the current tools."""
    rows: list[CheckedWorkflow] = []
    for name, composite in state.composites.items():
        definition = composite.definition
        rows.append(
            {
                "name": name,
                "tool": state.catalog.assignments.get((COMPOSITES, name)),
                "description": first_sentence(definition.description) if definition is not None else "",
                "steps": len(definition.steps) if definition is not None else 0,
                "hidden": definition is not None and definition.hidden,
                "problems": [problem.as_json() for problem in composite.problems],
                "warnings": out_of_reach(state.settings, state.catalog, name, composite),
            }
        )
    return rows


def out_of_reach(settings: Settings, catalog: Catalog, name: str, composite: Composite) -> list[str]:
    """Reason why no client may call a workflow that the clients' rules would allow.

    It is called by other workflows where it is hidden, and where no client may call it by name, that is meant.
    """
    tool = catalog.owned(COMPOSITES, name)
    if tool is None or composite.problems or composite.definition is None or composite.definition.hidden:
        return []
    clients = [*configured(settings).values()] or [LOCAL]
    lacking = []
    for client in clients:
        withheld = list(View(catalog, client, settings.gateway.blacklisted_tools).withheld(tool))
        if not withheld:
            return []
        if tool not in withheld:
            named = ", ".join(each.source for each in withheld[:MAX_NAMED])
            lacking.append(f"{named} for {client.shown}" if settings.requires_keys else named)
    if not lacking:
        return []
    remedy = "allow these tools" if settings.requires_keys else "see gateway.blacklisted_tools"
    return [f"no client can call it, for want of {'; '.join(lacking[:MAX_NAMED])} ({remedy})"]


def workflow_findings(settings: Settings, paths: Paths, identity: str) -> Iterator[Finding]:
    """Find what prevents workflows from being served, by the tools last seen; connects to no server.

    A tool of a server that never listed anything is not missing, only unknown yet.
    """
    naming = settings.naming
    manifest = ManifestFile(paths.manifest_dir, identity, naming.prefix).load()
    known = {
        upstream_id: entry.tools
        for upstream_id, entry in manifest.entries.items()
        if upstream_id in settings.servers and entry.fingerprint == settings.servers[upstream_id].fingerprint()
    }
    listings = [UpstreamListing(upstream_id, known.get(upstream_id, ())) for upstream_id in settings.servers]
    composites = composite_listing(read_composites(settings.workflows, limits_of(settings.workflow)))
    catalog = build_catalog(
        [*listings, composites] if composites is not None else listings,
        prefix=naming.prefix,
        max_length=naming.max_length,
        reserved=RESERVED,
        earlier=manifest.names,
        former=manifest.former_names,
        ownership=ownership_of(settings.servers),
    )
    is_complete = all(upstream_id in known for upstream_id, entry in settings.servers.items() if entry.enabled)
    bound = composites_of(settings, catalog)
    catalog = with_composites(catalog, bound)
    for name, composite in bound.items():
        for warning in out_of_reach(settings, catalog, name, composite):
            yield Finding(Area.CONFIGURATION, Severity.WARNING, f"workflows.{name}", warning)
        for problem in composite.problems:
            if problem.code is not ErrorCode.NOT_FOUND or is_complete:
                where = f"workflows.{name}{problem.path.replace('/', '.')}"
                yield Finding(Area.CONFIGURATION, Severity.ERROR, where, problem.message, problem.hint)
