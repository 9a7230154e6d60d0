"""Each client request becomes a trace that its log lines, errors, calls and metrics refer to."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerMiddleware, ServerRequestContext
from mcp.shared.exceptions import MCPError

from pml_gateway.errors import ErrorCode
from pml_gateway.policy.client import Client
from pml_gateway.server.request import RequestScope
from pml_gateway.telemetry.observe import PROTOCOL_ERROR, Telemetry, outcome_of
from pml_gateway.telemetry.spans import continuing
from pml_gateway.telemetry.trace import CURRENT_TRACE, Trace, new_request_id, trace_parent

Context = ServerRequestContext[Any, Any]


def observe_requests(scope_of: Callable[[Context], RequestScope], telemetry: Telemetry | None) -> ServerMiddleware[Any]:
    """The outermost middleware: whatever runs inside knows the request it works for."""

    async def observe(ctx: Context, call_next: CallNext) -> HandlerResult:
        scope = scope_of(ctx)
        # The message's own trace context is closer to its cause than that of the HTTP request around it.
        in_meta = trace_parent(ctx.meta)
        trace = Trace(
            scope.request_id or new_request_id(), shown_client(scope.client), in_meta or scope.parent, telemetry
        )
        token = CURRENT_TRACE.set(trace)
        try:
            with continuing(scope.parent) if scope.parent and not in_meta else nullcontext():
                if telemetry is None or ctx.request_id is None:
                    return await call_next(ctx)
                return await _watched(ctx, call_next, trace, telemetry)
        finally:
            CURRENT_TRACE.reset(token)

    return observe


async def _watched(ctx: Context, call_next: CallNext, trace: Trace, telemetry: Telemetry) -> HandlerResult:
    started = time.perf_counter()
    code = ErrorCode.CANCELLED.value
    try:
        result = await call_next(ctx)
        code = trace.code or outcome_of(result)
        return result
    except MCPError:
        code = PROTOCOL_ERROR
        raise
    except Exception:
        code = ErrorCode.INTERNAL.value
        raise
    finally:
        seconds = time.perf_counter() - started
        for observer in telemetry.observers:
            observer.requested(ctx.method, trace.client, code, seconds)


def shown_client(client: Client) -> str:
    """A client's name for logs and metrics: configured ones by name, and never the id of a session, which is a key."""
    kind, _, name = client.id.partition(":")
    return name if kind == "client" else "anonymous" if kind == "session" else kind
