"""The faulty upstreams of one run: how each is started or reached, what befalls them, how they are put right."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, assert_never

import anyio
import anyio.abc

from benchmarks.chaos.answers import MODERN
from benchmarks.chaos.faults import Disturbance, Fault
from benchmarks.figures import is_running, parent_of
from benchmarks.processes import REPOSITORY

VERSIONS = ("2025-11-25", MODERN, "2025-06-18", MODERN)
"""What the upstreams speak, in turns."""

LISTEN_SECONDS = 30.0
LAUNCHER = '"$@"; exit $?'
"""A shell that starts the server as its child and waits for it, as npx does."""


@dataclass(slots=True)
class FaultyUpstream:
    """One upstream. The gateway starts those without a port; the others listen, and are started here."""

    upstream_id: str
    version: str
    folder: Path
    holder: socket.socket | None
    launched: bool
    stubborn: bool
    process: subprocess.Popen[bytes] | None = None

    def entry(self) -> dict[str, Any]:
        """Its definition in the gateway's configuration."""
        if self.holder is not None:
            return {"url": f"http://127.0.0.1:{self.holder.getsockname()[1]}/mcp"}
        command, *arguments = self._command()
        if self.launched:
            command, arguments = "sh", ["-c", LAUNCHER, "sh", command, *arguments]
        return {"command": command, "args": arguments, "cwd": str(REPOSITORY)}

    def pids(self) -> list[int]:
        """The server processes that live now, whoever started them."""
        try:
            ever = (self.folder / "pids").read_text(encoding="ascii").split()
        except FileNotFoundError:
            return []
        return [pid for pid in map(int, ever) if is_running(pid, str(self.folder))]

    def starts(self) -> int:
        """How often a server process was started."""
        path = self.folder / "pids"
        return len(path.read_text(encoding="ascii").split()) if path.exists() else 0

    def executions(self) -> Counter[str]:
        """How often each nonce was executed."""
        path = self.folder / "journal"
        lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
        return Counter(line.split()[0] for line in lines)

    def signal(self, sent: signal.Signals) -> None:
        """Signal every server process of this upstream."""
        for pid in self.pids():
            _kill(pid, sent)

    def kill_launcher(self) -> None:
        """End what started the server, and leave the server."""
        for pid in self.pids():
            _kill(parent_of(pid) if self.launched else pid, signal.SIGKILL)

    def listen(self) -> None:
        """Start the server of an HTTP upstream, unless it runs."""
        if self.holder is None or (self.process is not None and self.process.poll() is None):
            return
        self.process = subprocess.Popen(
            self._command(), cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def close(self) -> None:
        """End what was started here."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        if self.holder is not None:
            self.holder.close()

    def _command(self) -> list[str]:
        # Without site-packages Python starts in 30 ms, which matters for hundreds of restarts.
        command = [sys.executable, "-S", "-E", "-m", "benchmarks.chaos.upstream", "--id", self.upstream_id]
        command += ["--version", self.version, "--folder", str(self.folder)]
        command += ["--stubborn"] if self.stubborn else []
        return command if self.holder is None else [*command, "--port", str(self.holder.getsockname()[1])]


@dataclass(slots=True)
class Stand:
    """All upstreams of a run; the task group carries what befalls them and takes time."""

    upstreams: dict[str, FaultyUpstream]
    tasks: anyio.abc.TaskGroup
    happened: Counter[str] = field(default_factory=Counter)

    def disturb(self, disturbance: Disturbance) -> None:
        """Let it happen."""
        self.happened[disturbance.fault.value] += 1
        self.tasks.start_soon(self._disturb, disturbance)

    async def _disturb(self, disturbance: Disturbance) -> None:
        upstream = self.upstreams[disturbance.upstream_id]
        match disturbance.fault:
            case Fault.KILL | Fault.RESTART:
                upstream.signal(signal.SIGKILL if disturbance.fault is Fault.KILL else signal.SIGTERM)
                # The gateway starts its own again; one that listens stays away for a while.
                await anyio.sleep(disturbance.seconds)
            case Fault.KILL_LAUNCHER:
                upstream.kill_launcher()
            case Fault.GARBAGE:
                upstream.signal(signal.SIGUSR1)
            case Fault.HANG:
                upstream.signal(signal.SIGSTOP)
                await anyio.sleep(disturbance.seconds)
                upstream.signal(signal.SIGCONT)
            case Fault.SLOW_START:
                (upstream.folder / "slow").write_text(str(disturbance.seconds), encoding="ascii")
                upstream.signal(signal.SIGKILL)
            case _:
                assert_never(disturbance.fault)
        upstream.listen()

    async def keep_listening(self) -> None:
        """Start HTTP upstreams again that died of a call, as a service manager does."""
        while True:
            await anyio.sleep(1)
            for upstream in self.upstreams.values():
                upstream.listen()

    def put_right(self) -> None:
        """Let every process run, none start slowly, and every HTTP upstream listen."""
        for upstream in self.upstreams.values():
            (upstream.folder / "slow").unlink(missing_ok=True)
            upstream.signal(signal.SIGCONT)
            upstream.listen()


def _kill(pid: int, sent: signal.Signals) -> None:
    if pid > 1:
        with suppress(ProcessLookupError):
            os.kill(pid, sent)


@asynccontextmanager
async def open_stand(folder: Path, count: int) -> AsyncIterator[Stand]:
    """The upstreams: in turns stdio and HTTP, old and new, plain, launched by a shell, deaf to the end of stdin."""
    upstreams = {}
    for number in range(count):
        upstream_id = f"u{number:02}"
        (folder / upstream_id).mkdir()
        over_http = number % 5 in (1, 2)
        upstreams[upstream_id] = FaultyUpstream(
            upstream_id,
            VERSIONS[number % len(VERSIONS)],
            folder / upstream_id,
            _held_port() if over_http else None,
            launched=number % 5 == 3,
            stubborn=number % 5 == 4 or number % 10 == 3,
        )
    try:
        async with anyio.create_task_group() as tasks:
            stand = Stand(upstreams, tasks)
            tasks.start_soon(stand.keep_listening)
            stand.put_right()
            await _until_listening(upstreams.values())
            yield stand
            tasks.cancel_scope.cancel()
    finally:
        for upstream in upstreams.values():
            upstream.signal(signal.SIGCONT)
            upstream.close()


async def _until_listening(upstreams: Iterable[FaultyUpstream]) -> None:
    with anyio.fail_after(LISTEN_SECONDS):
        for upstream in upstreams:
            while upstream.holder is not None:
                try:
                    stream = await anyio.connect_tcp(*upstream.holder.getsockname())
                except OSError:
                    await anyio.sleep(0.05)
                else:
                    await stream.aclose()
                    break


def _held_port() -> socket.socket:
    """A free port that nobody else is given while no server listens on it: connections are refused meanwhile."""
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind(("127.0.0.1", 0))
    return holder
