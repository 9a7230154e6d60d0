"""A real Redis server, on a free port and without files."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import wait_for

PASSWORD = "a-password-of-redis"


class RealRedis:
    """A server that can be stopped, paused and started again at the same port."""

    def __init__(self, program: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = {"port": str(self.port), "bind": "127.0.0.1", "save": "", "requirepass": PASSWORD}
        arguments = [text for name, value in settings.items() for text in (f"--{name}", value)]
        self._process = subprocess.Popen(
            [self._program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for(self._answers, "Redis answers")

    def stop(self) -> None:
        """Kill it; nothing is kept."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"PING\r\n")
                return bool(connection.recv(10))
        except OSError:
            return False


@contextmanager
def real_redis(program: Path) -> Iterator[RealRedis]:
    """Run a server."""
    server = RealRedis(program)
    server.start()
    try:
        yield server
    finally:
        server.stop()
