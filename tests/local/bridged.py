"""A client of a bridge in a process of its own, with what it reads and what the gateways have got."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PATIENCE = 30
INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


class Bridged:
    """One client. What it does not read is kept in order."""

    def __init__(self, home: Path, process: subprocess.Popen[bytes]) -> None:
        self.home = home
        self.process = process
        self.read: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.read.put(json.loads(line))
        self.read.put(None)

    def write(self, content: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(content)
        self.process.stdin.flush()

    def send(self, **message: Any) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def call(self, number: int | str, name: str, **arguments: Any) -> None:
        self.send(id=number, method="tools/call", params={"name": name, "arguments": arguments})

    def next(self) -> Any:
        """The next message; None at the end."""
        return self.read.get(timeout=PATIENCE)

    def handshake(self) -> None:
        self.send(id="init", method="initialize", params=INITIALIZE)
        assert self.next()["id"] == "init"
        self.send(method="notifications/initialized")

    def leave(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE)

    def noted(self, name: str) -> list[Any]:
        """What the gateways have written down."""
        with suppress(FileNotFoundError):
            return [json.loads(line) for line in (self.home / name).read_text().splitlines()]
        return []

    def received(self, gateway: int) -> list[Any]:
        """The messages that one gateway got."""
        return [json.loads(each["line"]) for each in self.noted("received") if each["gateway"] == gateway]


@contextmanager
def bridged(home: Path, behaviour: str = "") -> Iterator[Bridged]:
    """A client whose bridge runs; bridge and gateways are ended at the end."""
    with (home / "bridge.stderr").open("ab") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.local.run_bridge", str(home), behaviour],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    client = Bridged(home, process)
    try:
        yield client
    finally:
        process.kill()
        process.wait(PATIENCE)
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()
        end_gateways(home)


def end_gateways(home: Path) -> None:
    """End every gateway that was started here."""
    with suppress(FileNotFoundError):
        for line in (home / "starts").read_text().splitlines():
            with suppress(ProcessLookupError):
                os.kill(json.loads(line)["pid"], signal.SIGKILL)
