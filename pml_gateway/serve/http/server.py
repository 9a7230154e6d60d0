"""The server that listens: HTTP connections within their limits, and an orderly end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import cast

import anyio
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pml_gateway.config.settings import HttpSettings
from pml_gateway.mcp.sdk import begin_session_ids
from pml_gateway.serve.http.app import ENDPOINT, HttpApp, OwnerApps
from pml_gateway.serve.http.binding import bound, reached_at, url_of
from pml_gateway.serve.http.forwarding import open_forwarding
from pml_gateway.serve.http.resumption import ResumableSessions
from pml_gateway.serve.limits.connections import ConnectionLimits
from pml_gateway.serve.limits.descriptors import connections_within, raise_limit
from pml_gateway.serve.runtime import OpenRuntime, Runtime
from pml_gateway.serve.workers.handover import HandedConnection, Handover

KEEP_ALIVE_SECONDS = 75
"""Seconds that a connection without a request stays open, longer than the 4 or 5 seconds of most client libraries. One
that ends while a client sends on it loses that request."""

CHILDREN_SECONDS = 5.0
"""Seconds of the shutdown time reserved for closing servers, which usually takes one."""

LAST_SECONDS = 0.2
"""Seconds for the requests of the last connections to arrive."""

LOOK_SECONDS = 0.01

OnListening = Callable[[str], None]


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers, because calls in flight are drained first, and with word of its start."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = anyio.Event()
        self._listeners: list[socket.socket] = []

    async def take(self, connection: socket.socket, handed: HandedConnection | None = None) -> None:
        """Serve a connection that was accepted, perhaps by another process, which then hands it over."""
        loop = asyncio.get_running_loop()
        protocol = partial(
            cast(Callable[..., asyncio.Protocol], self.config.http_protocol_class),
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            _loop=loop,
            handed=handed,
        )
        try:
            await loop.connect_accepted_socket(protocol, connection)
        except OSError:
            # The client has gone.
            connection.close()
            if handed is not None:
                handed.left()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listeners = sockets or []
        self.listening.set()

    async def end_listening(self) -> None:
        """Accept only the connections that clients have made already: closing the listener would reset them."""
        made = []
        for listener in self._listeners:
            # None waits any more, or none can be accepted.
            with suppress(OSError):
                for _ in range(self.config.backlog):
                    made.append(listener.accept()[0])
        for server in self.servers:
            server.close()
        for connection in made:
            connection.setblocking(False)
            await self.take(connection)
        with anyio.move_on_after(LAST_SECONDS):
            # uvicorn says of no connection that its first request has begun.
            while any(cast(HttpToolsProtocol, each).cycle is None for each in self.server_state.connections):  # noqa: ASYNC110
                await anyio.sleep(LOOK_SECONDS)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def open_app(
    runtime: Runtime,
    settings: HttpSettings,
    limits: ConnectionLimits,
    owner_apps: OwnerApps | None = None,
    handover: Handover | None = None,
) -> AsyncIterator[HttpApp]:
    """Open the application with its session manager; sessions end with this context."""
    manager = ResumableSessions(
        runtime.server, idle_seconds=settings.session_idle_seconds, max_body_bytes=settings.max_body_bytes
    )
    replicas = runtime.gateway.replicas
    if replicas is not None:
        begin_session_ids(manager, f"{replicas.own.id}-")
    async with (
        manager.run(),
        open_forwarding(replicas, settings) as forwarding,
        anyio.create_task_group() as tasks,
    ):
        app = HttpApp(runtime, manager, settings, limits, owner_apps, forwarding, handover)
        tasks.start_soon(app.keys.run, app.end_keys)
        yield app
        tasks.cancel_scope.cancel()


async def serve_http(
    open_runtime: OpenRuntime,
    settings: HttpSettings,
    on_listening: OnListening,
    stop: anyio.Event,
    owner_apps: OwnerApps | None = None,
    handover: Handover | None = None,
) -> None:
    """Serve until `stop`; `on_listening` gets the endpoint's URL once it answers.

    As a worker, also serve the connections of a `handover`, and listen on a port that only other workers know.
    """
    listener = bound(settings.host, settings.port) if handover is None else bound(handover.host, 0)
    limits = ConnectionLimits(settings, connections_within(raise_limit(), settings.max_connections))
    with listener:
        async with open_runtime() as runtime, open_app(runtime, settings, limits, owner_apps, handover) as app:
            runtime.presence.transport = "http"
            runtime.presence.url = url_of(listener, ENDPOINT) if handover is None else handover.url
            if runtime.gateway.replicas is not None:
                advertised = settings.advertise if handover is None else None
                await runtime.gateway.replicas.serve_at(advertised or reached_at(listener))
            announce = partial(on_listening, runtime.presence.url)
            await _serve(runtime, app, settings, limits, listener, announce, stop, handover)


async def _serve(
    runtime: Runtime,
    app: HttpApp,
    settings: HttpSettings,
    limits: ConnectionLimits,
    listener: socket.socket,
    announce: Callable[[], None],
    stop: anyio.Event,
    handover: Handover | None,
) -> None:
    config = uvicorn.Config(
        app,
        http=limits.protocol(),
        # Another protocol on the same connection would escape the limits.
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        log_config=None,
        access_log=False,
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    server = HttpServer(config)

    async def shut_down() -> None:
        await stop.wait()
        app.begin_drain()
        await anyio.sleep(settings.drain_seconds)
        runtime.presence.is_ending = True
        app.begin_shutdown()
        seconds = max(settings.shutdown_seconds - CHILDREN_SECONDS - 1, 0.5)
        runtime.gateway.tell_in_flight(seconds)
        end = anyio.current_time() + seconds
        await runtime.gateway.calls.drain(seconds)
        if handover is not None:
            await handover.end()
        await server.end_listening()
        await runtime.gateway.calls.drain(max(end - anyio.current_time(), LAST_SECONDS))
        server.should_exit = True

    async def announce_start() -> None:
        await server.listening.wait()
        announce()

    async def take_handed(handover: Handover) -> None:
        await server.listening.wait()
        replicas = runtime.gateway.replicas
        replica = replicas.own.id if replicas is not None else ""
        handover.begin(
            replica, listener.getsockname()[1], lambda handed: tasks.start_soon(server.take, handed.connection, handed)
        )
        await runtime.gateway.updates.has_list.wait()
        handover.ready()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shut_down)
        tasks.start_soon(announce_start)
        if handover is not None:
            tasks.start_soon(take_handed, handover)
        await server.serve(sockets=[listener])
        limits.end_refused()
        tasks.cancel_scope.cancel()
