"""Stdio servers as child processes, and their messages, within limits that the SDK lacks."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import StdioServerParameters
from mcp.shared.message import SessionMessage

from pml_gateway.log import get_logger
from pml_gateway.processes.child import POLL_SECONDS, Child, start_child
from pml_gateway.processes.child_log import ChildLog, open_child_log
from pml_gateway.processes.children import Children, terminate_tree
from pml_gateway.processes.framing import Lines, SkippedLine, read_line
from pml_gateway.processes.messages import SentMessages

logger = get_logger(__name__)

LEAVE_SECONDS = 0.6
"""Seconds for a child to end after its stdin is closed: one that notices needs at most half of that."""

TERMINATE_SECONDS = 0.4
"""Seconds between SIGTERM and SIGKILL: with everything else, a gateway should stop within two seconds."""

FLUSH_SECONDS = 0.5
"""Seconds to wait for messages on their way in, and for the last output on stderr."""

LOG_BYTES_A_SECOND = 8 * 1024 * 1024
"""Maximum bytes per second that a child may write to stderr: a faster one is slowed, not the gateway."""

MAX_NOTED = 20
"""Maximum non-message lines on stdout that are shown in the log per connection; the rest are counted."""

_BROKEN = (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)


@asynccontextmanager
async def open_child(
    upstream_id: str,
    parameters: StdioServerParameters,
    *,
    log_file: Path,
    max_bytes: int,
    children: Children,
    install_until: float | None = None,
    on_start: Callable[[int], None] = lambda _pid: None,
    on_unread: Callable[[], None] = lambda: None,
) -> AsyncIterator[
    tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
]:
    """Start the process and exchange messages with it; it and its descendants end with this context.

    A process that may be installing something is not killed before it has answered: it is left to another process,
    which gives it until `install_until` to finish, and then time for a rollback. `on_start` is called with its process
    id; `on_unread` is called if the process ends its output, or closes its input, without having read anything.

    Raises:
        OSError: the command cannot be started.
    """
    with open_child_log(log_file) as log:
        process = await start_child([parameters.command, *parameters.args], env=parameters.env, folder=parameters.cwd)
        # No await before the task group is entered: a cancellation in between would leave the process behind.
        incoming, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        sent, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        written, logged = anyio.Event(), anyio.Event()
        # Even while everything is cancelled: a server reports why it ends on its way out.
        listening = anyio.CancelScope(shield=True)
        answered = anyio.Event()

        def on_answer() -> None:
            answered.set()
            if install_until is not None:
                children.answered(process.pid)

        children.began(process.pid, install_until)
        on_start(process.pid)
        async with anyio.create_task_group() as tasks:
            known = SentMessages()
            tasks.start_soon(_read, upstream_id, process, incoming, log, max_bytes, known, on_answer, on_unread)
            tasks.start_soon(_write, process, outgoing, incoming, written, known, on_unread)
            tasks.start_soon(_keep_log, process, log, logged, listening)
            try:
                yield received, sent
            finally:
                # Every wait in here is bounded.
                with anyio.CancelScope(shield=True):
                    received.close()
                    sent.close()
                    await _within(FLUSH_SECONDS, written)
                    may_install = install_until is not None and not answered.is_set()
                    if not (may_install and await _left(process, children, install_until or 0.0)):
                        await _stop(upstream_id, process)
                        await _within(FLUSH_SECONDS, logged)
                        for pipe in (process.stdin, process.stdout, process.stderr):
                            assert pipe is not None
                            await pipe.aclose()
                    # Not reached if an event loop that is torn down interrupts the waits above.
                    children.ended(process.pid)
                    for stream in (received, sent, incoming, outgoing):
                        stream.close()
                listening.cancel()
                tasks.cancel_scope.cancel()


async def _read(
    upstream_id: str,
    process: anyio.abc.Process,
    incoming: MemoryObjectSendStream[SessionMessage | Exception],
    log: ChildLog,
    max_bytes: int,
    sent: SentMessages,
    on_answer: Callable[[], None],
    on_unread: Callable[[], None],
) -> None:
    """Pass on the messages on stdout until the child closes it; `on_answer` is called at the first one."""
    assert process.stdout is not None
    lines, skipped, is_first = Lines(max_bytes), 0, True
    async with incoming:
        with suppress(*_BROKEN):
            while True:
                for line in lines.feed(await process.stdout.receive()):
                    for found in await read_line(line, max_bytes, sent):
                        if isinstance(found, SkippedLine):
                            skipped += 1
                            _note(upstream_id, found, skipped, log)
                            continue
                        if is_first:
                            is_first = False
                            on_answer()
                        await incoming.send(SessionMessage(found))
                        # It would be kept until the next line arrives.
                        del found
                    del line
        if isinstance(process, Child) and not process.stdin.is_read:
            on_unread()
    # A child that still writes could not end with a full pipe.
    with suppress(*_BROKEN):
        while True:
            await process.stdout.receive()


def _note(upstream_id: str, line: SkippedLine, number: int, log: ChildLog) -> None:
    if number == 1:
        logger.warning("%s: writes what is no message to stdout; see: pml upstreams logs %s", upstream_id, upstream_id)
    if number <= MAX_NOTED:
        log.note(f"skipped on stdout, {line.reason}: {line.start.decode('utf-8', 'replace')!r}")
    if number == MAX_NOTED:
        log.note("further lines on stdout that are no messages are not shown")


async def _write(
    process: anyio.abc.Process,
    outgoing: MemoryObjectReceiveStream[SessionMessage],
    incoming: MemoryObjectSendStream[SessionMessage | Exception],
    written: anyio.Event,
    sent: SentMessages,
    on_unread: Callable[[], None],
) -> None:
    assert process.stdin is not None
    try:
        async with outgoing:
            async for message in outgoing:
                sent.note(message.message)
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.stdin.send(f"{text}\n".encode())
    except _BROKEN:
        if isinstance(process, Child) and not process.stdin.is_read:
            on_unread()
        # The child may live on; without closing this, requests would wait for it until their deadlines.
        await incoming.aclose()
    finally:
        written.set()


async def _keep_log(
    process: anyio.abc.Process, log: ChildLog, logged: anyio.Event, listening: anyio.CancelScope
) -> None:
    assert process.stderr is not None
    taken, second = 0, anyio.current_time()
    with listening, suppress(*_BROKEN):
        while True:
            content = await process.stderr.receive()
            log.write(content)
            taken += len(content)
            if taken >= LOG_BYTES_A_SECOND:
                await anyio.sleep(max(second + 1 - anyio.current_time(), 0))
                taken, second = 0, anyio.current_time()
    logged.set()


async def _left(process: anyio.abc.Process, children: Children, install_until: float) -> bool:
    """Leave a child that may be installing to a process that gives it more time; return True if that succeeded."""
    if not isinstance(process, Child) or process.returncode is not None:
        return False
    process.stdin.close()
    try:
        pipes = [process.stdout.fileno(), process.stderr.fileno()]
        await anyio.to_thread.run_sync(children.leave, process.pid, pipes, install_until)
    except (OSError, ValueError, subprocess.SubprocessError):
        return False
    process.leave()
    return True


async def _stop(upstream_id: str, process: anyio.abc.Process) -> None:
    """End the child as the protocol specifies: close stdin, wait, then signal it and its descendants."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(*_BROKEN):
        await process.stdin.aclose()
    await _exited(process, LEAVE_SECONDS)
    await terminate_tree(process, TERMINATE_SECONDS)
    if not await _exited(process, TERMINATE_SECONDS):
        logger.warning("%s: process %d survived its kill", upstream_id, process.pid)
    with suppress(*_BROKEN):
        await process.stdout.aclose()


async def _exited(process: anyio.abc.Process, seconds: float) -> bool:
    """Return True if the process ends in time."""
    with anyio.move_on_after(seconds):
        # Not its `wait`, which may also wait for processes that inherited its pipes.
        while process.returncode is None:  # noqa: ASYNC110
            await anyio.sleep(POLL_SECONDS)
    return process.returncode is not None


async def _within(seconds: float, event: anyio.Event) -> None:
    with anyio.move_on_after(seconds):
        await event.wait()
