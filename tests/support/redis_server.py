"""A real Redis server, on a free port, without files unless it is given a folder."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import anyio
from anyio.abc import ByteStream, SocketAttribute

from tests.support.listening import free_port
from tests.support.waiting import wait_for

PASSWORD = "a-password-of-redis"


class RealRedis:
    """A server that can be stopped, paused and started again at the same port."""

    def __init__(self, program: Path, data: Path | None = None, *, logs_changes: bool = True) -> None:
        self.port = free_port()
        self.url = f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"
        self._program = program
        self._data = data
        self._logs_changes = logs_changes
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = {"port": str(self.port), "bind": "127.0.0.1", "save": "", "requirepass": PASSWORD}
        if self._data is not None:
            logged = {"appendonly": "yes", "appendfsync": "everysec"} if self._logs_changes else {}
            settings |= {"dir": str(self._data), **logged}
        arguments = [text for name, value in settings.items() for text in (f"--{name}", value)]
        self._process = subprocess.Popen(
            [self._program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for(self._answers, "Redis answers")

    def stop(self) -> None:
        """Kill it; only a server with a folder for its data has it when it starts again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def snapshot(self) -> None:
        """Write a snapshot, with which it starts again if it does not log changes."""
        with socket.create_connection(("127.0.0.1", self.port), 10) as connection:
            connection.sendall(f"AUTH {PASSWORD}\r\nSAVE\r\n".encode())
            answer = b""
            while answer.count(b"\r\n") < 2:
                answer += connection.recv(100)
        assert answer == b"+OK\r\n+OK\r\n"

    def forget(self) -> None:
        """Delete the data of a server that is stopped."""
        assert self._data is not None
        assert self._process is None
        shutil.rmtree(self._data)
        self._data.mkdir()

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"PING\r\n")
                return bool(connection.recv(10))
        except OSError:
            return False


@contextmanager
def real_redis(program: Path, data: Path | None = None, *, logs_changes: bool = True) -> Iterator[RealRedis]:
    """Run a server; it writes its data into a folder if it is given one, each change or only when it is told to."""
    server = RealRedis(program, data, logs_changes=logs_changes)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@asynccontextmanager
async def losing_answers(url: str, about: bytes) -> AsyncIterator[str]:
    """A URL of the same server; the first answer to each command about something is lost with its connection."""
    lost, port = set[bytes](), urlsplit(url).port
    assert port is not None

    async def forward(client: ByteStream) -> None:
        asked = b""

        async def pass_back() -> None:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                async for answer in server:
                    if about in asked and asked not in lost:
                        lost.add(asked)
                        break
                    await client.send(answer)
            tasks.cancel_scope.cancel()

        async with client, await anyio.connect_tcp("127.0.0.1", port) as server, anyio.create_task_group() as tasks:
            tasks.start_soon(pass_back)
            with suppress(anyio.BrokenResourceError):
                async for asked in client:
                    await server.send(asked)
            tasks.cancel_scope.cancel()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, forward)
        yield f"redis://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/0"
        tasks.cancel_scope.cancel()
    assert lost
