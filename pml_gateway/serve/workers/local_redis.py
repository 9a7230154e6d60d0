"""A Redis server of this machine's workers alone: on a unix socket, without files, ended with the gateway."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import anyio
import anyio.abc

from pml_gateway.errors import ConfigurationError, GatewayError
from pml_gateway.files import make_private
from pml_gateway.log import get_logger
from pml_gateway.processes.children import Children, open_children
from pml_gateway.serve.unix_sockets import MAX_ADDRESS

logger = get_logger(__name__)

PROGRAMS = ("redis-server", "valkey-server")

SUFFIX = ".redis"

START_SECONDS = 10.0
POLL_SECONDS = 0.02
STOP_SECONDS = 2.0

PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.2, 10.0
"""Shortest and longest pause before a server that ended is started again; it doubles unless it had run for a minute."""

STEADY_SECONDS = 60.0

OVERHEAD_BYTES = 64 * 1024**2
"""Memory of the server beside stored results."""


@dataclass(frozen=True, slots=True)
class LocalRedis:
    """The server that workers share."""

    url: str
    key: str


def find_program(path: str | None) -> str:
    """Return the Redis or Valkey server on the `PATH` variable.

    Raises:
        ConfigurationError: there is none.
    """
    for name in PROGRAMS:
        if (found := shutil.which(name, path=path)) is not None:
            return found
    raise ConfigurationError(
        "several workers share their state in Redis, and there is no redis-server or valkey-server on the PATH",
        hint="install one (apt install redis-server, dnf install valkey, brew install redis), "
        "or name a Redis server in storage.url",
    )


@asynccontextmanager
async def open_local_redis(program: str, folder: Path, result_bytes: int) -> AsyncIterator[LocalRedis]:
    """Run a server with its socket in a private folder, with room for so many bytes of results.

    Raises:
        GatewayError: it does not start.
    """
    with _socket_path(folder) as path, open_children() as children:
        server = _Server(program, path, result_bytes + OVERHEAD_BYTES, children)
        process = await server.start()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.keep, process)
            try:
                yield LocalRedis(f"unix://{quote(str(path))}", secrets.token_urlsafe(32))
            finally:
                tasks.cancel_scope.cancel()


@contextmanager
def _socket_path(folder: Path) -> Iterator[Path]:
    """Yield a path for the socket, in a temporary folder if this one's is too long for an address."""
    make_private(folder)
    path = folder / f"{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}"
    with ExitStack() as stack:
        if len(os.fsencode(path)) > MAX_ADDRESS:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pml-")), path.name)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


class _Server:
    def __init__(self, program: str, path: Path, max_bytes: int, children: Children) -> None:
        self._program = program
        self._path = path
        self._children = children
        self._last: deque[str] = deque(maxlen=5)
        # Values are sealed, and expire; without room, a write fails and nothing else is lost.
        self._settings = "\n".join(
            f"{name} {value}"
            for name, value in {
                "port": 0,
                "unixsocket": f'"{path}"',
                "unixsocketperm": 600,
                "save": '""',
                "appendonly": "no",
                "maxmemory": max_bytes,
                "maxmemory-policy": "noeviction",
                "databases": 1,
                "loglevel": "warning",
                "daemonize": "no",
            }.items()
        )

    async def start(self) -> anyio.abc.Process:
        """Start it, and wait until it answers.

        Raises:
            GatewayError: it ended, or does not answer in time.
        """
        self._path.unlink(missing_ok=True)
        # Settings come over stdin, since everybody can read a command line.
        process = await anyio.open_process(
            [self._program, "-"], stderr=subprocess.STDOUT, cwd=self._path.parent, start_new_session=True
        )
        self._children.began(process.pid)
        try:
            assert process.stdin is not None
            await process.stdin.send(f"{self._settings}\n".encode())
            await process.stdin.aclose()
            with anyio.move_on_after(START_SECONDS):
                while process.returncode is None:
                    if _answers(self._path):
                        return process
                    await anyio.sleep(POLL_SECONDS)
        except BaseException:
            await self._end(process)
            raise
        await self._end(process)
        assert process.stdout is not None
        with suppress(anyio.EndOfStream):
            self._last.append((await process.stdout.receive()).decode(errors="replace").strip())
        raise GatewayError(f"{self._program} does not start: {' '.join(self._last)[-500:]}")

    async def keep(self, process: anyio.abc.Process) -> None:
        """Start it again whenever it ends; end it when this is cancelled."""
        pause = PAUSE_SECONDS
        while True:
            began = anyio.current_time()
            try:
                await self._follow(process)
            finally:
                with anyio.CancelScope(shield=True):
                    await self._end(process)
            logger.error("the Redis server of the workers ended (%s); what it held is lost", process.returncode)
            if anyio.current_time() - began > STEADY_SECONDS:
                pause = PAUSE_SECONDS
            while True:
                await anyio.sleep(pause)
                pause = min(pause * 2, MAX_PAUSE_SECONDS)
                try:
                    process = await self.start()
                    break
                except (GatewayError, OSError) as error:
                    logger.error("%s", error)
            logger.info("the Redis server of the workers runs again")

    async def _follow(self, process: anyio.abc.Process) -> None:
        """Read what it says, or it would wait for somebody to, until it ends."""
        assert process.stdout is not None
        async for content in process.stdout:
            for line in content.decode(errors="replace").splitlines():
                logger.debug("redis: %s", line)
        await process.wait()

    async def _end(self, process: anyio.abc.Process) -> None:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
            with anyio.move_on_after(STOP_SECONDS, shield=True):
                await process.wait()
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            with anyio.CancelScope(shield=True):
                await process.wait()
        self._children.ended(process.pid)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(POLL_SECONDS)
        try:
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False
