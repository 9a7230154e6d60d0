"""Tells the orphan reaper about child processes, so that they end even when the gateway is killed."""

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
from mcp.os.posix.utilities import terminate_posix_process_tree

from pml_gateway.log import get_logger

logger = get_logger(__name__)

COMMAND = [sys.executable, "-I", "-S", str(Path(__file__).with_name("orphan_reaper.py"))]
"""The orphan reaper; isolated and without site-packages, it starts in 12 ms and takes 9 MB."""

CLOSING_SECONDS = 2.0


class Children:
    """The children of one gateway. Made by `open_children`; without any child there is no second process either."""

    def __init__(self) -> None:
        self._reaper: subprocess.Popen[bytes] | None = None
        self._signs: dict[int, str] = {}
        self._turns = threading.Lock()

    def began(self, pid: int, *, may_install: bool = False) -> None:
        """The group that the child `pid` leads is not to outlive the gateway, until it has `ended`.

        One that may be installing something outlives it by the time it takes to take that back.
        """
        self._tell("~" if may_install else "+", pid)

    def answered(self, pid: int) -> None:
        """The child is installing nothing any more."""
        self._tell("+", pid)

    def ended(self, pid: int) -> None:
        """The child and its group are gone, or left to another process."""
        self._tell("-", pid)

    def leave(self, pid: int, pipes: Sequence[int]) -> None:
        """Have a child that may be installing something ended by a process of its own, which reads these pipes."""
        subprocess.run(
            [*COMMAND, "background", *map(str, pipes)],
            input=f"~{pid}\n".encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            pass_fds=pipes,
            start_new_session=True,
            timeout=CLOSING_SECONDS,
            check=False,
        )

    def close(self) -> None:
        """End the second process; it is waited for where it has nothing left to do."""
        with self._turns:
            reaper, self._reaper = self._reaper, None
        if reaper is not None:
            with suppress(OSError):
                _stdin(reaper).close()
            if not self._signs:
                with suppress(subprocess.TimeoutExpired):
                    reaper.wait(CLOSING_SECONDS)

    def _tell(self, sign: str, pid: int) -> None:
        if sign == "-":
            self._signs.pop(pid, None)
        else:
            self._signs[pid] = sign
        if os.name != "posix":
            # Where there are no process groups, children end with the console or job of the gateway.
            return
        with self._turns:
            if self._reaper is not None:
                with suppress(OSError):
                    _stdin(self._reaper).write(f"{sign}{pid}\n".encode())
                    return
            self._begin()

    def _begin(self) -> None:
        """Start a reaper and tell it of all groups: the first, or one in place of another that was killed."""
        if self._reaper is not None:
            _stdin(self._reaper).close()
        try:
            self._reaper = reaper = _start()
            _stdin(reaper).write("".join(f"{sign}{pid}\n" for pid, sign in self._signs.items()).encode())
        except OSError as error:
            logger.warning("children may outlive a gateway that is killed: %s", error)
            return
        threading.Thread(target=self._replace, args=(reaper,), name="orphan reaper", daemon=True).start()

    def _replace(self, reaper: subprocess.Popen[bytes]) -> None:
        """Wait for the end of a reaper, which nobody else hears of before there is something to tell it.

        One that was not killed cannot run here, and would end again and again.
        """
        was_killed = reaper.wait() == -signal.SIGKILL
        with self._turns:
            if was_killed and self._reaper is reaper and self._signs:
                logger.warning("what ends children of a gateway that is killed has ended: started again")
                self._begin()


@contextmanager
def open_children() -> Iterator[Children]:
    """The children of a gateway; they are to end before this context does."""
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
        # No signal meant for the gateway's terminal reaches it.
        start_new_session=True,
    )


def _stdin(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin


async def terminate_tree(process: anyio.abc.Process, seconds: float) -> None:
    """End a child that leads a group, and its descendants: asked to, and killed after so many seconds."""
    if sys.platform == "win32":
        with suppress(ProcessLookupError):
            process.kill()
    else:
        # Also after the child itself has ended: its own children are not to outlive it.
        await terminate_posix_process_tree(process, seconds)
