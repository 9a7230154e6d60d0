"""A real MCP server whose lists and behaviour a test sets, reached in memory, over HTTP or as a process over stdio.

`python scripted_server.py [--tools N] [--hang-while FILE] ...` is the process.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import mcp_types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated, ToolsListChanged
from mcp_types.jsonrpc import METHOD_NOT_FOUND
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.responses import Response

from pml_gateway.mcp.sdk import connection_of

Definition = dict[str, Any]
Handler = Callable[[Any, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Serves a call: its context, and its name and arguments."""

Answer = Callable[[Any, str, dict[str, Any]], Awaitable[dict[str, Any] | None]]
"""Answers another method with its parameters; with nothing, it is answered by what the server lists."""

PROMPTS = frozenset({"prompts/list", "prompts/get"})
RESOURCES = frozenset({"resources/list", "resources/read"})
EVERY_METHOD = frozenset(
    {
        *PROMPTS,
        *RESOURCES,
        "resources/templates/list",
        "completion/complete",
        "resources/subscribe",
        "resources/unsubscribe",
    }
)
"""What a server can offer beside tools."""

_CHANGES: dict[str, Any] = {
    "tools": ToolsListChanged(),
    "prompts": PromptsListChanged(),
    "resources": ResourcesListChanged(),
}

CACHEABLE = {"ttlMs": 0, "cacheScope": "private"}
NOTHING = "nothing"
"""What a definition `needs` that is listed only for clients that can do nothing."""

_PARAMETERS: dict[str, Any] = {
    "prompts/list": mcp_types.PaginatedRequestParams,
    "prompts/get": mcp_types.GetPromptRequestParams,
    "resources/list": mcp_types.PaginatedRequestParams,
    "resources/templates/list": mcp_types.PaginatedRequestParams,
    "resources/read": mcp_types.ReadResourceRequestParams,
    "completion/complete": mcp_types.CompleteRequestParams,
    "resources/subscribe": mcp_types.SubscribeRequestParams,
    "resources/unsubscribe": mcp_types.UnsubscribeRequestParams,
    "logging/setLevel": mcp_types.SetLevelRequestParams,
}


def text_result(text: str) -> dict[str, Any]:
    """A result of one text."""
    return {"content": [{"type": "text", "text": text}]}


def tool(name: str, description: str = "", properties: Mapping[str, Any] | None = None, **extra: Any) -> Definition:
    """One tool definition; `needs` names the capabilities of the clients that it is listed for."""
    schema = {"type": "object", "properties": dict(properties or {})}
    return {"name": name, "description": description or f"The {name} tool.", "inputSchema": schema, **extra}


def prompt(name: str, **extra: Any) -> Definition:
    """One prompt definition."""
    return {"name": name, "description": f"The {name} prompt.", **extra}


def resource(uri: str, **extra: Any) -> Definition:
    """One resource definition."""
    return {"uri": uri, "name": uri.rpartition("/")[2] or uri, **extra}


def template(uri_template: str, **extra: Any) -> Definition:
    """One resource template."""
    return {"uriTemplate": uri_template, "name": uri_template, **extra}


class _AnnouncingServer(Server[Any]):
    """Announces the changes of every list, whoever opens the connection."""

    def create_initialization_options(self, *_: Any, **__: Any) -> Any:
        options = NotificationOptions(tools_changed=True, prompts_changed=True, resources_changed=True)
        return super().create_initialization_options(options)


