"""Servers on loopback, inside the test's own event loop."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import anyio
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.sse import SseServerTransport
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

PORTS = range(20_000, 32_000)
"""Below those that systems give to connections and to whoever asks for any port."""


@asynccontextmanager
async def listening(app: Any, port: int = 0) -> AsyncIterator[int]:
    """Serve an ASGI app on loopback; yields the port."""
    with bound(port) as listener:
        async with served(app, listener):
            yield listener.getsockname()[1]


@contextmanager
def listening_apart(app: Any) -> Iterator[int]:
    """Serve an ASGI app on loopback in a thread of its own; yields the port."""
    with bound() as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
        thread = threading.Thread(target=lambda: server.run([listener]), daemon=True)
        thread.start()
        try:
            # A connection waits at the socket until the server accepts it.
            listener.listen()
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(10)


@contextmanager
def bound(port: int = 0, host: str = "127.0.0.1") -> Iterator[socket.socket]:
    """A socket at a port of a loopback address, to be given to `served` before it is closed."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        yield listener


def free_port() -> int:
    """A port of loopback for a program that is told its port, and still free when the program is started again."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError(f"no free port in {PORTS}")


@asynccontextmanager
async def served(app: Any, listener: socket.socket) -> AsyncIterator[None]:
    """Serve an ASGI app at a socket, and end in order whatever happens.

    A server that is cancelled leaves its socket with the event loop. Fixtures of a package keep one loop for many
    tests; the next socket with the same number would never be accepted from.
    """
    started = anyio.Event()

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started.set()

    server = Announcing(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))

    async def serve() -> None:
        with anyio.CancelScope(shield=True):
            await server.serve([listener])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        try:
            with anyio.fail_after(30):
                await started.wait()
            yield
        finally:
            server.should_exit = True


def sse_app(server: Server[Any]) -> Starlette:
    """A server over the transport of 2024-11-05, at `/sse`."""
    transport = SseServerTransport("/messages/")

    async def connect(request: Request) -> Response:
        async with transport.connect_sse(request.scope, request.receive, request._send) as (read, write):
            await server.run(read, write, server.create_initialization_options())
        return Response()

    routes = [Route("/sse", connect), Mount("/messages/", app=transport.handle_post_message)]
    return Starlette(routes=routes)
