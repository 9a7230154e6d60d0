"""The running gateway becomes a plain report for people and programs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from pml_gateway import __version__
from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.offers import OfferKind
from pml_gateway.server.gateway import Gateway
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.lifecycle import UpstreamState
from pml_gateway.upstreams.upstream import Upstream


async def read_logins(gateway: Gateway) -> None:
    """Look at the stored logins, which other processes change, before a report."""
    for upstream in gateway.pool.upstreams.values():
        if upstream.authorization is not None:
            await upstream.authorization.read()


def gateway_status(gateway: Gateway) -> JsonObject:
    """Mode, catalog size and every upstream; times in seconds."""
    settings = gateway.state.settings
    tools: dict[str, list[CatalogTool]] = {}
    for tool in gateway.state.catalog.tools:
        tools.setdefault(tool.upstream_id, []).append(tool)
    return {
        "pid": os.getpid(),
        "version": __version__,
        "mode": settings.gateway.tools_exposure.value,
        "tools": len(gateway.state.catalog.tools),
        "upstreams": [
            _upstream(gateway, upstream, tools.get(upstream.upstream_id, ()))
            for upstream in gateway.pool.upstreams.values()
        ],
    }


def _upstream(gateway: Gateway, upstream: Upstream, tools: Sequence[CatalogTool]) -> JsonObject:
    listed = upstream.last_listed
    offers = gateway.state.catalog.offers
    return {
        "server": upstream.upstream_id,
        "state": upstream.state.value,
        "transport": upstream.definition.resolved_transport.value,
        "era": listed.era if listed else None,
        "tools": len(tools),
        **{
            str(kind): sum(1 for each in offers.of_kind(kind) if each.upstream_id == upstream.upstream_id)
            for kind in OfferKind
        },
        "stale": upstream.state is UpstreamState.FAILED and bool(tools),
        "latency_seconds": upstream.last_call_seconds or (listed.seconds if listed else None),
        "age_seconds": round(time.time() - listed.listed_at, 3) if listed else None,
        "in_flight": upstream.in_flight,
        "auth": upstream.authorization.status() if upstream.authorization else {"state": "not_needed"},
        "breaker": upstream.breaker.report(),
        "error": str(upstream.last_error) if upstream.last_error else None,
        "repaired": [{"tool": tool.qualified_name, "repairs": list(tool.repairs)} for tool in tools if tool.repairs],
    }
