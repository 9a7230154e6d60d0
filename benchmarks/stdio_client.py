"""A raw stdio client of MCP that knows when it started its server."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO, Any

import anyio
import anyio.to_thread

from benchmarks.client import CLIENT_INFO, AnswerError, Era
from benchmarks.processes import REPOSITORY, PeerError, stop

ANSWER_SECONDS = 60


@dataclass(slots=True)
class StdioClient:
    """One server process; requests go one after the other."""

    process: subprocess.Popen[bytes]
    era: Era
    started: float
    log: IO[bytes]
    sent: int = 0

    @property
    def age(self) -> float:
        """Seconds since the process was started."""
        return time.perf_counter() - self.started

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The result of one request."""
        self.sent += 1
        message = {"jsonrpc": "2.0", "id": self.sent, "method": method, "params": self._envelope(params or {})}
        with anyio.fail_after(ANSWER_SECONDS):
            answer = await anyio.to_thread.run_sync(self._exchange, message, abandon_on_cancel=True)
        if "result" not in answer:
            raise AnswerError(f"{method}: {json.dumps(answer)[:500]}")
        result: dict[str, Any] = answer["result"]
        return result

    async def open(self) -> None:
        """Shake hands, where the era wants it."""
        if self.era is Era.HANDSHAKE:
            about = {"protocolVersion": self.era.value, "capabilities": {}, "clientInfo": CLIENT_INFO}
            await self.request("initialize", about)
            self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def _envelope(self, params: Mapping[str, Any]) -> dict[str, Any]:
        if self.era is Era.HANDSHAKE:
            return dict(params)
        prefix = "io.modelcontextprotocol/"
        meta = {
            f"{prefix}protocolVersion": self.era.value,
            f"{prefix}clientInfo": CLIENT_INFO,
            f"{prefix}clientCapabilities": {},
        }
        return {**params, "_meta": meta}

    def _exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        self._write(message)
        for line in _pipe(self.process.stdout):
            answer = json.loads(line)
            if isinstance(answer, dict) and answer.get("id") == message["id"] and "method" not in answer:
                return answer
        code = self.process.wait(ANSWER_SECONDS)
        self.log.seek(0)
        said = self.log.read().decode(errors="replace")[-1000:]
        raise PeerError(f"the server ended with {code} instead of answering: {said}")

    def _write(self, message: dict[str, Any]) -> None:
        pipe = _pipe(self.process.stdin)
        pipe.write(json.dumps(message).encode() + b"\n")
        pipe.flush()


@asynccontextmanager
async def open_stdio_client(command: Sequence[str], era: Era, env: Mapping[str, str]) -> AsyncIterator[StdioClient]:
    """Start a server and shake hands; the server is stopped at the end."""
    with tempfile.TemporaryFile() as log:
        client = _start(command, era, env, log)
        try:
            await client.open()
            yield client
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(_end, client.process)


def _start(command: Sequence[str], era: Era, env: Mapping[str, str], log: IO[bytes]) -> StdioClient:
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={**os.environ, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,
    )
    return StdioClient(process, era, started, log)


def _end(process: subprocess.Popen[bytes]) -> None:
    _pipe(process.stdin).close()
    stop(process)
    _pipe(process.stdout).close()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