@dataclass
class ScriptedServer:
    """What the server lists, how it behaves, and a record of what reached it."""

    tools: list[Definition] = field(default_factory=list)
    handler: Handler | None = None
    id: str = "up"
    methods: frozenset[str] = frozenset()
    declares: dict[str, Any] = field(default_factory=dict)
    """Capabilities in addition to those that follow from its lists and methods."""
    beyond: frozenset[str] = frozenset()
    """Methods of extensions that it serves by `answer`; it notes notifications of these names, too."""
    prompts: list[Definition] = field(default_factory=list)
    resources: list[Definition] = field(default_factory=list)
    templates: list[Definition] = field(default_factory=list)
    answer: Answer | None = None
    past: Callable[[Any], Awaitable[dict[str, Any] | None]] | None = None
    """Answers a message past the SDK, which knows no tasks; with nothing, the message goes on."""
    on_initialized: Callable[[Any], Awaitable[None]] | None = None
    instructions: str | None = None
    name: str = "scripted"
    version: str = "1"
    modern: bool | None = False
    """Which era it speaks: the stateless one, the one that opens with a handshake, or (nothing) both."""
    page_size: int | None = None
    unlisted: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    refuse: bool = False
    hang: bool = False

    calls: list[dict[str, Any]] = field(default_factory=list)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    lists: int = 0
    opened: int = 0
    subscribed: list[str] = field(default_factory=list)
    streams: list[list[str]] = field(default_factory=list)
    levels: list[tuple[Any, str]] = field(default_factory=list)
    announced: list[tuple[str, ...]] = field(default_factory=list)
    grown: dict[Any, list[Definition]] = field(default_factory=dict)
    sessions: list[Any] = field(default_factory=list)
    connections: list[Any] = field(default_factory=list)
    killers: list[anyio.CancelScope] = field(default_factory=list)
    bus: InMemorySubscriptionBus = field(default_factory=InMemorySubscriptionBus)

    def server(self) -> Server[Any]:
        """The server of one connection, or of all connections over HTTP."""
        server = _AnnouncingServer(
            self.name,
            version=self.version,
            instructions=self.instructions,
            on_list_tools=self._never,
            on_call_tool=self._call,
        )
        for method in self.methods:
            server.add_request_handler(method, _PARAMETERS[method], self._handle)
        if self.modern and self.methods:
            types = mcp_types.SubscriptionsListenRequestParams
            server.add_request_handler("subscriptions/listen", types, partial(self._listen, ListenHandler(self.bus)))
        for method in self.beyond:
            server.add_request_handler(method, mcp_types.RequestParams, self._handle)
            server.add_notification_handler(method, mcp_types.NotificationParams, self._handle)
        server.middleware.append(self._first)
        return server

    def http_app(self) -> Any:
        """An ASGI application at `/mcp`; one of the handshake era refuses the other as old servers do."""
        inner = self.server().streamable_http_app()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            version = dict(scope.get("headers", ())).get(b"mcp-protocol-version", b"").decode()
            if self.modern is False and version in MODERN_PROTOCOL_VERSIONS:
                await Response(status_code=400)(scope, receive, send)
                return
            await inner(scope, receive, send)

        return app

    async def serve_stdio(self) -> None:
        """Serve this process's stdin and stdout."""
        server = self.server()
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    def count(self, method: str) -> int:
        """How often a method beside those of tools was called."""
        return sum(1 for asked, _ in self.asked if asked == method)

    async def announce_change(self) -> None:
        """Tell every connected client that the tools changed."""
        for session in self.sessions:
            await session.send_tool_list_changed()

    async def announce(self, kind: str) -> None:
        """Tell every connected client that a list changed."""
        if self.modern:
            await self.bus.publish(_CHANGES[kind])
        for session in () if self.modern else self.sessions[-1:]:
            await getattr(session, f"send_{kind.removesuffix('s')}_list_changed")()

    async def announce_update(self, uri: str) -> None:
        """Tell every connected client that a resource changed."""
        if self.modern:
            await self.bus.publish(ResourceUpdated(uri=uri))
        for session in () if self.modern else self.sessions[-1:]:
            await session.send_resource_updated(uri)

    def kill(self) -> None:
        """End every connection, as a crash does."""
        for scope in self.killers:
            scope.cancel()
        self.killers.clear()

    async def _first(self, ctx: Any, call_next: Any) -> Any:
        refused = {True: "initialize", False: "server/discover", None: None}[self.modern]
        if ctx.method == refused:
            raise MCPError(METHOD_NOT_FOUND, "this server speaks one era of the protocol only")
        if ctx.method == "notifications/initialized":
            self.connections.append(connection_of(ctx))
            self.announced.append(tuple(sorted(_capabilities(ctx))))
        if ctx.method == "tools/list":
            # Past the SDK's checks, as careless servers list.
            self.lists += 1
            self._note(ctx)
            cacheable = CACHEABLE if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS else {}
            return _complete(
                ctx,
                {**self._page(ctx, "tools", [*self.tools, *self.grown.get(connection_of(ctx), ())]), **cacheable},
            )
        if self.past is not None and (answer := await self.past(ctx)) is not None:
            return _complete(ctx, answer)
        result = await call_next(ctx)
        if ctx.method in ("initialize", "server/discover") and self.declares:
            return {**result, "capabilities": {**result["capabilities"], **self.declares}}
        if ctx.method == "notifications/initialized" and self.on_initialized is not None:
            await self.on_initialized(ctx)
        return result

    async def _never(self, _ctx: Any, _params: Any) -> Any:
        raise AssertionError("tools are listed before the SDK's handler")

    async def _call(self, ctx: Any, params: mcp_types.CallToolRequestParams) -> Any:
        self.calls.append({"name": params.name, "arguments": params.arguments, "meta": dict(ctx.meta or {})})
        if self.handler is None:
            return _complete(ctx, text_result(f"{params.name} {sorted((params.arguments or {}).items())}"))
        return _complete(ctx, await self.handler(ctx, {"name": params.name, "arguments": params.arguments or {}}))

    async def _handle(self, ctx: Any, _: Any) -> Any:
        self._note(ctx)
        params = dict(ctx.params or {})
        self.asked.append((ctx.method, params))
        given = await self.answer(ctx, ctx.method, params) if self.answer is not None else None
        return _complete(ctx, self._answer(ctx, params) if given is None else given)

    async def _listen(self, listen: ListenHandler, ctx: Any, params: mcp_types.SubscriptionsListenRequestParams) -> Any:
        uris = list(params.notifications.resource_subscriptions or ())
        if self.refused & set(uris):
            raise MCPError(-32602, "no such resource", {"uri": sorted(self.refused & set(uris))[0]})
        self.streams.append(uris)
        try:
            return await listen(ctx, params)
        finally:
            self.streams.remove(uris)

    def _note(self, ctx: Any) -> None:
        if ctx.session not in self.sessions:
            self.sessions.append(ctx.session)

    def _answer(self, ctx: Any, params: dict[str, Any]) -> dict[str, Any]:
        match ctx.method:
            case "prompts/list":
                return {**self._page(ctx, "prompts", self.prompts), **CACHEABLE}
            case "resources/list":
                return {**self._page(ctx, "resources", self.resources), **CACHEABLE}
            case "resources/templates/list":
                return {**self._page(ctx, "resourceTemplates", self.templates), **CACHEABLE}
            case "prompts/get":
                if params["name"] not in {each["name"] for each in self.prompts}:
                    raise MCPError(-32602, "no such prompt", {"name": params["name"]})
                text = f"{self.id} {params['name']} {sorted((params.get('arguments') or {}).items())}"
                return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}
            case "resources/read":
                self._check_uri(params["uri"])
                return {"contents": [{"uri": params["uri"], "text": f"{self.id} {params['uri']}"}], **CACHEABLE}
            case "completion/complete":
                ref = params["ref"]
                return {"completion": {"values": [self.id, str(ref.get("name") or ref.get("uri"))]}}
            case "resources/subscribe":
                self._check_uri(params["uri"])
                self.subscribed.append(params["uri"])
            case "resources/unsubscribe":
                self.subscribed.remove(params["uri"])
            case "logging/setLevel":
                self.levels.append((connection_of(ctx), params["level"]))
        return {}

    def _check_uri(self, uri: str) -> None:
        if uri not in {each["uri"] for each in self.resources} | self.unlisted:
            raise MCPError(-32002, "no such resource", {"uri": uri})

    def _page(self, ctx: Any, key: str, definitions: Sequence[Definition]) -> dict[str, Any]:
        listed = [_bare(each) for each in definitions if _is_for(each, ctx)]
        start = int((ctx.params or {}).get("cursor") or 0)
        end = len(listed) if self.page_size is None else start + self.page_size
        more = {"nextCursor": str(end)} if end < len(listed) else {}
        return {key: listed[start:end], **more}


