"""Upstreams in memory: real MCP servers on stream pairs instead of processes, reached by the gateway's own code."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
from mcp.server.lowlevel import Server
from mcp.shared._context_streams import ContextSendStream
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import jsonrpc_message_adapter

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import Settings
from pml_gateway.mcp.sdk import TappedSend
from pml_gateway.mcp.transport import open_streams
from pml_gateway.serve.messages.written import pieces_of_message
from tests.support.scripted_server import ScriptedServer


class ParsedSent(TappedSend):
    """Stream of a gateway to a client in memory, which gets each message as if it had come as text."""

    __slots__ = ()

    def __init__(self, stream: ContextSendStream[Any]) -> None:
        super().__init__(stream, lambda _: None)

    async def send(self, item: SessionMessage) -> None:
        text = b"".join(pieces_of_message(item.message))
        await super().send(replace(item, message=jsonrpc_message_adapter.validate_json(text)))


@asynccontextmanager
async def in_memory(server: Server[Any]) -> AsyncIterator[Any]:
    """A transport for a client of a gateway's server."""
    async with (
        create_client_server_memory_streams() as (streams, (read, write)),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(server.run, read, ParsedSent(write), server.create_initialization_options())
        yield streams
        tasks.cancel_scope.cancel()


class MemoryStreams:
    """`OpenStreams` over the given upstreams, by server id; others are reached as they always are."""

    def __init__(self, upstreams: Mapping[str, ScriptedServer]) -> None:
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
        while upstream.hang:  # noqa: ASYNC110  # the test ends it by setting a field
            await anyio.sleep(0.01)
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
                    await server.run(read, write, server.create_initialization_options())
                await write.aclose()
                await read.aclose()

            tasks.start_soon(serve)
            yield client_streams
            tasks.cancel_scope.cancel()


def settings_for(fakes: Mapping[str, ScriptedServer], /, **sections: Any) -> Settings:
    """Settings with one entry per upstream; the command is never started."""
    servers = {name: {"command": f"in-memory-{name}"} for name in fakes}
    return Settings.model_validate({"servers": servers, **sections})


def paths_in(folder: Path) -> Any:
    """Paths below a test's own folder."""
    from pml_gateway.paths import Paths

    return Paths.from_environ({"PML_HOME": str(folder), "HOME": str(folder)})
