"""The configured workflows: which tool each is, and why one is unavailable."""

from __future__ import annotations

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.manifest import ManifestFile
from pml_gateway.catalog.model import Catalog, UpstreamListing
from pml_gateway.config.settings import Settings
from pml_gateway.errors import ErrorCode
from pml_gateway.exposure.meta_tool import RESERVED
from pml_gateway.gateway.state import GatewayState, composites_of
from pml_gateway.paths import Paths
from pml_gateway.policy.client import LOCAL, configured_client
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


def composite_status(state: GatewayState) -> list[JsonObject]:
    """Return every workflow of the configuration, checked with the current tools."""
    rows: list[JsonObject] = []
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
    clients = [configured_client(client, entry) for client, entry in settings.clients.items()] or [LOCAL]
    lacking = []
    for client in clients:
        withheld = list(View(catalog, client, settings.gateway.blacklisted_tools).withheld(tool))
        if not withheld:
            return []
        if tool not in withheld:
            named = ", ".join(each.source for each in withheld[:MAX_NAMED])
            lacking.append(f"{named} for {client.id.removeprefix('client:')}" if settings.clients else named)
    if not lacking:
        return []
    remedy = "allow these tools" if settings.clients else "see gateway.blacklisted_tools"
    return [f"no client can call it, for want of {'; '.join(lacking[:MAX_NAMED])} ({remedy})"]


def workflow_warnings(settings: Settings, paths: Paths, identity: str) -> list[str]:
    """Return what prevents workflows from being served, by the tools last seen; connects to no server.

    A tool of a server that never listed anything is not missing, only unknown yet.
    """
    if not settings.workflows:
        return []
    naming = settings.naming
    manifest = ManifestFile.of(paths.manifest_dir, identity, naming.prefix, naming.max_length).load()
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
    warnings = []
    bound = composites_of(settings, catalog)
    catalog = with_composites(catalog, bound)
    for name, composite in bound.items():
        warnings += [f"workflows.{name}: {warning}" for warning in out_of_reach(settings, catalog, name, composite)]
        for problem in composite.problems:
            if problem.code is ErrorCode.NOT_FOUND and not is_complete:
                continue
            where = f"workflows.{name}{problem.path.replace('/', '.')}"
            hint = f" ({problem.hint})" if problem.hint else ""
            warnings.append(f"{where}: {problem.message}{hint}; this workflow is unavailable")
    return warnings
