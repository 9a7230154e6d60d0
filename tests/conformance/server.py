"""An MCP server with everything the conformance suite asks for: `python -m tests.conformance.server [--http|--sse]`.

Over stdio without options; over HTTP on a free loopback port, which it reports on stderr as `listening on URL`.
"""

from __future__ import annotations

import argparse
import socket
import sys
import warnings
from typing import Any

import anyio
import mcp_types
import uvicorn
from mcp.server.connection import Connection
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.session import ServerSession
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from starlette.types import ASGIApp, Receive, Scope, Send

from pml_gateway.mcp.sdk import connection_of
from tests.conformance.definitions import NO_ARGUMENTS, PROMPTS, RESOURCE_TEMPLATES, RESOURCES, TOOLS
from tests.conformance.handlers import call_tool, get_prompt, read_resource
from tests.conformance.questions import Context

RETRY_MILLISECONDS = 100
WATCHED = "test://watched-resource"
LEVELS: list[str] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]

_STATE_KEY = b"the same in every process of this test server"
_EXTRA_TOOL = mcp_types.Tool(name="test_zz_added", description="Comes and goes.", input_schema=NO_ARGUMENTS)
_EXTRA_PROMPT = mcp_types.Prompt(name="test_zz_added", description="Comes and goes.")


class ConformanceServer(Server[Any]):
    """One server process: its lists, which tools change, and who is told."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MCPDeprecationWarning)  # handshake clients still set log levels
            super().__init__(
                "conformance",
                version="1",
                instructions="A server to test clients with.",
                get_tool_input_schema=self._input_schema,
                on_list_tools=self._list_tools,
                on_call_tool=self._call_tool,
                on_list_resources=self._list_resources,
                on_list_resource_templates=self._list_templates,
                on_read_resource=self._read_resource,
                on_subscribe_resource=self._subscribe,
                on_unsubscribe_resource=self._unsubscribe,
                on_subscriptions_listen=self._listen,
                on_list_prompts=self._list_prompts,
                on_get_prompt=self._get_prompt,
                on_completion=self._complete,
                on_set_logging_level=self._set_level,
            )
        self.add_notification_handler("notifications/initialized", mcp_types.NotificationParams, self._initialized)
        self.middleware.append(RequestStateBoundary(RequestStateSecurity(keys=[_STATE_KEY]), default_audience=None))
        self._tools, self._prompts = list(TOOLS), list(PROMPTS)
        self._updates = 0
        self._bus = InMemorySubscriptionBus()
        self._listener = ListenHandler(self._bus)
        self._sessions: dict[Connection, ServerSession] = {}
        self._subscriptions: dict[Connection, set[str]] = {}
        self._levels: dict[Connection, str] = {}

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """The handshake's answer, which announces changes of every list."""
        every = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        return super().create_initialization_options(
            notification_options or every, experimental_capabilities, extensions
        )

    def _input_schema(self, name: str) -> dict[str, Any] | None:
        return next((tool.input_schema for tool in self._tools if tool.name == name), None)

    async def _list_tools(self, _ctx: Context, _params: Any) -> mcp_types.ListToolsResult:
        return mcp_types.ListToolsResult(tools=self._tools)

    async def _call_tool(
        self, ctx: Context, params: mcp_types.CallToolRequestParams
    ) -> mcp_types.CallToolResult | mcp_types.InputRequiredResult:
        return await call_tool(ctx, params, self._change, self._log)

    async def _list_resources(self, _ctx: Context, _params: Any) -> mcp_types.ListResourcesResult:
        return mcp_types.ListResourcesResult(resources=RESOURCES)

    async def _list_templates(self, _ctx: Context, _params: Any) -> mcp_types.ListResourceTemplatesResult:
        return mcp_types.ListResourceTemplatesResult(resource_templates=RESOURCE_TEMPLATES)

    async def _read_resource(
        self, _ctx: Context, params: mcp_types.ReadResourceRequestParams
    ) -> mcp_types.ReadResourceResult:
        return read_resource(params.uri, self._updates)

    async def _list_prompts(self, _ctx: Context, _params: Any) -> mcp_types.ListPromptsResult:
        return mcp_types.ListPromptsResult(prompts=self._prompts)

    async def _get_prompt(
        self, ctx: Context, params: mcp_types.GetPromptRequestParams
    ) -> mcp_types.GetPromptResult | mcp_types.InputRequiredResult:
        return get_prompt(ctx, params)

    async def _complete(self, _ctx: Context, params: mcp_types.CompleteRequestParams) -> mcp_types.CompleteResult:
        known = ["paris", "park", "party", "ring"]
        values = [value for value in known if value.startswith(params.argument.value)]
        return mcp_types.CompleteResult(
            completion=mcp_types.Completion(values=values, total=len(values), has_more=False)
        )

    async def _initialized(self, ctx: Context, _params: Any) -> None:
        connection = _connection(ctx)
        self._sessions[connection] = ctx.session
        for remembered in (self._sessions, self._subscriptions, self._levels):
            connection.exit_stack.callback(remembered.pop, connection, None)

    async def _subscribe(self, ctx: Context, params: mcp_types.SubscribeRequestParams) -> mcp_types.EmptyResult:
        self._subscriptions.setdefault(_connection(ctx), set()).add(params.uri)
        return mcp_types.EmptyResult()

    async def _unsubscribe(self, ctx: Context, params: mcp_types.UnsubscribeRequestParams) -> mcp_types.EmptyResult:
        self._subscriptions.get(_connection(ctx), set()).discard(params.uri)
        return mcp_types.EmptyResult()

    async def _listen(
        self, ctx: Context, params: mcp_types.SubscriptionsListenRequestParams
    ) -> mcp_types.SubscriptionsListenResult:
        return await self._listener(ctx, params)

    async def _set_level(self, ctx: Context, params: mcp_types.SetLevelRequestParams) -> mcp_types.EmptyResult:
        self._levels[_connection(ctx)] = params.level
        return mcp_types.EmptyResult()

    async def _log(self, ctx: Context, text: str) -> None:
        wanted = self._levels.get(_connection(ctx), "debug")
        if LEVELS.index("info") >= LEVELS.index(wanted):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MCPDeprecationWarning)
                await ctx.session.send_log_message("info", text, related_request_id=ctx.request_id)

    async def _change(self, what: str) -> None:
        """Change a list, or the watched resource, and tell everyone who wants to know."""
        match what:
            case "tool_change":
                self._tools = self._tools[:-1] if self._tools[-1] is _EXTRA_TOOL else [*self._tools, _EXTRA_TOOL]
                await self._bus.publish(ToolsListChanged())
            case "prompt_change":
                gone = self._prompts[-1] is _EXTRA_PROMPT
                self._prompts = self._prompts[:-1] if gone else [*self._prompts, _EXTRA_PROMPT]
                await self._bus.publish(PromptsListChanged())
            case _:
                self._updates += 1
                await self._bus.publish(ResourceUpdated(uri=WATCHED))
        for connection, session in list(self._sessions.items()):
            try:
                await self._tell(what, connection, session)
            except (MCPError, anyio.ClosedResourceError, anyio.BrokenResourceError):
                self._sessions.pop(connection, None)

    async def _tell(self, what: str, connection: Connection, session: ServerSession) -> None:
        match what:
            case "tool_change":
                await session.send_tool_list_changed()
            case "prompt_change":
                await session.send_prompt_list_changed()
            case _ if WATCHED in self._subscriptions.get(connection, ()):
                await session.send_resource_updated(WATCHED)


