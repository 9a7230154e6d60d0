"""Running a command to its end: text in, text out, with limits of time and size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.abc

from pml_gateway.processes.child import start_child
from pml_gateway.processes.children import Children, terminate_tree

MAX_LAST_WORDS = 4_000
"""Maximum bytes of stderr that are kept: its end, where the reason usually is."""

LEAVE_SECONDS = 1.0
"""Seconds between SIGTERM and SIGKILL."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The result of a command: exit code, output, and the end of stderr."""

    exit_code: int
    output: str
    last_words: str


class OutputTooLongError(Exception):
    """A command printed more than the limit."""


async def run_command(
    command: Sequence[str],
    given: str,
    *,
    env: Mapping[str, str],
    folder: Path,
    max_bytes: int,
    children: Children,
) -> Finished:
    """Run a command with a text on its stdin; it and its descendants end with this call, even if cancelled.

    Raises:
        OSError: it cannot be started.
        OutputTooLongError: it printed more than `max_bytes`.
    """
    process = await start_child(command, env=env, folder=folder)
    children.began(process.pid)
    output, last_words = bytearray(), bytearray()
    try:
        async with anyio.create_task_group() as tasks:

            async def read() -> None:
                await _read(process, output, max_bytes)
                if len(output) > max_bytes:
                    tasks.cancel_scope.cancel()

            tasks.start_soon(_write, process, given.encode("utf-8", "replace"))
            tasks.start_soon(_read_end, process, last_words)
            tasks.start_soon(read)
            await process.wait()
            # A descendant may hold the pipes open; the output of the command itself has arrived.
            tasks.cancel_scope.deadline = anyio.current_time() + LEAVE_SECONDS
        if len(output) > max_bytes:
            raise OutputTooLongError
        assert process.returncode is not None
        return Finished(process.returncode, output.decode("utf-8", "replace"), last_words.decode("utf-8", "replace"))
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)
        children.ended(process.pid)


async def _write(process: anyio.abc.Process, given: bytes) -> None:
    assert process.stdin is not None
    # A command that does not read all of its input may still answer.
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        await process.stdin.send(given)
        await process.stdin.aclose()


async def _read(process: anyio.abc.Process, output: bytearray, max_bytes: int) -> None:
    """Read the output until it exceeds the limit."""
    assert process.stdout is not None
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        while len(output) <= max_bytes:
            output += await process.stdout.receive()


async def _read_end(process: anyio.abc.Process, last_words: bytearray) -> None:
    assert process.stderr is not None
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        while True:
            last_words += await process.stderr.receive()
            del last_words[:-MAX_LAST_WORDS]


async def _end(process: anyio.abc.Process) -> None:
    """End the command and its descendants; every wait is bounded."""
    await terminate_tree(process, LEAVE_SECONDS)
    with anyio.move_on_after(LEAVE_SECONDS):
        await process.wait()
        await process.aclose()
