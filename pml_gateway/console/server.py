"""The server of the console, on an address that only this machine reaches."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
import uvicorn

from pml_gateway.console.access import ConsoleAccess
from pml_gateway.console.app import Console
from pml_gateway.console.logins import RunningLogins
from pml_gateway.console.source import GatewaySource
from pml_gateway.errors import GatewayError

HOST = "127.0.0.1"

END_SECONDS = 2
"""Seconds that open pages get when the console ends."""


class _Server(uvicorn.Server):
    """uvicorn without signal handlers of its own: the command has some."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_console(source: GatewaySource, port: int, announce: Callable[[str], None]) -> None:
    """Serve pages until cancelled; announce the link that opens them.

    Raises:
        GatewayError: the port is taken.
    """
    access = ConsoleAccess()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            raise GatewayError(
                f"port {port} cannot be used ({error.strerror})", hint="--port 0 takes a free one"
            ) from None
        listener.listen()
        taken = listener.getsockname()[1]
        logins = RunningLogins()
        app = Console(source, access, logins=logins).app()
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=END_SECONDS
        )
        announce(f"http://{HOST}:{taken}{access.new_link()}")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(logins.run)
            await _Server(config).serve(sockets=[listener])
            tasks.cancel_scope.cancel()
