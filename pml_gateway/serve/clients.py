"""What clients can be asked, are told and tell: capabilities, instructions, roots, log levels, and their leaving."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import mcp_types
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerMiddleware
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from pydantic import ValidationError

from pml_gateway.catalog.prompts_and_resources import OfferKind
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.request import LOG_LEVEL_KEY, Context, given_capabilities, is_modern, question_for, scope_of
from pml_gateway.mcp.elicitation import LOG_LEVELS, NO_CAPABILITIES, Audience, Capabilities, capabilities_of
from pml_gateway.mcp.listing import TOOLS
from pml_gateway.policy.client import LOCAL
from pml_gateway.policy.view import View
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.capability_listing import CapabilityListings
from pml_gateway.upstreams.dialogue.stdio_client import StdioClient

_NOT_WAITING = frozenset({"initialize", "server/discover", "ping", "logging/setLevel"})
"""Requests whose answers do not depend on lists. What servers can do does, but it must not be waited for."""


def note_capabilities(listings: CapabilityListings) -> ServerMiddleware[Any]:
    """A middleware that has upstreams listed for each client that can be asked something, and lets it see that list."""

    async def noted(ctx: Context, call_next: CallNext) -> HandlerResult:
        client_capabilities = _announced(ctx) if ctx.method == "initialize" else given_capabilities(ctx)
        scope = scope_of(ctx)
        if ctx.method != "initialize":
            scope.client_capabilities = client_capabilities
        if client_capabilities:
            key = listings.note_client(client_capabilities)
            scope.client = replace(scope.client, client_capabilities=key)
            if not listings.is_ready(key) and not _is_answered_at_once(ctx.method):
                await listings.wait(key)
        return await call_next(ctx)

    return noted


def _announced(ctx: Context) -> Capabilities:
    """What a handshake says; one that says it wrongly is refused by the SDK."""
    try:
        return capabilities_of(
            mcp_types.ClientCapabilities.model_validate((ctx.params or {}).get("capabilities") or {})
        )
    except ValidationError:
        return NO_CAPABILITIES


def _is_answered_at_once(method: str) -> bool:
    return method in _NOT_WAITING or method.startswith("notifications/")


MAX_SERVER_INSTRUCTIONS = 2_000
MAX_INSTRUCTIONS = 8_000
"""Characters of instructions passed on, per server and in all: clients put them before every conversation."""

OFFERED = ("prompts", "resources", "completions")
"""The capabilities that depend on the upstreams."""

OWN_INSTRUCTIONS = (
    "A gateway to many MCP servers. Tools that are not listed are found with search_tools, whose answers say how to "
    "call them."
)


def offered_capabilities(view: View) -> JsonObject:
    """The capabilities beside tools: what a visible upstream has, or may have while nothing is known of it."""
    upstreams = view.said
    unknown = any(said is None and view.offers.may_permit(upstream_id) for upstream_id, said in upstreams.items())
    seen = [said for upstream_id, said in upstreams.items() if said is not None and is_seen(view, upstream_id)]
    capabilities: JsonObject = {}
    if unknown or any(said.has_prompts for said in seen):
        capabilities["prompts"] = {"listChanged": True}
    if unknown or any(said.has_resources for said in seen):
        capabilities["resources"] = {"subscribe": unknown or any(said.subscribes for said in seen), "listChanged": True}
    if unknown or any(said.completes for said in seen):
        capabilities["completions"] = {}
    return capabilities


def is_seen(view: View, upstream_id: str) -> bool:
    """Whether the client sees anything of an upstream, or would of one that has nothing."""
    if upstream_id in view.servers or upstream_id in view.offers.upstream_ids:
        return True
    catalog = view.catalog
    own = [(upstream_id, TOOLS, tool.name) for tool in catalog.tools if tool.upstream_id == upstream_id]
    own += [
        (upstream_id, kind, offer.name)
        for kind in OfferKind
        for offer in catalog.offers.of_kind(kind)
        if offer.upstream_id == upstream_id
    ]
    has_any = any(named not in view.absent for named in own)
    return not has_any and view.offers.permits(upstream_id, "")


def gathered_instructions(view: View) -> str:
    """The gateway's own instructions and those of the servers this client sees, in their order, within limits."""
    parts = [OWN_INSTRUCTIONS]
    left = MAX_INSTRUCTIONS
    for upstream_id, said in view.said.items():
        text = said.instructions.strip() if said is not None else ""
        if not text or left <= 0 or not is_seen(view, upstream_id):
            continue
        kept = text[: min(left, MAX_SERVER_INSTRUCTIONS)]
        left -= len(kept)
        parts.append(f"## {upstream_id}\n{kept}{'' if kept == text else ' [...]'}")
    return "\n\n".join(parts)


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


class ConnectionAudience:
    """`Audience` over the connection of the one client, in its requests and between them."""

    client_id = LOCAL.id
    is_one_client = True
    answers_later = False

    def __init__(self, connection: Connection, version: str, client_capabilities: Capabilities) -> None:
        self._connection = connection
        self._version = version
        self.client_capabilities = client_capabilities

    @property
    def log_level(self) -> str | None:
        """What it set last."""
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


def introduce_client(gateway: Gateway, client: StdioClient) -> ServerMiddleware[Any]:
    """A middleware that notes what the client can be asked, and has upstreams that were told otherwise told again."""

    def introduce(client_capabilities: Capabilities, audience: Audience | None) -> None:
        client.introduce(client_capabilities, audience)
        for upstream in gateway.pool.upstreams.values():
            upstream.meet_client()

    async def introduced(ctx: Context, call_next: CallNext) -> HandlerResult:
        if is_modern(ctx.protocol_version) and not client.known.is_set():
            # Later requests may say otherwise, each for itself; a list must not change with them.
            introduce(capabilities_of(ctx.session.client_capabilities), None)
        result = await call_next(ctx)
        if ctx.method == "initialize" and isinstance(result, dict):
            given = mcp_types.ClientCapabilities.model_validate((ctx.params or {}).get("capabilities") or {})
            client_capabilities = capabilities_of(given)
            introduce(
                client_capabilities,
                ConnectionAudience(ctx.session._connection, result["protocolVersion"], client_capabilities),
            )
        return result

    return introduced
