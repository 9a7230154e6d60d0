"""The one way of a message: a row of the method table says what happens to it, `Dispatch` takes it there and back.

Parse: the SDK checks the params against the row's model, after the protocol's own. Authorise: the client is known by
its key or session, and by what it can be asked; what it may see follows from that. Limit: requests in flight are
counted, so that an orderly end can wait for them. Handle: `handle` answers, and `finish` completes the answer that the
SDK has checked. Observe: a trace goes with the message, and its end becomes an event.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, cast

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from pml_gateway.delivery import DELIVERY
from pml_gateway.errors import ErrorCode, GatewayError
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.request import CONNECTION, Context, given_name, scoped
from pml_gateway.mcp.capabilities import is_of_protocol
from pml_gateway.mcp.sdk import OpenTelemetryMiddleware
from pml_gateway.policy.principal import Principal
from pml_gateway.results.answers import as_rpc_error
from pml_gateway.storage.pending import waits_in_process
from pml_gateway.storage.replicas import with_replica, without_replica
from pml_gateway.telemetry.events import INPUT_REQUIRED, PROTOCOL_ERROR, RequestEnded, code_of, outcome_of
from pml_gateway.telemetry.spans import Spans, continuing
from pml_gateway.telemetry.trace import CURRENT_TRACE, Trace, new_request_id, trace_parent
from pml_gateway.types import JsonObject

Handle = Callable[[Context, Any], Awaitable[Any]]
"""The answer to a message whose params the SDK has checked."""

Finish = Callable[[Context, JsonObject], Awaitable[JsonObject]]
"""The answer that clients get, from the one that the SDK has checked and put into its envelope."""


@dataclass(frozen=True, slots=True)
class Method:
    """Handler of one method; without `handle` the SDK serves it, and with `relay` it does not see the message.

    `waits_for_lists` says that an answer waits until upstreams were listed for a client like this one; `is_counted`,
    that an orderly end waits for the answer; `carries_state`, that a client may bring back sealed state with it.
    """

    name: str
    params: type[BaseModel] | None = None
    handle: Handle | None = None
    finish: Finish | None = None
    waits_for_lists: bool = True
    is_counted: bool = True
    carries_state: bool = False
    relay: Callable[[Context], Awaitable[HandlerResult]] | None = None


OTHER = ""
"""Name of the row for all other methods."""

LISTEN = "subscriptions/listen"
"""Stays open for as long as the client wants; nothing waits for its answer."""


class RequestAdmission(Protocol):
    """Makes a client known by what it can be asked, before its message is served."""

    async def admit(self, ctx: Context, *, may_wait: bool) -> None:
        """Take note of the client, and wait for the lists of clients like it, where that is allowed."""


class Dispatch:
    """The one middleware around the SDK's handlers."""

    def __init__(
        self,
        methods: Iterable[Method],
        gateway: Gateway,
        admission: RequestAdmission,
        boundary: RequestStateBoundary,
        spans: Spans | None,
    ) -> None:
        self._methods = {method.name: method for method in methods}
        self._gateway = gateway
        self._events = gateway.events
        self._in_flight = gateway.calls.counted
        self._admission = admission
        self._boundary = boundary
        self._spans = spans
        self._in_span = OpenTelemetryMiddleware()

    def serve_by(self, server: Server[Any]) -> None:
        """Have a server's messages pass here, and the methods of the table be handled as it says."""
        for method in self._methods.values():
            if method.params is None or method.handle is None:
                continue
            is_notice = method.name.startswith("notifications/")
            add = server.add_notification_handler if is_notice else server.add_request_handler
            # Every context that comes out of `__call__` is ours.
            add(method.name, method.params, cast(Any, method.handle))
        server.middleware[:] = [self]

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Serve one message."""
        request = scoped(ctx)
        request.scope.client = self._with_rights(request)
        method = self._methods.get(ctx.method) or self._methods[OTHER]
        # The message's own trace context is closer to its cause than that of the HTTP request around it.
        parent, in_meta = request.scope.parent, trace_parent(ctx.meta)
        request_id, client = request.scope.request_id or new_request_id(), request.scope.client.shown
        trace = Trace(request_id, client, in_meta or parent, self._events, self._spans)
        token = CURRENT_TRACE.set(trace)
        connection = CONNECTION.get()
        followed = None if connection is None or ctx.request_id is None else connection.delivery(ctx.request_id)
        delivery = DELIVERY.set(followed)
        started = time.perf_counter()
        try:
            with (
                request.scope.open_request,
                continuing(parent) if parent and not in_meta else nullcontext(),
                self._in_flight() if method.is_counted else nullcontext(),
            ):
                await self._admission.admit(request, may_wait=method.waits_for_lists and ctx.request_id is not None)
                serve = partial(self._serve, method, trace, call_next)
                # Without spans of our own there is only a client's trace to pass on; a span nobody sees costs 0.1 ms.
                is_traced = self._spans is not None or bool(in_meta)
                result = await (self._in_span(request, serve) if is_traced else serve(request))
            code = trace.code or outcome_of(result)
            if followed is not None and outcome_of(result) != INPUT_REQUIRED:
                followed.finished()
            return result
        except MCPError:
            code = trace.code or PROTOCOL_ERROR
            raise
        except BaseException as error:
            code = ErrorCode.INTERNAL.value if isinstance(error, Exception) else code_of(error)
            raise
        finally:
            if ctx.request_id is not None and self._events.reach(RequestEnded):
                self._events.publish(RequestEnded(ctx.method, client, code, time.perf_counter() - started))
            DELIVERY.reset(delivery)
            CURRENT_TRACE.reset(token)

    def _with_rights(self, ctx: Context) -> Principal:
        """Return the client with the rights that it has now, narrowed by the name that it gives itself."""
        client, state = ctx.scope.client, self._gateway.state
        if state.settings.gateway.sets_by_client_name:
            client = replace(client, client_name=given_name(ctx))
        # Requests that are under way when a key is taken away are ended by the transport.
        return state.with_current_rights(client) or client

    async def _serve(
        self, method: Method, trace: Trace, call_next: CallNext, ctx: ServerRequestContext[Any, Any]
    ) -> HandlerResult:
        """Return the SDK's answer, finished; whatever span it has is current."""
        if self._spans is not None:
            self._spans.about_request(trace.request_id, trace.client)
        answer = partial(_answered, method, call_next)
        result = await (self._with_state(ctx, answer) if method.carries_state else answer(ctx))
        if self._spans is not None and trace.code:
            self._spans.failed_with(trace.code)
        return result

    async def _with_state(self, ctx: ServerRequestContext[Any, Any], answer: CallNext) -> HandlerResult:
        """Answer a request, with its state unsealed; the state of what waits in this process names its replica."""
        replicas = self._gateway.replicas
        if replicas is None:
            return await self._boundary(ctx, answer)
        waits_here = False

        async def noted(ctx: ServerRequestContext[Any, Any]) -> HandlerResult:
            nonlocal waits_here
            result = await answer(ctx)
            waits_here = isinstance(result, dict) and waits_in_process(result.get("requestState"))
            return result

        state = (ctx.params or {}).get("requestState")
        if isinstance(state, str):
            ctx = replace(ctx, params={**(ctx.params or {}), "requestState": without_replica(state)[0]})
        result = await self._boundary(ctx, noted)
        if not waits_here or not isinstance(result, dict):
            return result
        return {**result, "requestState": with_replica(result["requestState"], replicas.own.id)}


async def _answered(method: Method, call_next: CallNext, ctx: ServerRequestContext[Any, Any]) -> HandlerResult:
    if method.relay is not None and not is_of_protocol(ctx.method):
        return await method.relay(cast(Context, ctx))
    result = await call_next(ctx)
    if method.finish is None or not isinstance(result, dict):
        return result
    return await method.finish(cast(Context, ctx), result)


def always(answer: BaseModel) -> Handle:
    """Handle one message: the client's result is put into `answer` once the SDK has checked it."""

    async def handle(_ctx: Context, _params: Any) -> BaseModel:
        return answer

    return handle


def with_rpc_errors(handle: Handle) -> Handle:
    """Handle one message: the gateway's own errors are those of the protocol."""

    async def handled(ctx: Context, params: Any) -> Any:
        try:
            return await handle(ctx, params)
        except GatewayError as error:
            raise as_rpc_error(error) from error

    return handled
