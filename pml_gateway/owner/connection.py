"""Connections of clients and commands to a serving process, read and written as lines."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.abc

from pml_gateway.log import ThrottledWarning, get_logger
from pml_gateway.owner.answering import MALFORMED, AskedOperation, answer_of
from pml_gateway.owner.operations import OPERATIONS, OfGateway
from pml_gateway.owner.process import ServingProcess
from pml_gateway.processes.framing import Lines, OversizedLine
from pml_gateway.serve.unix_sockets import stranger
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

MAX_FIRST_LINE = 16 * 1024 * 1024
"""Maximum bytes of the first line of a connection: several times the largest environment that a process can have."""

CHUNK = 65_536

LAST_SECONDS = 2.0
"""Seconds that a client gets to read the last lines before the connection is closed."""

EXHAUSTED_SECONDS = 0.1
"""Seconds between retries of `accept` while the system has no more file descriptors."""

FIRST_LINE_SECONDS = 10.0
"""Seconds that a new connection gets to send its first line."""

OPERATION = b'{"operation"'
"""The beginning of a first line that asks for an operation instead of a session."""

BROKEN = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)


class LineStream:
    """A connection as a stream of lines, created by `open_lines`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, descriptor: int) -> None:
        self._reader = reader
        self._writer = writer
        self._descriptor = descriptor
        self._lines = Lines(MAX_FIRST_LINE)

    def allow_messages(self, max_bytes: int) -> None:
        """Raise the size limit from that of the first line to that of messages."""
        self._lines.max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes | OversizedLine]:
        with suppress(OSError):
            while chunk := await self._reader.read(CHUNK):
                for line in self._lines.feed(chunk):
                    yield line

    @property
    def unread(self) -> int:
        """Return the number of bytes that the other side has not read yet."""
        return self._writer.transport.get_write_buffer_size()

    async def taken(self) -> None:
        """Wait until the other side has read nearly everything, or left."""
        with suppress(OSError):
            await self._writer.drain()

    def write(self, *pieces: bytes) -> None:
        """Write one line, given in pieces and without its end.

        Bytes that the other side does not read yet are buffered; this never waits.

        Raises:
            OSError: the other side has left.
        """
        if self._writer.is_closing():
            raise BrokenPipeError(errno.EPIPE, "the connection is closed")
        last = len(pieces) - 1
        for number, piece in enumerate(pieces):
            part = piece + b"\n" if number == last else piece
            # Write at once instead of through the event loop: the other side must know this before the next step.
            written = 0 if self.unread else self._written(part)
            if written < len(part):
                self._writer.write(part[written:])

    def _written(self, line: bytes) -> int:
        with suppress(BlockingIOError):
            return os.write(self._descriptor, line)
        return 0

    def tell(self, notice: JsonObject) -> None:
        """Write a notice for the bridge itself; ignore a bridge that has left."""
        with suppress(OSError):
            self.write(b"!" + json.dumps(notice).encode())


@asynccontextmanager
async def open_lines(connection: socket.socket) -> AsyncIterator[LineStream]:
    """Yield the lines of a connection, and close the connection at the end."""
    connection.setblocking(False)
    unix = connection.family == getattr(socket, "AF_UNIX", None)
    reader, writer = await (asyncio.open_unix_connection if unix else asyncio.open_connection)(sock=connection)
    try:
        yield LineStream(reader, writer, connection.fileno())
    finally:
        # Flush the last lines, with a time limit in case the other side does not read.
        with anyio.move_on_after(LAST_SECONDS, shield=True), suppress(OSError):
            writer.close()
            await writer.wait_closed()
        writer.transport.abort()


async def write_answer(
    lines: LineStream, work: Callable[[], Awaitable[JsonObject]], rest: AsyncIterator[bytes | OversizedLine]
) -> None:
    """Write the answer of an operation as one line; give the operation up once the asker leaves."""
    async with anyio.create_task_group() as tasks:

        async def end_when_left() -> None:
            async for _ in rest:
                pass
            tasks.cancel_scope.cancel()

        tasks.start_soon(end_when_left)
        answer = await work()
        with suppress(*BROKEN):
            lines.write(json.dumps(answer).encode())
            await lines.taken()
        tasks.cancel_scope.cancel()


Attach = Callable[[bytes, LineStream, AsyncIterator[bytes | OversizedLine]], Awaitable[None]]
"""Serves a connection that asks for the gateway of a folder: its first line, the connection, and the rest of it."""


async def serve_connection(process: ServingProcess, attach: Attach, connection: socket.socket) -> None:
    """Perform an operation of the process, or attach a client or an operation of a gateway, until the asker leaves."""
    async with open_lines(connection) as lines:
        rest = aiter(lines)
        first: bytes | OversizedLine = b""
        with anyio.move_on_after(FIRST_LINE_SECONDS), suppress(StopAsyncIteration):
            first = await anext(rest)
        if not first:
            return
        with suppress(*BROKEN):
            if isinstance(first, OversizedLine):
                # The line was read to its end, as a bridge that still writes would not read the reason.
                message = f"a first line of {first.size} bytes: at most {MAX_FIRST_LINE} are read"
                lines.tell({"refused": {"message": message, "hint": "set fewer variables", "exit": 1}})
            elif not first.startswith(OPERATION):
                await attach(first, lines, rest)
            elif (asked := AskedOperation.read(first)) is None:
                lines.write(json.dumps(MALFORMED).encode())
            elif isinstance(OPERATIONS.get(asked.name), OfGateway):
                await attach(first, lines, rest)
            else:
                lines.write(json.dumps(await answer_of(asked, process)).encode())
                await lines.taken()


async def accept(
    listener: socket.socket, serve: Callable[[socket.socket], Awaitable[None]], tasks: anyio.abc.TaskGroup
) -> None:
    """Accept and serve connections until cancelled; a failure of one connection does not affect the others."""
    listener.setblocking(False)
    exhausted = ThrottledWarning(logger)
    while True:
        await anyio.wait_readable(listener)
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            continue
        except OSError as error:
            # Waiting connections are accepted once others have left.
            exhausted.warning("no further client can be served now: %s", error)
            await anyio.sleep(EXHAUSTED_SECONDS)
            continue
        tasks.start_soon(_serve, connection, serve)


async def _serve(connection: socket.socket, serve: Callable[[socket.socket], Awaitable[None]]) -> None:
    try:
        user = stranger(connection)
    except OSError:
        # The other end has left already.
        connection.close()
        return
    if user is not None:
        logger.warning("refused: the other end is a process of user %d", user)
        connection.close()
        return
    try:
        await serve(connection)
    # A failure of one connection must not end the others.
    except Exception:
        logger.exception("a connection could not be served")
