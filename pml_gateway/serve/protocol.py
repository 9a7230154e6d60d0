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
from pml_gateway.exposure.history import NOTHING_FOLLOWED, ListBasis
from pml_gateway.exposure.meta_tool import RESERVED
from pml_gateway.gateway.calling import Caller
from pml_gateway.gateway.events import ToolsListed
from pml_gateway.gateway.extension_requests import ExtensionRelay
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.prompts_and_resources import EMPTY_ANSWERS, PromptAndResourceRequests
from pml_gateway.gateway.request import (
    Context,
    call_intent,
    current_scope,
    followed,
    is_modern,
    list_intent,
)
from pml_gateway.gateway.tool_list import list_tools
from pml_gateway.serve.clients import (
    ROOTS_CHANGED,
    ClientSessions,
    KnownClients,
    with_announcements,
)
from pml_gateway.serve.list_changes import Subscribers
from pml_gateway.serve.messages.written import WrittenValue, large_apart
from pml_gateway.serve.methods import LISTEN, OTHER, Dispatch, Method, always, with_rpc_errors
from pml_gateway.serve.tasks import TaskMethods, UpdateTaskParams, with_tasks
from pml_gateway.storage.pending import MAX_SECONDS
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


EMPTY_LIST = mcp_types.ListToolsResult(tools=[], ttl_ms=0, cache_scope="public")
"""What the SDK checks of a list. Lists change without notice whenever their owner wants, so that none may be kept."""


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


def method_table(
    gateway: Gateway,
    subscribers: Subscribers,
    offers: PromptAndResourceRequests,
    sessions: ClientSessions,
    clients: KnownClients,
    extensions: ExtensionRelay,
    tasks: TaskMethods,
) -> Iterator[Method]:
    """Return the handler of each method."""

    async def call_tool(ctx: Context, params: mcp_types.CallToolRequestParams) -> JsonObject:
        result = await tasks.call(ctx, params)
        seen, apart = await large_apart(result, ctx.scope)
        ctx.apart.update(apart)
        return {**seen, "content": []} if "content" in apart else seen

    async def with_tools(ctx: Context, answer: JsonObject) -> JsonObject:
        scope = ctx.scope
        settings = gateway.state.settings.gateway
        intent = list_intent(ctx.params, scope, settings)
        # A request that says what it wants is answered by that alone.
        is_asked = intent != call_intent(scope, settings)
        follows = NOTHING_FOLLOWED if is_asked else followed(scope, settings)
        finished = await list_tools(gateway, scope, intent, ctx.protocol_version, follows)
        if "cacheScope" in answer and (intent is not None or gateway.state.settings.tells_clients_apart):
            answer = {**answer, "cacheScope": "private"}
        if scope.history is not None:
            scope.history.given = ListBasis(intent, follows)
        json = finished.tools_json
        gateway.events.publish(ToolsListed(gateway.state, scope, intent, json, finished.digest, ctx.protocol_version))
        return {**answer, "tools": WrittenValue([json], len(json), scope)}

    async def with_apart(ctx: Context, answer: JsonObject) -> JsonObject:
        # A task is an answer of its own, and not a member of a result.
        return ctx.apart if "task" in ctx.apart else {**answer, **ctx.apart}

    async def offer(ctx: Context, envelope: JsonObject) -> JsonObject:
        seen, apart = await large_apart(await offers.answer(ctx, envelope), ctx.scope)
        return {**seen, **apart}

    async def begin_session(ctx: Context, _: mcp_types.NotificationParams) -> None:
        sessions.begin(ctx)
        await subscribers.add_session(ctx)

    async def announce(ctx: Context, answer: JsonObject) -> JsonObject:
        told = await with_announcements(gateway.state, ctx.scope, answer)
        version = answer.get("protocolVersion", ctx.protocol_version)
        return {**told, "capabilities": with_tasks(told["capabilities"], version)}

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
    listen = with_rpc_errors(partial(tasks.listen, listen=subscribers.listen))
    yield Method(LISTEN, mcp_types.SubscriptionsListenRequestParams, listen, is_counted=False)
    yield Method("tools/list", mcp_types.PaginatedRequestParams, always(EMPTY_LIST), with_tools)
    yield Method("tools/call", mcp_types.CallToolRequestParams, call_tool, with_apart, carries_state=True)

    yield Method("tasks/get", mcp_types.GetTaskRequestParams, with_rpc_errors(tasks.get))
    yield Method("tasks/result", mcp_types.GetTaskPayloadRequestParams, with_rpc_errors(tasks.result), is_counted=False)
    yield Method("tasks/list", mcp_types.PaginatedRequestParams, with_rpc_errors(tasks.list))
    yield Method("tasks/cancel", mcp_types.CancelTaskRequestParams, with_rpc_errors(tasks.cancel))
    yield Method("tasks/update", UpdateTaskParams, with_rpc_errors(tasks.update))

    async def extend(ctx: Context) -> JsonObject | None:
        if ctx.request_id is None:
            await extensions.notify(ctx)
            return None
        answer = await extensions.request(ctx)
        return {"resultType": "complete", **answer} if is_modern(ctx.protocol_version) else answer

    yield Method(OTHER, relay=extend)
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
    sessions, extensions = ClientSessions(gateway), ExtensionRelay(gateway, caller)
    tasks = TaskMethods(caller, caller.tasks)
    methods = method_table(gateway, subscribers, offers, sessions, clients, extensions, tasks)
    # State that a client gives back is its own and of the same request, or it is refused.
    replicas = gateway.replicas
    key = os.urandom(32) if replicas is None else replicas.server.key_for("request state")
    security = RequestStateSecurity(keys=[key], ttl=MAX_SECONDS, bind_principal=_principal)
    boundary = RequestStateBoundary(security, default_audience=server.name)
    Dispatch(methods, gateway, clients, boundary, spans).serve_by(server)
    return server


def _principal(ctx: ServerRequestContext[Any, Any]) -> str:
    return cast(Context, ctx).scope.client.id
