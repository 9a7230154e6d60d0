"""The gateway as an MCP server of the official SDK, for both protocol eras and every transport."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
import mcp_types
from cachetools import FIFOCache
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.shared.inbound import x_mcp_header_map

from pml_gateway import __version__
from pml_gateway.catalog.model import CatalogTool
from pml_gateway.gateway.calling import Caller
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.list_cost import ListCosts
from pml_gateway.gateway.meta_definitions import AVAILABLE
from pml_gateway.gateway.prompts_and_resources import PromptAndResourceRequests
from pml_gateway.gateway.request import CURRENT, Context, RequestScope, list_intent, options_of, scope_of
from pml_gateway.gateway.tool_list import list_tools
from pml_gateway.gateway.usage import UsageNotes
from pml_gateway.serve.clients import (
    OFFERED,
    OWN_INSTRUCTIONS,
    ClientSessions,
    gathered_instructions,
    introduce_client,
    note_capabilities,
    offered_capabilities,
)
from pml_gateway.serve.draining import count_requests
from pml_gateway.serve.list_changes import Subscribers
from pml_gateway.serve.observing import watch_requests
from pml_gateway.telemetry.events import Telemetry

MAX_REMEMBERED = 1000


class HeaderSchemas:
    """Input schemas by tool name, as the current client may see them; none where no parameter travels in a header."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._remembered: FIFOCache[str, tuple[CatalogTool, Mapping[str, Any] | None]] = FIFOCache(MAX_REMEMBERED)

    def __call__(self, name: str) -> Mapping[str, Any] | None:
        state = self._gateway.state
        if name in AVAILABLE:
            # Meta-tools and namespaces take no arguments from headers.
            return None
        view = state.view((CURRENT.get() or RequestScope()).client)
        if name in state.namespaces(view):
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
        """The handshake's answer, with `tools.listChanged`."""
        options = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(options, experimental_capabilities, extensions)


@dataclass(frozen=True, slots=True)
class _Handlers:
    """What the SDK calls for tools, and around every request."""

    gateway: Gateway
    caller: Caller
    subscribers: Subscribers
    costs: ListCosts | None
    usage: UsageNotes | None

    async def list_tools(self, ctx: Context, _: mcp_types.PaginatedRequestParams | None) -> Any:
        """The empty answer of `tools/list`."""
        # The list itself is put in by `finished_list`; this empty one passes the SDK's checks for it. Lists change
        # without notice whenever their owner wants, so that none may be kept.
        scoped = bool(self.gateway.state.settings.clients)
        private = scoped or list_intent(ctx.params, scope_of(ctx), self.gateway.state.settings.gateway) is not None
        return mcp_types.ListToolsResult(tools=[], ttl_ms=0, cache_scope="private" if private else "public")

    async def call_tool(self, ctx: Context, params: mcp_types.CallToolRequestParams) -> Any:
        """The result of `tools/call`."""
        return await self.caller.call(
            scope_of(ctx), params.name, dict(params.arguments or {}), options_of(ctx), ctx.protocol_version
        )

    async def finished_list(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Put the finished list into the checked, empty answer of `tools/list`."""
        result = await call_next(ctx)
        if ctx.method == "notifications/initialized":
            await self.subscribers.add_session(ctx, scope_of(ctx))
        if ctx.method != "tools/list" or not isinstance(result, dict):
            return result
        scope = scope_of(ctx)
        intent = list_intent(ctx.params, scope, self.gateway.state.settings.gateway)
        finished = await list_tools(self.gateway, scope, intent, ctx.protocol_version)
        if self.costs is not None:
            self.costs.note(scope, finished)
        if self.usage is not None:
            self.usage.listed(self.gateway.state, scope, intent, finished.tools_json, ctx.protocol_version)
        if scope.accepts_bytes:
            scope.tools_json = finished.tools_json
            return result
        return {**result, "tools": await anyio.to_thread.run_sync(finished.decoded)}

    async def announced(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Announce to a client what the servers it may see can do, and what they have to say."""
        result = await call_next(ctx)
        if ctx.method not in ("initialize", "server/discover") or not isinstance(result, dict):
            return result
        view = self.gateway.state.view(scope_of(ctx).client)
        own = {key: value for key, value in result["capabilities"].items() if key not in OFFERED}
        capabilities = {**own, **offered_capabilities(view)}
        return {**result, "capabilities": capabilities, "instructions": gathered_instructions(view)}


def build_server(
    gateway: Gateway,
    caller: Caller,
    subscribers: Subscribers,
    offers: PromptAndResourceRequests,
    telemetry: Telemetry | None = None,
    costs: ListCosts | None = None,
    usage: UsageNotes | None = None,
) -> GatewayServer:
    """The MCP server in front of a gateway."""
    handlers = _Handlers(gateway, caller, subscribers, costs, usage)
    server = GatewayServer(
        "pml-gateway",
        version=__version__,
        title="PML Gateway",
        instructions=OWN_INSTRUCTIONS,
        get_tool_input_schema=HeaderSchemas(gateway),
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_subscriptions_listen=subscribers.listen,
    )
    server.middleware.append(handlers.announced)
    if gateway.pool.client is None:
        server.middleware.insert(0, note_capabilities(gateway.capability_listings))
    server.middleware.insert(0, count_requests(gateway.call_in_flight))
    watch_requests(server, scope_of, telemetry)
    server.middleware.append(handlers.finished_list)
    ClientSessions(gateway).serve(server)
    if gateway.pool.client is not None:
        server.middleware.append(introduce_client(gateway, gateway.pool.client))
    offers.register(server)
    return server
