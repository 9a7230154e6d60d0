"""Registration of child processes with the orphan reaper, so that they end even if the gateway is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import anyio.abc

from pml_gateway.log import get_logger

logger = get_logger(__name__)

COMMAND = [sys.executable, "-I", "-S", str(Path(__file__).with_name("orphan_reaper.py"))]
"""The command of the orphan reaper; isolated and without site-packages, it starts in 12 ms and takes 9 MB."""

CLOSING_SECONDS = 2.0


class Children:
    """The children of one gateway. Created by `open_children`; the reaper is started with the first child."""

    def __init__(self) -> None:
        self.reaper: subprocess.Popen[bytes] | None = None
        """The process that ends the children of a gateway that is killed."""
        self._lines: dict[int, str] = {}
        self._turns = threading.Lock()

    def began(self, pid: int, install_until: float | None = None) -> None:
        """Register the process group of the child `pid`, to be ended with the gateway.

        A child that may be installing something has until then to finish that, and then the time for a rollback.
        """
        self._tell(f"+{pid}" if install_until is None else f"~{pid} {install_until}", pid)

    def answered(self, pid: int) -> None:
        """Record that the child is no longer installing anything."""
        self._tell(f"+{pid}", pid)

    def ended(self, pid: int) -> None:
        """Unregister a child whose group has ended, or is left to another process."""
        self._tell(f"-{pid}", pid)

    def leave(self, pid: int, pipes: Sequence[int], install_until: float) -> None:
        """Leave a child that may be installing something to a separate process, which reads these pipes and ends it."""
        subprocess.run(
            [*COMMAND, "background", *map(str, pipes)],
            input=f"~{pid} {install_until}\n".encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            pass_fds=pipes,
            start_new_session=True,
            timeout=CLOSING_SECONDS,
            check=False,
        )

    def close(self) -> None:
        """Close the reaper's stdin, which ends it; wait for it if it has no children left."""
        with self._turns:
            reaper, self.reaper = self.reaper, None
        if reaper is not None:
            with suppress(OSError):
                _stdin(reaper).close()
            if not self._lines:
                with suppress(subprocess.TimeoutExpired):
                    reaper.wait(CLOSING_SECONDS)

    def _tell(self, line: str, pid: int) -> None:
        if line.startswith("-"):
            self._lines.pop(pid, None)
        else:
            self._lines[pid] = line
        if os.name != "posix":
            # Without process groups, children end with the gateway's console or job.
            return
        with self._turns:
            if self.reaper is not None:
                with suppress(OSError):
                    _stdin(self.reaper).write(f"{line}\n".encode())
                    return
            self._begin()

    def _begin(self) -> None:
        """Start a reaper and tell it all groups: the first one, or a replacement for one that was killed."""
        if self.reaper is not None:
            _stdin(self.reaper).close()
        try:
            self.reaper = reaper = _start()
            _stdin(reaper).write("".join(f"{line}\n" for line in self._lines.values()).encode())
        except OSError as error:
            logger.warning("children may outlive a gateway that is killed: %s", error)
            return
        threading.Thread(target=self._replace, args=(reaper,), name="orphan reaper", daemon=True).start()

    def _replace(self, reaper: subprocess.Popen[bytes]) -> None:
        """Wait until a reaper ends, which could otherwise go unnoticed; replace it if it was killed.

        A reaper that ended otherwise cannot run here, and would end again and again.
        """
        was_killed = reaper.wait() == -signal.SIGKILL
        with self._turns:
            if was_killed and self.reaper is reaper and self._lines:
                logger.warning("what ends children of a gateway that is killed has ended: started again")
                self._begin()


@contextmanager
def open_children() -> Iterator[Children]:
    """Yield the children of a gateway; they must end before this context does."""
    children = Children()
    try:
        yield children
    finally:
        children.close()


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        COMMAND,
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={},
        # Signals meant for the gateway's terminal must not reach it.
        start_new_session=True,
    )


def _stdin(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin


async def terminate_tree(process: anyio.abc.Process, seconds: float) -> None:
    """End a child that leads a group, and its descendants: terminate, then kill after this many seconds."""
    if sys.platform == "win32":
        with suppress(ProcessLookupError):
            process.kill()
    else:
        # It takes the whole SDK with it, 40 MB that a process without servers of its own does without.
        from mcp.os.posix.utilities import terminate_posix_process_tree

        # Even if the child itself has ended: its own children must not outlive it.
        await terminate_posix_process_tree(process, seconds)
