"""A gateway that listens on loopback inside the test's own event loop, in front of upstreams in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from pml_gateway.config.load import LoadedSettings
from pml_gateway.config.settings import HttpSettings, Settings
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.mcp.transport import OpenStreams
from pml_gateway.owner.alone import AloneProcess, open_alone
from pml_gateway.owner.over_http import owner_apps
from pml_gateway.serve.http.server import serve_http
from pml_gateway.serve.runtime import Runtime, open_runtime
from tests.support.memory import MemoryStreams, paths_in, settings_for
from tests.support.raw import HandshakeSession, decoded, post_modern, result_modern
from tests.support.replica_stand import current_stand
from tests.support.scripted_server import ScriptedServer

LIMIT = 60
_Event = TypeVar("_Event")


@dataclass
class Serving:
    """A listening gateway, or several replicas behind one URL, and how to talk to it without any SDK."""

    url: str
    runtimes: list[Runtime]

    @property
    def runtime(self) -> Runtime:
        return self.runtimes[0]

    @property
    def gateway(self) -> Gateway:
        return self.runtime.gateway

    @property
    def gateways(self) -> list[Gateway]:
        return [each.gateway for each in self.runtimes]

    async def refresh(self, timeout: float) -> None:
        """List all servers anew, in each replica."""
        for gateway in self.gateways:
            await gateway.refresh(timeout)

    async def all_listed(self) -> None:
        """Wait until all servers have answered or failed, in each replica, however long that takes."""
        for gateway in self.gateways:
            assert await gateway.pool.settled(LIMIT)
            await gateway.updates.rebuild()

    async def reload(self, settings: Settings) -> None:
        """Serve by other settings, in each replica."""
        stand = current_stand()
        for gateway in self.gateways:
            await gateway.reload(settings if stand is None else stand.settings(settings))

    def subscribe(self, kind: type[_Event], take: Callable[[_Event], None]) -> None:
        """Hear of the events of each replica."""
        for gateway in self.gateways:
            gateway.events.subscribe(kind, take)

    async def result(
        self, method: str, params: Mapping[str, Any] | None = None, path: str = "", **options: Any
    ) -> dict[str, Any]:
        """The result of a stateless request."""
        return await anyio.to_thread.run_sync(lambda: result_modern(self.url + path, method, params, **options))

    async def message(
        self, method: str, params: Mapping[str, Any] | None = None, path: str = "", **options: Any
    ) -> dict[str, Any]:
        """The whole JSON-RPC message a stateless request is answered with."""
        return await anyio.to_thread.run_sync(lambda: decoded(post_modern(self.url + path, method, params, **options)))

    async def names(self, path: str = "", params: Mapping[str, Any] | None = None, **options: Any) -> list[str]:
        """The names a stateless `tools/list` gives."""
        return [tool["name"] for tool in (await self.result("tools/list", params, path, **options))["tools"]]

    async def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, path: str = "", **options: Any
    ) -> dict[str, Any]:
        """The result of a stateless `tools/call`."""
        return await self.result("tools/call", {"name": name, "arguments": dict(arguments or {})}, path, **options)

    @asynccontextmanager
    async def handshake(self, path: str = "", **options: Any) -> AsyncIterator[HandshakeSession]:
        """A session of the handshake era."""
        session = await anyio.to_thread.run_sync(lambda: HandshakeSession(self.url + path, **options))
        try:
            yield session
        finally:
            await anyio.to_thread.run_sync(session.__exit__)


@asynccontextmanager
async def serving(
    folder: Path,
    upstreams: Mapping[str, ScriptedServer],
    settings: Settings | None = None,
    *,
    open_streams: OpenStreams | None = None,
    **sections: Any,
) -> AsyncIterator[Serving]:
    """Serve over HTTP on a free port; every upstream has answered or failed when this yields.

    With `open_streams`, upstreams are what it opens, such as real ones.
    """
    given = settings or settings_for(upstreams, **sections)
    streams = open_streams or MemoryStreams(upstreams)
    stand = current_stand()
    async with AsyncExitStack() as stack:
        if stand is None:
            url, runtime = await stack.enter_async_context(_gateway(folder, given, streams))
            yield Serving(url, [runtime])
            return
        opened = [
            await stack.enter_async_context(_gateway(home, stand.settings(given), streams))
            for home in stand.homes(folder)
        ]
        url = stack.enter_context(stand.balanced([url for url, _ in opened]))
        yield Serving(url, [runtime for _, runtime in opened])


@asynccontextmanager
async def _gateway(folder: Path, given: Settings, streams: OpenStreams) -> AsyncIterator[tuple[str, Runtime]]:
    loaded = LoadedSettings(given, origins={}, warnings=(), files=())
    opened: list[Runtime] = []

    @asynccontextmanager
    async def opener() -> AsyncIterator[Runtime]:
        paths = paths_in(folder)
        opening = open_runtime(loaded, paths, identity="test", load=lambda: loaded, open_streams=streams)
        async with open_alone(opening, paths, "test") as runtime:
            opened.append(runtime)
            yield runtime

    stop, listening = anyio.Event(), anyio.Event()
    urls: list[str] = []

    def on_listening(url: str) -> None:
        urls.append(url)
        listening.set()

    http = given.http.model_copy(update={"port": 0})
    assert isinstance(http, HttpSettings)
    async with anyio.create_task_group() as tasks:
        apps = owner_apps(lambda runtime: AloneProcess(runtime, "test"), paths_in(folder), "test", lambda: loaded)
        tasks.start_soon(partial(serve_http, opener, http, on_listening, stop, apps))
        with anyio.fail_after(LIMIT):
            await listening.wait()
        try:
            await opened[0].gateway.wait_for_tools()
            yield urls[0], opened[0]
        finally:
            stop.set()
