"""State of connected clients: capabilities, instructions, roots, log levels, and disconnection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import mcp_types
from mcp.server.connection import Connection
from mcp.shared.dispatcher import CallOptions, ProgressFnT

from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.request import (
    LOG_LEVEL_KEY,
    Context,
    RequestAudience,
    RequestScope,
    effective_mode,
    given_capabilities,
    is_modern,
    question_for,
)
from pml_gateway.gateway.state import GatewayState
from pml_gateway.mcp.capabilities import UNKNOWN, ClientCapabilities, ServerCapabilities, announcement
from pml_gateway.mcp.elicitation import LOG_LEVELS, Audience
from pml_gateway.mcp.sdk import connection_of
from pml_gateway.policy.principal import Principal
from pml_gateway.policy.view import View
from pml_gateway.text import shortened
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.dialogue.local_clients import LocalClients

MAX_NAME = 80


def client_name(params: Mapping[str, Any] | None) -> str:
    """Return the client's name and version from the params of a handshake or request, or an empty text."""
    given = params or {}
    meta = given.get("_meta")
    info = given.get("clientInfo") or (meta.get(mcp_types.CLIENT_INFO_META_KEY) if isinstance(meta, Mapping) else None)
    if not isinstance(info, dict):
        return ""
    told = (info.get("title") or info.get("name"), info.get("version"))
    return shortened(" ".join(" ".join(each for each in told if isinstance(each, str)).split()), MAX_NAME)


def _visible_capabilities(view: View) -> Iterator[ServerCapabilities]:
    """Yield the capabilities of the visible upstreams."""
    for upstream_id, said in view.said.items():
        if said is None and view.offers.may_permit(upstream_id):
            yield UNKNOWN
        elif said is not None and view.sees_any_of(upstream_id):
            yield said.capabilities


async def with_announcements(state: GatewayState, scope: RequestScope, answer: JsonObject) -> JsonObject:
    """Return the SDK's answer to a client's first request, with what the servers it sees can do and have to say."""
    view, mode = state.view(scope.client), effective_mode(scope, state.settings.gateway)
    instructions = await anyio.to_thread.run_sync(state.instructions, view, mode)
    capabilities = announcement(answer["capabilities"], _visible_capabilities(view))
    told = {"instructions": instructions} if instructions else {}
    return {**answer, "capabilities": capabilities, **told}


DISCOVER = "server/discover"
"""The first request of a client of the stateless era."""

ROOTS_CHANGED = "notifications/roots/list_changed"


class ClientSessions:
    """The handshake sessions of each client."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._sessions: Counter[str] = Counter()

    def begin(self, ctx: Context) -> None:
        """Note a session that begins, and its end."""
        client_id = ctx.scope.client.id
        self._sessions[client_id] += 1
        connection_of(ctx).exit_stack.callback(partial(self._left, client_id))

    async def set_level(self, ctx: Context, params: mcp_types.SetLevelRequestParams) -> mcp_types.EmptyResult:
        """Set the client's log level."""
        connection_of(ctx).state[LOG_LEVEL_KEY] = params.level
        client_id = ctx.scope.client.id
        async with anyio.create_task_group() as tasks:
            for upstream in self._gateway.pool.upstreams.values():
                tasks.start_soon(upstream.sessions.own.set_log_level, client_id, params.level)
        return mcp_types.EmptyResult()

    async def roots_changed(self, ctx: Context, _: mcp_types.NotificationParams) -> None:
        """Note that a client's roots changed."""
        client_id = ctx.scope.client.id
        async with anyio.create_task_group() as tasks:
            for upstream in self._gateway.pool.upstreams.values():
                tasks.start_soon(upstream.sessions.own.notify, client_id, ROOTS_CHANGED)

    def _left(self, client_id: str) -> None:
        self._sessions[client_id] -= 1
        if self._sessions[client_id] > 0:
            return
        del self._sessions[client_id]
        for upstream in self._gateway.pool.upstreams.values():
            upstream.sessions.own.end_client(client_id)


