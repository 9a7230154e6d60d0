"""A request as the SDK hands it over becomes who asks, and what accompanies what is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pml_gateway.server.relay import RequestAudience
from pml_gateway.server.request import CURRENT, QUERY_META_KEY, CallOptions, RequestScope
from pml_gateway.types import JsonObject

SCOPE_KEY = "pml_gateway.scope"
"""Where the HTTP app leaves the `RequestScope` of a request in its ASGI scope."""

_OWN_META = ("io.modelcontextprotocol/", QUERY_META_KEY, "progressToken")

Context = ServerRequestContext[Any, Any]


def scope_of(ctx: Context) -> RequestScope:
    """The scope the transport left for this request; without one it is the local process's."""
    if ctx.request is None:
        return CURRENT.get() or RequestScope()
    scope: RequestScope = ctx.request.scope[SCOPE_KEY]
    return scope


def options_of(ctx: Context) -> CallOptions:
    """What accompanies a request that an upstream is to answer."""
    raw, scope = ctx.params or {}, scope_of(ctx)
    return CallOptions(
        on_progress=ctx.session.report_progress if _wants_progress(raw) else None,
        meta=_relayed_meta(raw),
        input_responses=raw.get("inputResponses"),
        request_state=raw.get("requestState"),
        may_ask=is_modern(ctx.protocol_version),
        audience=RequestAudience(ctx, scope.client, scope.abilities),
    )


def is_modern(version: str) -> bool:
    """Whether a protocol version belongs to the stateless era."""
    return version in MODERN_PROTOCOL_VERSIONS


def _wants_progress(params: Mapping[str, Any]) -> bool:
    meta = params.get("_meta")
    return isinstance(meta, Mapping) and meta.get("progressToken") is not None


def _relayed_meta(params: Mapping[str, Any]) -> JsonObject:
    """The request's own metadata, without what belongs to this hop."""
    meta = params.get("_meta")
    if not isinstance(meta, Mapping):
        return {}
    return {key: value for key, value in meta.items() if not key.startswith(_OWN_META)}
