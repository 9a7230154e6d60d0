"""The gateway as an MCP server of the official SDK, for both protocol eras and every transport."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import anyio.to_thread
import mcp_types
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions

from pml_gateway import __version__
from pml_gateway.server.abilities import note_abilities
from pml_gateway.server.calling import Caller
from pml_gateway.server.capabilities import OFFERED, OWN_INSTRUCTIONS, gathered_instructions, offered_capabilities
from pml_gateway.server.client_sessions import ClientSessions
from pml_gateway.server.draining import count_requests
from pml_gateway.server.gateway import Gateway
from pml_gateway.server.header_schemas import HeaderSchemas
from pml_gateway.server.incoming import Context, options_of, scope_of
from pml_gateway.server.list_costs import ListCosts
from pml_gateway.server.listing import list_tools
from pml_gateway.server.observing import watch_requests
from pml_gateway.server.offers import OfferRequests
from pml_gateway.server.request import list_intent
from pml_gateway.server.sole_client import introduce_client
from pml_gateway.server.subscribers import Subscribers
from pml_gateway.server.usage import UsageNotes
from pml_gateway.telemetry.observe import Telemetry


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
    offers: OfferRequests,
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
        server.middleware.insert(0, note_abilities(gateway.ability_listings))
    server.middleware.insert(0, count_requests(gateway.call_in_flight))
    watch_requests(server, scope_of, telemetry)
    server.middleware.append(handlers.finished_list)
    ClientSessions(gateway).serve(server)
    if gateway.pool.client is not None:
        server.middleware.append(introduce_client(gateway, gateway.pool.client))
    offers.register(server)
    return server