def _capabilities(ctx: Any) -> set[str]:
    """The names of the client's capabilities, and the identifiers of its extensions."""
    given = ctx.session.client_capabilities
    if given is None:
        return set()
    named = set(given.model_dump(exclude_none=True)) - {"experimental", "extensions"}
    return named | set(given.extensions or ())


def _is_for(definition: Definition, ctx: Any) -> bool:
    needs = definition.get("needs", "")
    return not needs or (not _capabilities(ctx) if needs == NOTHING else set(needs.split()) <= _capabilities(ctx))


def _bare(definition: Definition) -> Definition:
    return {key: value for key, value in definition.items() if key != "needs"} if "needs" in definition else definition


def _complete(ctx: Any, result: dict[str, Any]) -> dict[str, Any]:
    """A result with the mark that the stateless era puts on finished ones."""
    return {"resultType": "complete", **result} if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS else result


TEXT = {"message": {"type": "string"}, "seconds": {"type": "number"}, "started": {"type": "string"}}


def main() -> None:
    """A process of its own with an echo, a slow tool, one that shows its environment and one that crashes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", type=int, default=0)
    parser.add_argument("--hang-while", type=Path, help="never answer if this file exists at the start")
    parser.add_argument("--dead-while", type=Path, help="exit at once if this file exists at the start")
    parser.add_argument("--spawned", type=Path, help="append the process id to this file")
    parser.add_argument(
        "--cancelled", type=Path, help="append a line to this file for every slow call that is cancelled"
    )
    parser.add_argument("--stubborn", action="store_true", help="stay when stdin ends and when asked to terminate")
    parser.add_argument("--http", type=Path, help="serve HTTP on a free port, and write its URL to this file")
    options = parser.parse_args()
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.spawned is not None:
        _append(options.spawned, str(os.getpid()))
    if options.dead_while is not None and options.dead_while.exists():
        sys.exit(1)
    if options.hang_while is not None and options.hang_while.exists():
        time.sleep(600)
        sys.exit(1)
    names = ["echo", "slow", "environment", "crash", *(f"extra_{number}" for number in range(options.tools))]
    tools = [tool(name, f"{name} does what its name says.", TEXT) for name in names]
    scripted = ScriptedServer(tools, partial(_act, options.cancelled), modern=None)
    if options.http is None:
        anyio.run(scripted.serve_stdio)
    else:
        _serve_http(scripted, options.http)
    if options.stubborn:
        time.sleep(600)


async def _act(cancelled: Path | None, _ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
    arguments = call["arguments"]
    match call["name"]:
        case "slow":
            if "started" in arguments:
                Path(arguments["started"]).touch()  # noqa: ASYNC240
            try:
                await anyio.sleep(arguments.get("seconds", 1))
            except anyio.get_cancelled_exc_class():
                if cancelled is not None:
                    _append(cancelled, "cancelled")
                raise
            return text_result("slept")
        case "environment":
            return text_result("\n".join(sorted(f"{key}={value}" for key, value in os.environ.items())))
        case "crash":
            os._exit(3)
    return text_result(str(arguments.get("message", "")))


def _serve_http(scripted: ScriptedServer, url_file: Path) -> None:
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    url_file.with_suffix(".new").write_text(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", encoding="utf-8")
    url_file.with_suffix(".new").rename(url_file)
    config = uvicorn.Config(scripted.http_app(), log_level="warning", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


def _append(file: Path, line: str) -> None:
    with file.open("a", encoding="utf-8") as lines:
        lines.write(f"{line}\n")


if __name__ == "__main__":
    main()