class ConnectionAudience:
    """`Audience` over the connection of a local client, in its requests and between them."""

    is_one_client = True
    answers_later = False

    def __init__(
        self, connection: Connection, client: Principal, version: str, client_capabilities: ClientCapabilities
    ) -> None:
        self.client_id = client.id
        self.quota_key = client.quota_key
        self._connection = connection
        self._version = version
        self.client_capabilities = client_capabilities

    @property
    def log_level(self) -> str | None:
        """Return the log level that the client set last."""
        level = self._connection.state.get(LOG_LEVEL_KEY)
        return level if level in LOG_LEVELS else None

    async def ask(self, method: str, params: JsonObject, on_progress: ProgressFnT | None) -> JsonObject:
        """Its answer; servers ask for roots at once, and it may be asked only after its `initialized`."""
        await self._connection.initialized.wait()
        options: CallOptions = {} if on_progress is None else {"on_progress": on_progress}
        question = question_for(method, params, self._version)
        return await self._connection.outbound.send_raw_request(method, question, options)

    async def tell(self, method: str, params: JsonObject) -> None:
        """Pass on one notification, once it may get any."""
        if self._connection.initialized.is_set():
            await self._connection.notify(method, params)

    async def let_go(self) -> None:
        """Over stdio there is one stream, which stays."""


class KnownClients:
    """Notes what each client can be asked, has upstreams told of those on this machine, and lets each see its list."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._listings = gateway.updates.capability_listings

    async def admit(self, ctx: Context, *, may_wait: bool) -> None:
        """Note what the client can be asked, and wait until upstreams were listed for such clients."""
        if ctx.method == DISCOVER and given_capabilities(ctx).extended:
            view = self._gateway.state.view(ctx.scope.client)
            for upstream_id, upstream in self._gateway.pool.upstreams.items():
                if view.sees_any_of(upstream_id):
                    upstream.sessions.meet(RequestAudience(ctx))
        local = self._local(ctx)
        if local is None:
            client_capabilities = ctx.scope.client_capabilities = given_capabilities(ctx)
        else:
            client_id = ctx.scope.client.id
            if is_modern(ctx.protocol_version) and local.find(client_id) is None:
                # Later requests may say otherwise, each for itself; a list must not change with them.
                self._introduce(local, ctx, given_capabilities(ctx), None)
            client = local.find(client_id)
            if client is None or local.is_alone:
                return
            client_capabilities = client.client_capabilities
        key = self._note(ctx, client_capabilities)
        if key and may_wait and not self._listings.is_ready(key):
            await self._listings.wait(key)

    def introduce(self, ctx: Context, answer: JsonObject) -> None:
        """Take a handshake's word, which the SDK has accepted."""
        if (local := self._local(ctx)) is None:
            return
        client_capabilities, version = given_capabilities(ctx), answer["protocolVersion"]
        audience = ConnectionAudience(connection_of(ctx), ctx.scope.client, version, client_capabilities)
        self._introduce(local, ctx, client_capabilities, audience)
        if not local.is_alone:
            connection_of(ctx).exit_stack.callback(self._left, local, audience)
            self._note(ctx, client_capabilities)

    def _local(self, ctx: Context) -> LocalClients | None:
        """Return the clients on this machine, where this is one: they come by streams instead of HTTP."""
        return self._gateway.pool.local if ctx.request is None else None

    def _note(self, ctx: Context, client_capabilities: ClientCapabilities) -> str:
        client = ctx.scope.client
        key = self._listings.note_client(client_capabilities, client.quota_key)
        if client.client_capabilities != key:
            ctx.scope.client = replace(client, client_capabilities=key)
        return key

    def _introduce(
        self, local: LocalClients, ctx: Context, client_capabilities: ClientCapabilities, audience: Audience | None
    ) -> None:
        local.introduce(ctx.scope.client.id, client_capabilities, audience)
        for upstream in self._gateway.pool.upstreams.values():
            upstream.connector.meet_clients()

    def _left(self, local: LocalClients, audience: ConnectionAudience) -> None:
        client = local.find(audience.client_id)
        # It may have come again by another connection.
        if client is not None and client.audience is audience:
            end_local_client(self._gateway, audience.client_id)


def end_local_client(gateway: Gateway, client_id: str) -> None:
    """Free all that was a local client's which left."""
    if gateway.pool.local is not None:
        gateway.pool.local.leave(client_id)
    for upstream in gateway.pool.upstreams.values():
        upstream.sessions.end_local_client(client_id)
