"""Workers that end, that cannot be started again, and that get a signal before they are ready for it."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from pml_gateway.config.settings import HttpSettings
from pml_gateway.serve.workers import supervising
from pml_gateway.serve.workers.accepting import Accepting
from pml_gateway.serve.workers.supervising import Crew, serve_by_workers
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

ENDS_ONCE = """
import os, sys
from pml_gateway.serve.workers.handover import FRAME, FrameKind
os.remove(sys.argv[0])
os.write(int(sys.argv[1].split(":")[1]), FRAME.pack(FrameKind.OPEN, b"0123456789ab", 1))
"""

STARTS_FOR_EVER = """
import pathlib, signal, sys
folder = pathlib.Path(sys.argv[0]).parent
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGTERM, lambda *_: (folder / "ended").touch())
(folder / "begun").touch()
signal.pause()
"""

STANDS_STILL_ONCE = """
import os, pathlib, signal, socket, sys
from pml_gateway.serve.workers.handover import FRAME, FrameKind
begun, end = pathlib.Path(sys.argv[0]).with_name("begun"), socket.socket(fileno=int(sys.argv[1].split(":")[1]))
end.sendall(FRAME.pack(FrameKind.OPEN, b"0123456789ab", 1))
if not begun.exists():
    begun.touch()
    os.kill(os.getpid(), signal.SIGSTOP)
_, descriptors, _, _ = socket.recv_fds(end, FRAME.size, 1)
socket.socket(fileno=descriptors[0]).sendall(b"served")
signal.pause()
"""


@asynccontextmanager
async def supervised(folder: Path, script: str) -> AsyncIterator[tuple[str, int]]:
    """One worker that is a script."""
    program, stop = folder / "worker", anyio.Event()
    program.write_text(f"#!{sys.executable}\n{script}")
    program.chmod(0o700)
    crew = Crew(1, [str(program)], dict(os.environ), "http://127.0.0.1/mcp")
    settings = HttpSettings(shutdown_seconds=1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve_by_workers, crew, Accepting(listener, settings, 1000), settings, lambda: None, stop)
            yield listener.getsockname()
            stop.set()


async def test_a_worker_that_cannot_be_started_again_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with supervised(tmp_path, ENDS_ONCE):
        await until(lambda: "not started: No such file" in caplog.text)


async def test_what_waits_for_a_worker_that_stands_still_is_served_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "STILL_SECONDS", 0.2)
    async with supervised(tmp_path, STANDS_STILL_ONCE) as address, await anyio.connect_tcp(*address) as client:
        await client.send(b"GET /healthz HTTP/1.1\r\n\r\n")
        with anyio.fail_after(30):
            assert await client.receive() == b"served"


async def test_a_worker_that_starts_does_not_end_by_a_hangup(tmp_path: Path) -> None:
    default = signal.getsignal(signal.SIGHUP)
    async with supervised(tmp_path, STARTS_FOR_EVER):
        await until(lambda: (tmp_path / "begun").exists() and signal.getsignal(signal.SIGHUP) is not default)
        os.kill(os.getpid(), signal.SIGHUP)
        for _ in range(20):
            # Turns of the event loop in which the signal is heard.
            await anyio.lowlevel.checkpoint()
    assert (tmp_path / "ended").exists()
