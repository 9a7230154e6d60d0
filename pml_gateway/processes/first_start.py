"""The first start of a package runner, seen through to its end; a standalone program for POSIX systems.

    python -I -S first_start.py < REQUEST

The requested server is started and asked to `initialize`. Once it answers, everything is installed; the server is
ended, and the outcome written to a file. This process continues if the gateway or command that started it ends, because
a runner that is killed during an installation may leave it broken for good. It holds the lock that it inherited, and
ends at its time limit. It needs only the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "pml-gateway", "version": "0"},
    },
}

END_SECONDS = 2.0
"""Seconds for a server that answered to end after its stdin is closed."""

ROLLBACK_SECONDS = 15.0
"""Seconds for a runner to end after SIGTERM: npm rolls back what it began, which takes seconds."""

POLL_SECONDS = 0.1
READ_BYTES = 65536
MAX_LINE = 1024 * 1024
MAX_LOGGED = 1024 * 1024
"""Maximum bytes of stderr that one first start adds to the server's log."""

MAX_SAID = 8192
"""Maximum bytes from the end of stderr that are saved with the outcome."""


class _StoppedError(Exception):
    """A request to this process to end, by SIGTERM."""


def main() -> None:
    """Read the request, release the caller by forking, and see the start through."""
    request = json.load(sys.stdin)
    if os.fork():
        # The caller waits for this process; the fork continues without a parent.
        os._exit(0)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    outcome, exit_code, said = _start(request)
    _write(
        Path(request["outcome_file"]),
        {
            "outcome": outcome,
            "at": time.time(),
            "exit_code": exit_code,
            "said": said.decode("utf-8", "replace"),
        },
    )


def _stop(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _StoppedError


def _start(request: dict[str, Any]) -> tuple[str, int | None, bytes]:
    """Return `installed`, `ended` or `late`, the runner's exit code if it ended by itself, and its last stderr."""
    said = bytearray()
    try:
        process = subprocess.Popen(
            [request["command"], *request["args"]],
            env=request["env"],
            cwd=request["cwd"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return "ended", None, str(error.strerror).encode()
    try:
        outcome = _watch(process, request, said)
        exit_code = process.poll()
        _end(process, END_SECONDS if outcome == "installed" else 0.0)
    except _StoppedError:
        outcome, exit_code = "late", None
        _end(process, 0.0)
    return outcome, exit_code, bytes(said[-MAX_SAID:])


def _watch(process: subprocess.Popen[bytes], request: dict[str, Any], said: bytearray) -> str:
    """Follow the process until it answers, ends, or reaches its time limit."""
    deadline = time.monotonic() + request["seconds"]
    with contextlib.suppress(OSError):
        stdin = _pipe(process.stdin)
        stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
        stdin.flush()
    line, logged = bytearray(), 0
    with selectors.DefaultSelector() as selector, _log(request["log_file"]) as log:
        for stream in (_pipe(process.stdout), _pipe(process.stderr)):
            selector.register(stream, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            has_ended = process.poll() is not None
            ready = selector.select(0 if has_ended else POLL_SECONDS)
            if has_ended and not ready:
                return "ended"
            for key, _ in ready:
                content = os.read(key.fd, READ_BYTES)
                if not content:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stdout:
                    line += content
                    if _has_answer(line):
                        return "installed"
                else:
                    said += content
                    del said[:-MAX_SAID]
                    with contextlib.suppress(OSError):
                        os.write(log, content[: max(MAX_LOGGED - logged, 0)])
                    logged += len(content)
    return "late"


def _has_answer(received: bytearray) -> bool:
    """Return True if a complete line is a message; runners may also write progress to stdout."""
    *lines, rest = received.split(b"\n")
    received[:] = rest[-MAX_LINE:]
    return any(line.lstrip().startswith(b"{") and b'"jsonrpc"' in line for line in lines)


def _end(process: subprocess.Popen[bytes], patience: float) -> None:
    """End the process and its descendants: close stdin, then SIGTERM with time for a rollback, then SIGKILL."""
    with contextlib.suppress(OSError):
        _pipe(process.stdin).close()
    steps = ((None, patience), (signal.SIGTERM, ROLLBACK_SECONDS), (signal.SIGKILL, END_SECONDS))
    for sent, seconds in steps:
        if not _signal(process.pid, sent):
            return
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            process.poll()
            if not _signal(process.pid, None):
                return
            _drain(process)
            time.sleep(POLL_SECONDS)


def _drain(process: subprocess.Popen[bytes]) -> None:
    """Read pending output: a runner could not end with a full pipe."""
    with selectors.DefaultSelector() as selector:
        for stream in (_pipe(process.stdout), _pipe(process.stderr)):
            selector.register(stream, selectors.EVENT_READ)
        for key, _ in selector.select(0):
            with contextlib.suppress(OSError):
                os.read(key.fd, READ_BYTES)


def _signal(group: int, sent: signal.Signals | None) -> bool:
    """Signal a process group, or only check it if `sent` is None; return True if it exists."""
    try:
        os.killpg(group, sent or 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # members of another user, or on macOS an unreaped member
    return True


@contextlib.contextmanager
def _log(path: str) -> Any:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        descriptor = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def _write(path: Path, outcome: dict[str, object]) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(outcome, stream)
    Path(name).replace(path)


if __name__ == "__main__":
    main()
