"""Upstreams in memory: real MCP servers on stream pairs instead of processes, reached by the gateway's own code."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import mcp_types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.shared.exceptions import MCPError
from mcp.shared.memory import create_client_server_memory_streams
from mcp_types.jsonrpc import METHOD_NOT_FOUND

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import Settings
from pml_gateway.mcp.transport import open_streams

Handler = Callable[[Any, dict[str, Any]], Awaitable[dict[str, Any]]]


def text_result(text: str) -> dict[str, Any]:
    """A result of one text."""
    return {"content": [{"type": "text", "text": text}]}


@dataclass
class FakeUpstream:
    """A real MCP server whose tools and behaviour a test sets; it records the calls that reached it."""

    tools: list[dict[str, Any]] = field(default_factory=list)
    handler: Handler | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)
    lists: int = 0
    opened: int = 0
    refuse: bool = False
    hang: bool = False
    page_size: int | None = None
    modern: bool = False
    sessions: list[Any] = field(default_factory=list)
    killers: list[anyio.CancelScope] = field(default_factory=list)

    def server(self) -> Server[Any]:
        """The server of one connection."""

        async def on_list(ctx: Any, params: Any) -> Any:
            self.lists += 1
            if ctx.session not in self.sessions:
                self.sessions.append(ctx.session)
            start = int((params and params.cursor) or 0)
            end = len(self.tools) if self.page_size is None else start + self.page_size
            more = {"nextCursor": str(end)} if end < len(self.tools) else {}
            return {"tools": self.tools[start:end], **more}

        async def on_call(ctx: Any, params: mcp_types.CallToolRequestParams) -> Any:
            self.calls.append({"name": params.name, "arguments": params.arguments, "meta": dict(ctx.meta or {})})
            if self.handler is not None:
                return await self.handler(ctx, {"name": params.name, "arguments": params.arguments or {}})
            return text_result(f"{params.name} {sorted((params.arguments or {}).items())}")

        server: Server[Any] = Server("fake", version="1", on_list_tools=on_list, on_call_tool=on_call)

        async def raw_list(ctx: Any, call_next: Any) -> Any:
            if ctx.method == ("initialize" if self.modern else "server/discover"):
                raise MCPError(METHOD_NOT_FOUND, "this server speaks one era of the protocol only")
            return await call_next(ctx) if ctx.method != "tools/list" else await on_list(ctx, _Params(ctx.params))

        # Lists go out unchecked, as careless servers send them.
        server.middleware.append(raw_list)
        return server

    async def announce_change(self) -> None:
        """Tell every connected client that the tools changed."""
        for session in self.sessions:
            await session.send_tool_list_changed()

    def kill(self) -> None:
        """End every connection, as a crash does."""
        for scope in self.killers:
            scope.cancel()
        self.killers.clear()


class _Params:
    def __init__(self, params: Mapping[str, Any] | None) -> None:
        self.cursor = (params or {}).get("cursor")


def tool(name: str, description: str = "", properties: Mapping[str, Any] | None = None, **extra: Any) -> dict[str, Any]:
    """One tool definition."""
    schema = {"type": "object", "properties": dict(properties or {})}
    return {"name": name, "description": description or f"The {name} tool.", "inputSchema": schema, **extra}


class MemoryStreams:
    """`OpenStreams` over the given upstreams, by server id; others are reached as they always are."""

    def __init__(self, upstreams: Mapping[str, FakeUpstream]) -> None:
        self.upstreams = dict(upstreams)

    @asynccontextmanager
    async def __call__(
        self, upstream_id: str, definition: UpstreamDefinition, **options: Any
    ) -> AsyncIterator[tuple[Any, Any]]:
        if upstream_id not in self.upstreams:
            async with open_streams(upstream_id, definition, **options) as streams:
                yield streams
            return
        upstream = self.upstreams[upstream_id]
        upstream.opened += 1
        if upstream.refuse:
            raise ConnectionRefusedError("nobody listens")
        if upstream.hang:
            await anyio.sleep_forever()
        server = upstream.server()
        async with (
            create_client_server_memory_streams() as (client_streams, server_streams),
            anyio.create_task_group() as tasks,
        ):
            scope = anyio.CancelScope()
            upstream.killers.append(scope)

            async def serve() -> None:
                read, write = server_streams
                with scope:
                    options = server.create_initialization_options(NotificationOptions(tools_changed=True))
                    await server.run(read, write, options)
                await write.aclose()
                await read.aclose()

            tasks.start_soon(serve)
            yield client_streams
            tasks.cancel_scope.cancel()


def settings_for(fakes: Mapping[str, FakeUpstream], /, **sections: Any) -> Settings:
    """Settings with one entry per upstream; the command is never started."""
    servers = {name: {"command": f"in-memory-{name}"} for name in fakes}
    return Settings.model_validate({"servers": servers, **sections})


def paths_in(folder: Path) -> Any:
    """Paths below a test's own folder."""
    from pml_gateway.paths import Paths

    return Paths.from_environ({"PML_HOME": str(folder), "HOME": str(folder)})
