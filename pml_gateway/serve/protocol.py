"""The MCP server in front of a gateway: the table of its methods, and what the SDK asks beforehand."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, cast

import mcp_types
from cachetools import FIFOCache
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.inbound import x_mcp_header_map
from mcp_types.methods import INPUT_REQUIRED_METHODS

from pml_gateway import __version__
from pml_gateway.catalog.model import CatalogTool
from pml_gateway.exposure.grouping import find_namespace
from pml_gateway.exposure.meta_tool import RESERVED
from pml_gateway.gateway.calling import Caller
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.prompts_and_resources import EMPTY_ANSWERS, PromptAndResourceRequests
from pml_gateway.gateway.request import Context, current_scope, options_of
from pml_gateway.serve import finished_list
from pml_gateway.serve.clients import (
    ROOTS_CHANGED,
    ClientSessions,
    KnownClients,
    with_announcements,
)
from pml_gateway.serve.list_changes import Subscribers
from pml_gateway.serve.messages.written import large_apart
from pml_gateway.serve.methods import LISTEN, Dispatch, Method, always
from pml_gateway.telemetry.spans import Spans
from pml_gateway.types import JsonObject

MAX_REMEMBERED = 1000


class HeaderSchemas:
    """Input schemas by tool name, as the current client may see them; none where no parameter travels in a header."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._remembered: FIFOCache[str, tuple[CatalogTool, Mapping[str, Any] | None]] = FIFOCache(MAX_REMEMBERED)

    def __call__(self, name: str) -> Mapping[str, Any] | None:
        state = self._gateway.state
        if name in RESERVED:
            # Meta-tools and namespaces take no arguments from headers.
            return None
        view = state.view(current_scope().client)
        if find_namespace(state.namespaces(view), name) is not None:
            return None
        tool = view.resolve(name)
        if tool is None:
            return None
        known = self._remembered.get(name)
        if known is None or known[0] is not tool:
            schema: Mapping[str, Any] = tool.definition["inputSchema"]
            # Walking a schema takes longer than all else here.
            known = tool, schema if x_mcp_header_map(schema) else None
            self._remembered[name] = known
        return known[1]


class GatewayServer(Server[Any]):
    """The SDK's server; it announces list changes, which the SDK leaves off unless every transport is told."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """Return the handshake's answer, with `tools.listChanged`."""
        options = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(options, experimental_capabilities, extensions)


STATE_SECONDS = 900.0
"""Seconds that a sealed `requestState` is valid: the longest time that a run or call waits for its client."""


def method_table(
    gateway: Gateway,
    caller: Caller,
    subscribers: Subscribers,
    offers: PromptAndResourceRequests,
    sessions: ClientSessions,
    clients: KnownClients,
) -> Iterator[Method]:
    """Return the handler of each method."""

    async def call_tool(ctx: Context, params: mcp_types.CallToolRequestParams) -> JsonObject:
        arguments = dict(params.arguments or {})
        result = await caller.call(ctx.scope, params.name, arguments, options_of(ctx), ctx.protocol_version)
        seen, apart = await large_apart(result, ctx.scope)
        ctx.apart.update(apart)
        return {**seen, "content": []} if "content" in apart else seen

    async def with_apart(ctx: Context, answer: JsonObject) -> JsonObject:
        return {**answer, **ctx.apart} if ctx.apart else answer

    async def offer(ctx: Context, envelope: JsonObject) -> JsonObject:
        seen, apart = await large_apart(await offers.answer(ctx, envelope), ctx.scope)
        return {**seen, **apart}

    async def begin_session(ctx: Context, _: mcp_types.NotificationParams) -> None:
        sessions.begin(ctx)
        await subscribers.add_session(ctx)

    async def announce(ctx: Context, answer: JsonObject) -> JsonObject:
        state = gateway.state
        return await with_announcements(state, state.view(ctx.scope.client), answer)

    async def greet(ctx: Context, answer: JsonObject) -> JsonObject:
        clients.introduce(ctx, answer)
        return await announce(ctx, answer)

    # What servers can do depends on their lists, too, but the first answer must not wait for it.
    yield Method("initialize", finish=greet, waits_for_lists=False)
    yield Method("server/discover", finish=announce, waits_for_lists=False)
    yield Method("ping", waits_for_lists=False)
    yield Method("notifications/initialized", mcp_types.NotificationParams, begin_session)
    yield Method(ROOTS_CHANGED, mcp_types.NotificationParams, sessions.roots_changed)
    yield Method("logging/setLevel", mcp_types.SetLevelRequestParams, sessions.set_level, waits_for_lists=False)
    yield Method(LISTEN, mcp_types.SubscriptionsListenRequestParams, subscribers.listen, is_counted=False)
    fill = partial(finished_list.fill, gateway)
    yield Method("tools/list", mcp_types.PaginatedRequestParams, always(finished_list.EMPTY), fill)
    yield Method("tools/call", mcp_types.CallToolRequestParams, call_tool, with_apart, carries_state=True)
    for name, (params, empty) in EMPTY_ANSWERS.items():
        yield Method(name, params, always(empty), offer, carries_state=name in INPUT_REQUIRED_METHODS)


def build_server(
    gateway: Gateway,
    caller: Caller,
    subscribers: Subscribers,
    offers: PromptAndResourceRequests,
    spans: Spans | None = None,
) -> GatewayServer:
    """Return the MCP server in front of a gateway."""
    server = GatewayServer(
        "pml-gateway",
        version=__version__,
        title="PML Gateway",
        get_tool_input_schema=HeaderSchemas(gateway),
    )
    clients = KnownClients(gateway)
    methods = method_table(gateway, caller, subscribers, offers, ClientSessions(gateway), clients)
    # State that a client gives back is its own and of the same request, or it is refused.
    security = RequestStateSecurity(keys=[os.urandom(32)], ttl=STATE_SECONDS, bind_principal=_principal)
    boundary = RequestStateBoundary(security, default_audience=server.name)
    Dispatch(methods, gateway, clients, boundary, spans).serve_by(server)
    return server


def _principal(ctx: ServerRequestContext[Any, Any]) -> str:
    return cast(Context, ctx).scope.client.id
