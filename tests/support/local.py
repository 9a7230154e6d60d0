"""A gateway in front of upstreams in memory, and several local clients of it at once, each over streams of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from mcp.client.client import Client as McpClient
from mcp.shared._context_streams import create_context_streams
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage

from pml_gateway.config.load import LoadedSettings
from pml_gateway.config.settings import Settings
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.gateway.request import CURRENT, RequestScope
from pml_gateway.mcp.transport import OpenStreams
from pml_gateway.policy.principal import PrincipalKind
from pml_gateway.serve.runtime import Runtime, open_runtime
from pml_gateway.upstreams.dialogue.local_clients import LocalClients
from pml_gateway.upstreams.upstream import Upstream
from tests.support.asking import Person
from tests.support.memory import MemoryStreams, ParsedSent, paths_in, settings_for
from tests.support.principals import principal
from tests.support.scripted_server import ScriptedServer


class Machine:
    """The gateway of a machine."""

    def __init__(self, runtime: Runtime, tasks: Any) -> None:
        self.runtime = runtime
        self._tasks = tasks

    @property
    def gateway(self) -> Gateway:
        return self.runtime.gateway

    @property
    def up(self) -> Upstream:
        return self.gateway.pool.upstreams["up"]

    @asynccontextmanager
    async def attached(self, client_id: str) -> AsyncIterator[Any]:
        """The streams of a client's end, as a transport of the SDK; the gateway's end lives as long."""
        async with create_client_server_memory_streams() as (client_streams, (read, write)):
            server, ended = self.runtime.server, anyio.Event()
            arriving, arrived = create_context_streams[SessionMessage | Exception](0)

            async def pump() -> None:
                # Requests run in the context of what hands them on.
                CURRENT.set(RequestScope(principal(f"local:{client_id}", PrincipalKind.LOCAL)))
                async with arriving:
                    async for item in read:
                        await arriving.send(item)

            async def serve() -> None:
                try:
                    await server.run(arrived, ParsedSent(write), server.create_initialization_options())
                finally:
                    ended.set()

            self._tasks.start_soon(pump)
            self._tasks.start_soon(serve)
            try:
                yield client_streams
            finally:
                for stream in client_streams:
                    await stream.aclose()
                with anyio.CancelScope(shield=True), anyio.move_on_after(10):
                    await ended.wait()

    def client(self, person: Person, **options: Any) -> McpClient:
        """A local client with this person behind it."""
        return person.client(self.attached(person.name), modern=options.pop("modern", False), **options)

    def unable(self, client_id: str) -> McpClient:
        """A local client that cannot be asked anything."""
        return McpClient(self.attached(client_id), mode="legacy")


@asynccontextmanager
async def machine(
    folder: Path,
    upstreams: Mapping[str, ScriptedServer],
    settings: Settings | None = None,
    *,
    local: LocalClients | None = None,
    open_streams: OpenStreams | None = None,
    **sections: Any,
) -> AsyncIterator[Machine]:
    """A gateway for all local clients."""
    given = settings or settings_for(upstreams, **{"gateway": {"tools_exposure": "full_proxy"}, **sections})
    loaded = LoadedSettings(given, origins={}, warnings=(), files=())
    opener = partial(
        open_runtime,
        loaded,
        paths_in(folder),
        identity="test",
        load=lambda: loaded,
        open_streams=open_streams or MemoryStreams(upstreams),
        local=local or LocalClients(),
    )
    async with opener() as runtime, anyio.create_task_group() as tasks:
        yield Machine(runtime, tasks)
        tasks.cancel_scope.cancel()
