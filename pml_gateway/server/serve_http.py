"""A runtime becomes a listening process that drains its calls and its children before it exits."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import anyio
import uvicorn

from pml_gateway.config.settings import HttpSettings
from pml_gateway.errors import ConfigurationError
from pml_gateway.log import get_logger
from pml_gateway.server.http import HttpApp, open_app
from pml_gateway.server.runtime import OpenRuntime, Runtime
from pml_gateway.server.signals import stop_on_signals

logger = get_logger(__name__)

CHILDREN_SECONDS = 5.0
"""What closing children may take: two seconds to leave by themselves, two more after SIGTERM, then SIGKILL."""

OnListening = Callable[[str], None]


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


async def serve_http(
    open_runtime: OpenRuntime, settings: HttpSettings, on_listening: OnListening, stop: anyio.Event | None = None
) -> None:
    """Serve until SIGTERM, SIGINT or `stop`; `on_listening` gets the endpoint's URL once it answers."""
    listener = _bind(settings)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    with listener:
        async with open_runtime() as runtime, open_app(runtime, settings) as app:
            await _serve(runtime, app, settings, listener, partial(on_listening, f"http://{shown}:{port}/mcp"), stop)


async def _serve(
    runtime: Runtime,
    app: HttpApp,
    settings: HttpSettings,
    listener: socket.socket,
    announce: Callable[[], None],
    stop: anyio.Event | None,
) -> None:
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)

    async def shut_down() -> None:
        app.begin_shutdown()
        await runtime.gateway.drain(max(settings.shutdown_seconds - CHILDREN_SECONDS - 1, 0.5))
        server.should_exit = True

    async def shut_down_on_stop() -> None:
        if stop is not None:
            await stop.wait()
            await shut_down()

    async def announce_start() -> None:
        await server.listening.wait()
        announce()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop_on_signals, shut_down)
        tasks.start_soon(shut_down_on_stop)
        tasks.start_soon(announce_start)
        await server.serve(sockets=[listener])
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
        raise ConfigurationError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}",
            hint="choose another port with --port, or 0 for a free one",
        ) from error
    return listener