def _connection(ctx: Context) -> Connection:
    return connection_of(ctx)  # the SDK has no public identity of a session


class Events(EventStore):
    """Every event of every stream, so that a client may come back for what it missed."""

    def __init__(self) -> None:
        self._events: list[tuple[StreamId, mcp_types.JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: StreamId, message: mcp_types.JSONRPCMessage | None) -> EventId:
        """Keep one event; its number is its id."""
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: EventId, send_callback: EventCallback) -> StreamId | None:
        """Send what came later on the same stream."""
        if not last_event_id.isdecimal() or not 0 < int(last_event_id) <= len(self._events):
            return None
        stream_id = self._events[int(last_event_id) - 1][0]
        for number, (other, message) in enumerate(self._events, 1):
            if other == stream_id and number > int(last_event_id) and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream_id


def _sse_app(server: ConformanceServer) -> ASGIApp:
    transport = SseServerTransport("/messages")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/messages":
            await transport.handle_post_message(scope, receive, send)
            return
        async with transport.connect_sse(scope, receive, send) as (read, write):
            await server.run(read, write, server.create_initialization_options())

    return app


async def _serve(transport: str) -> None:
    server = ConformanceServer()
    if transport == "stdio":
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())
        return
    if transport == "http":
        await serve_http(server.streamable_http_app(event_store=Events(), retry_interval=RETRY_MILLISECONDS))
    else:
        await serve_http(_sse_app(server), "sse", has_lifespan=False)


async def serve_http(app: ASGIApp, path: str = "mcp", *, has_lifespan: bool = True) -> None:
    """Serve an app on a free loopback port, which is said on stderr."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        sys.stderr.write(f"listening on http://127.0.0.1:{port}/{path}\n")
        sys.stderr.flush()
        config = uvicorn.Config(
            app,
            http="h11",  # httptools keeps blanks at the end of header values, which are no part of them
            log_level="error",
            timeout_graceful_shutdown=1,
            lifespan="on" if has_lifespan else "off",
        )
        await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--http", dest="transport", action="store_const", const="http", default="stdio")
    group.add_argument("--sse", dest="transport", action="store_const", const="sse")
    anyio.run(_serve, parser.parse_args().transport)
