"""Each client request gets a trace that its log lines, errors, calls and metrics refer to."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from mcp.server._otel import OpenTelemetryMiddleware  # which the SDK puts into every server
from mcp.server.context import CallNext, HandlerResult, ServerMiddleware, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from pml_gateway.errors import ErrorCode
from pml_gateway.gateway.request import RequestScope
from pml_gateway.policy.client import Client
from pml_gateway.telemetry.events import PROTOCOL_ERROR, Telemetry, outcome_of
from pml_gateway.telemetry.spans import Spans, continuing
from pml_gateway.telemetry.trace import CURRENT_TRACE, Trace, new_request_id, trace_parent

Context = ServerRequestContext[Any, Any]


def watch_requests(
    server: Server[Any], scope_of: Callable[[Context], RequestScope], telemetry: Telemetry | None
) -> None:
    """Let whatever a request causes know the request it works for."""
    if telemetry is not None and telemetry.spans is not None:
        server.middleware.append(_describer(telemetry.spans))
    else:
        server.middleware[:] = [
            _where_traced(each) if isinstance(each, OpenTelemetryMiddleware) else each for each in server.middleware
        ]
    # Around the SDK's own, which opens the request's span.
    server.middleware.insert(0, _observer(scope_of, telemetry))


def _where_traced(middleware: OpenTelemetryMiddleware) -> ServerMiddleware[Any]:
    """Without spans of our own there is only a client's trace to pass on; a span nobody sees costs 0.1 ms."""

    async def pass_on(ctx: Context, call_next: CallNext) -> HandlerResult:
        return await (middleware(ctx, call_next) if trace_parent(ctx.meta) else call_next(ctx))

    return pass_on


def _describer(spans: Spans) -> ServerMiddleware[Any]:
    async def describe(ctx: Context, call_next: CallNext) -> HandlerResult:
        trace = CURRENT_TRACE.get()
        if trace is not None:
            spans.about_request(trace.request_id, trace.client)
        result = await call_next(ctx)
        if trace is not None and trace.code:
            spans.failed_with(trace.code)
        return result

    return describe


def _observer(scope_of: Callable[[Context], RequestScope], telemetry: Telemetry | None) -> ServerMiddleware[Any]:
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
        code = trace.code or PROTOCOL_ERROR
        raise
    # Counted, whatever it is, and raised again.
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
