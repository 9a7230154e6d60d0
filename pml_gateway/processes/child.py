"""Child processes and their pipes, without the event loop's own implementation.

uvloop forks, which takes at least 6 ms in a gateway with a model in memory, and blocks everything else; `subprocess`
starts a child in half a millisecond, without copying the page tables of the gateway.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import Signals
from typing import IO

import anyio
import anyio.abc

if sys.platform != "win32":
    import fcntl
    import termios

CHUNK = 64 * 1024
"""Bytes read at once: the capacity of a Linux pipe."""

POLL_SECONDS = 0.01
"""Seconds between checks if a child has ended: no notification exists that works on all systems."""


async def start_child(
    command: Sequence[str], *, env: Mapping[str, str] | None, folder: Path | str | None
) -> anyio.abc.Process:
    """Start a child that leads its own session, with pipes to all of its streams.

    Raises:
        OSError: it cannot be started.
    """
    if sys.platform == "win32":
        # On Windows, only the event loop can wait for pipes.
        return await anyio.open_process(command, env=env, cwd=folder)
    return Child(
        # As fast as a `fork` of a small process, so a thread is not worthwhile.
        subprocess.Popen(  # noqa: ASYNC220
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd=folder,
            start_new_session=True,
        )
    )


class Child(anyio.abc.Process):
    """A child process and the pipes to its streams, each for use by one task at a time."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdin = _Input(process.stdin)
        self._stdout = _Output(process.stdout)
        self._stderr = _Output(process.stderr)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    @property
    def stdin(self) -> _Input:
        return self._stdin

    @property
    def stdout(self) -> _Output:
        return self._stdout

    @property
    def stderr(self) -> _Output:
        return self._stderr

    async def wait(self) -> int:
        while (code := self.returncode) is None:  # noqa: ASYNC110
            await anyio.sleep(POLL_SECONDS)
        return code

    def send_signal(self, signal: Signals) -> None:
        self._process.send_signal(signal)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    async def aclose(self) -> None:
        """Close the pipes, and kill a child that still runs."""
        for pipe in (self._stdin, self._stdout, self._stderr):
            pipe.close()
        if self.returncode is None:
            self.kill()
            with anyio.CancelScope(shield=True):
                await self.wait()

    def leave(self) -> None:
        """Close the pipes and let the process run on; another process will end it."""
        for pipe in (self._stdin, self._stdout, self._stderr):
            pipe.close()
        # Until its parent has waited for it, an ended child stays in the process table.
        threading.Thread(target=self._process.wait, daemon=True).start()


class _Pipe:
    def __init__(self, file: IO[bytes]) -> None:
        os.set_blocking(file.fileno(), False)
        self._file = file

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        if not self._file.closed:
            anyio.notify_closing(self._file)
            with suppress(OSError):
                self._file.close()

    async def aclose(self) -> None:
        self.close()

    def _opened(self) -> IO[bytes]:
        if self._file.closed:
            raise anyio.ClosedResourceError
        return self._file


class _Output(_Pipe, anyio.abc.ByteReceiveStream):
    async def receive(self, max_bytes: int = CHUNK) -> bytes:
        while True:
            # Wait even if data is available, so that a child that writes endlessly does not starve other tasks.
            await anyio.wait_readable(self._opened())
            try:
                content = os.read(self._opened().fileno(), max_bytes)
            except BlockingIOError:
                continue
            except OSError as error:
                raise anyio.BrokenResourceError from error
            if not content:
                raise anyio.EndOfStream
            return content


class _Input(_Pipe, anyio.abc.ByteSendStream):
    _written = 0

    @property
    def is_read(self) -> bool:
        """Return False if the child has not read a byte of what was sent; True also if that is unknown."""
        unread = array("i", [0])
        try:
            fcntl.ioctl(self._opened().fileno(), termios.FIONREAD, unread)
        except (OSError, anyio.ClosedResourceError):
            return True
        return unread[0] < self._written

    async def send(self, item: bytes) -> None:
        rest = memoryview(item)
        while rest:
            try:
                count = os.write(self._opened().fileno(), rest)
                self._written += count
                rest = rest[count:]
            except BlockingIOError:
                await anyio.wait_writable(self._opened())
            except OSError as error:
                raise anyio.BrokenResourceError from error
