"""The server that listens: HTTP connections within their limits, and an orderly end."""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import anyio
import uvicorn

from pml_gateway.config.settings import HttpSettings, Settings
from pml_gateway.errors import ConfigurationError, GatewayError
from pml_gateway.policy.refusals import refusals
from pml_gateway.serve.http.app import ENDPOINT, HttpApp, OwnerApps
from pml_gateway.serve.http.resumption import ResumableSessions
from pml_gateway.serve.limits.connections import ConnectionLimits
from pml_gateway.serve.limits.descriptors import connections_within, raise_limit
from pml_gateway.serve.runtime import OpenRuntime, Runtime

KEEP_ALIVE_SECONDS = 75
"""Seconds that a connection without a request stays open, longer than the 4 or 5 seconds of most client libraries. One
that ends while a client sends on it loses that request."""

CHILDREN_SECONDS = 5.0
"""Seconds of the shutdown time reserved for closing servers, which usually takes one."""

OnListening = Callable[[str], None]


def check_http(settings: Settings, environ: Mapping[str, str], *hosts: str) -> None:
    """Refuse what may not be served over HTTP, such as keys that do not resolve, or none on a public address.

    Args:
        settings: what is to be served.
        environ: where references to keys are looked up.
        hosts: addresses that are listened on, beside the one in the settings.

    Raises:
        ConfigurationError: naming the value and the remedy.
    """
    for _, error in refusals(settings, environ, *hosts):
        raise error


def check_port(settings: HttpSettings) -> None:
    """Find out whether anybody can listen there now.

    Raises:
        GatewayError: the port is taken; ConfigurationError: no process may take it.
    """
    _bind(settings).close()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, because calls in flight are drained first, and with word of its start."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = anyio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def open_app(
    runtime: Runtime, settings: HttpSettings, limits: ConnectionLimits, owner_apps: OwnerApps | None = None
) -> AsyncIterator[HttpApp]:
    """Open the application with its session manager; sessions end with this context."""
    manager = ResumableSessions(
        runtime.server, idle_seconds=settings.session_idle_seconds, max_body_bytes=settings.max_body_bytes
    )
    async with manager.run(), anyio.create_task_group() as tasks:
        app = HttpApp(runtime, manager, settings, limits, owner_apps)
        tasks.start_soon(app.keys.run, app.end_keys)
        yield app
        tasks.cancel_scope.cancel()


async def serve_http(
    open_runtime: OpenRuntime,
    settings: HttpSettings,
    on_listening: OnListening,
    stop: anyio.Event,
    owner_apps: OwnerApps | None = None,
) -> None:
    """Serve until `stop`; `on_listening` gets the endpoint's URL once it answers."""
    listener = _bind(settings)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    limits = ConnectionLimits(settings, connections_within(raise_limit(), settings.max_connections))
    with listener:
        async with open_runtime() as runtime, open_app(runtime, settings, limits, owner_apps) as app:
            runtime.presence.transport = "http"
            runtime.presence.url = f"http://{shown}:{port}{ENDPOINT}"
            announce = partial(on_listening, runtime.presence.url)
            await _serve(runtime, app, settings, limits, listener, announce, stop)


async def _serve(
    runtime: Runtime,
    app: HttpApp,
    settings: HttpSettings,
    limits: ConnectionLimits,
    listener: socket.socket,
    announce: Callable[[], None],
    stop: anyio.Event,
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
    server = _Server(config)

    async def shut_down() -> None:
        await stop.wait()
        runtime.presence.is_ending = True
        app.begin_shutdown()
        seconds = max(settings.shutdown_seconds - CHILDREN_SECONDS - 1, 0.5)
        runtime.gateway.tell_in_flight(seconds)
        await runtime.gateway.calls.drain(seconds)
        server.should_exit = True

    async def announce_start() -> None:
        await server.listening.wait()
        announce()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shut_down)
        tasks.start_soon(announce_start)
        await server.serve(sockets=[listener])
        limits.end_refused()
        tasks.cancel_scope.cancel()


def _bind(settings: HttpSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the protocol is named; with it, every answer takes 40 ms longer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host.strip("[]"), settings.port))
    except OSError as error:
        listener.close()
        # Whoever has a port may leave it: nothing is wrong with the configuration then.
        kind = GatewayError if error.errno == errno.EADDRINUSE else ConfigurationError
        raise kind(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}",
            hint="choose another port with --port, or 0 for a free one",
        ) from error
    return listener
