"""Starts a server process, waits until it says where it listens, and stops it."""

from __future__ import annotations

import argparse
import os
import queue
import re
import signal
import subprocess
import threading
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

import anyio.to_thread

from pml_gateway.processes.children import open_children

READY_SECONDS = 180
"""Peers fetch 5,000 tools before they listen."""

STOP_SECONDS = 10

REPOSITORY = Path(__file__).resolve().parents[1]
ANNOUNCEMENT = re.compile(r"listening on (http://127\.0\.0\.1:\d+)")
UVICORN_RUNNING = re.compile(r"Uvicorn running on (http://127\.0\.0\.1:\d+)")


class PeerError(Exception):
    """A peer cannot be started or answers wrongly; it is reported without figures."""


def new_path(text: str) -> Path:
    """Return the path of an option; what an earlier run left there would count as of this one."""
    if os.path.lexists(text):
        raise argparse.ArgumentTypeError(f"{text} exists already; name a new path, or remove it")
    path = Path(text)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@cache
def alone_option(*program: str) -> tuple[str, ...]:
    """What makes this program's `serve` over stdio the gateway itself; earlier versions know no other way."""
    shown = subprocess.run([*program, "serve", "--help"], capture_output=True, text=True, check=True, timeout=60)
    return ("--alone",) if "--alone" in shown.stdout else ()


@dataclass(frozen=True, slots=True)
class Running:
    """A process that listens."""

    origin: str
    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        """Its process id, which is also its group's."""
        return self.process.pid


@asynccontextmanager
async def running(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    announcement: re.Pattern[str] = ANNOUNCEMENT,
    log: Path | None = None,
) -> AsyncIterator[Running]:
    """Run a server that writes its address to stderr or stdout; all that it writes is kept in `log`.

    It does not outlive the benchmark, not even one that is killed.
    """
    process = _start(command, env or {})
    with open_children() as children:
        children.began(process.pid)
        try:
            origin = await anyio.to_thread.run_sync(_announced, process, announcement, log)
            yield Running(origin, process)
        finally:
            await anyio.to_thread.run_sync(stop, process)
            children.ended(process.pid)


def stop(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """End a process that leads its group, and its group with it."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    process.wait(STOP_SECONDS)


def resident_mib(pid: int) -> float:
    """Resident memory of one process without its children, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    match = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    if match is None:
        raise PeerError(f"process {pid} has ended")
    return int(match[1]) / 1024


def _start(command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def _announced(process: subprocess.Popen[str], announcement: re.Pattern[str], log: Path | None) -> str:
    assert process.stdout is not None
    found: queue.Queue[str | None] = queue.Queue()
    last: deque[str] = deque(maxlen=8)
    watched = (process.stdout, announcement, found, last, log)
    threading.Thread(target=_watch, args=watched, daemon=True).start()
    try:
        origin = found.get(timeout=READY_SECONDS)
    except queue.Empty as exc:
        raise PeerError(f"{process.args!r} did not listen within {READY_SECONDS} s: {''.join(last)}") from exc
    if origin is None:
        raise PeerError(f"{process.args!r} ended before it listened: {''.join(last)}")
    return origin


def _watch(
    lines: IO[str],
    announcement: re.Pattern[str],
    found: queue.Queue[str | None],
    last: deque[str],
    log: Path | None,
) -> None:
    """Read to the end, or a full pipe would stop the server."""
    with lines, (log or Path(os.devnull)).open("a", buffering=1, encoding="utf-8") as kept:
        for line in lines:
            last.append(line)
            kept.write(line)
            if match := announcement.search(line):
                found.put(match[1])
    found.put(None)
