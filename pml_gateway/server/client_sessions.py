"""What clients tell outside of calls, and their leaving, reach the upstream sessions that are theirs."""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from typing import Any

import anyio
import mcp_types
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity

from pml_gateway.server.gateway import Gateway
from pml_gateway.server.incoming import Context, scope_of
from pml_gateway.server.relay import LOG_LEVEL_KEY

STATE_SECONDS = 900.0
"""How long a sealed `requestState` is valid: as long as a run or a call may wait for its client at most."""

ROOTS_CHANGED = "notifications/roots/list_changed"


class ClientSessions:
    """The handshake sessions of each client."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._sessions: Counter[str] = Counter()

    def serve(self, server: Server[Any]) -> None:
        """Take part in the requests and notifications of a server."""
        server.add_request_handler("logging/setLevel", mcp_types.SetLevelRequestParams, self.set_level)
        server.add_notification_handler(ROOTS_CHANGED, mcp_types.NotificationParams, self.roots_changed)
        server.middleware.append(self.follow)
        # State that a client gives back is its own and of the same request, or it is refused.
        security = RequestStateSecurity(keys=[os.urandom(32)], ttl=STATE_SECONDS, bind_principal=_principal)
        server.middleware.append(RequestStateBoundary(security, default_audience=server.name))

    async def follow(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Note a session that begins, and its end."""
        result = await call_next(ctx)
        if ctx.method == "notifications/initialized":
            client_id, connection = scope_of(ctx).client.id, ctx.session._connection
            self._sessions[client_id] += 1
            connection.exit_stack.callback(partial(self._left, client_id))
        return result

    async def set_level(self, ctx: Context, params: mcp_types.SetLevelRequestParams) -> mcp_types.EmptyResult:
        """How much a client wants to be told, from now on."""
        ctx.session._connection.state[LOG_LEVEL_KEY] = params.level
        client_id = scope_of(ctx).client.id
        async with anyio.create_task_group() as tasks:
            for upstream in self._gateway.pool.upstreams.values():
                tasks.start_soon(upstream.set_log_level, client_id, params.level)
        return mcp_types.EmptyResult()

    async def roots_changed(self, ctx: Context, _: mcp_types.NotificationParams) -> None:
        """A client's roots changed."""
        client_id = scope_of(ctx).client.id
        async with anyio.create_task_group() as tasks:
            for upstream in self._gateway.pool.upstreams.values():
                tasks.start_soon(upstream.tell_of_client, client_id, ROOTS_CHANGED)

    def _left(self, client_id: str) -> None:
        self._sessions[client_id] -= 1
        if self._sessions[client_id] > 0:
            return
        del self._sessions[client_id]
        for upstream in self._gateway.pool.upstreams.values():
            upstream.end_client(client_id)


def _principal(ctx: Context) -> str:
    return scope_of(ctx).client.id
