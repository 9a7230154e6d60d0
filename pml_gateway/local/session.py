"""Serving one connection: the MCP session of an attached client, or a single operation of a command."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module

import anyio
import anyio.to_thread
from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import JSONRPCError, JSONRPCNotification, JSONRPCRequest

from pml_gateway.errors import GatewayError
from pml_gateway.gateway.request import CONNECTION, LocalConnection, SessionMemory
from pml_gateway.local.attachment import AskedOperation, Attachment
from pml_gateway.local.lines import FINISHING, MAX_LINE
from pml_gateway.log import get_logger
from pml_gateway.mcp.sdk import create_context_streams
from pml_gateway.processes.framing import Lines, OversizedLine
from pml_gateway.serve.clients import client_name
from pml_gateway.serve.messages.incoming import as_bytes, incoming
from pml_gateway.serve.messages.written import over_stdio, pieces_of_message
from pml_gateway.serve.runtime import Runtime
from pml_gateway.serve.stdio import UnansweredRequests, is_momentary
from pml_gateway.signal import CoalescedSignal, Signal
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

MAX_HELLO = 16 * 1024 * 1024
"""Maximum bytes of the first line of a connection: several times the largest environment that a process can have."""

CHUNK = 65_536

FINISHING_SECONDS = 60.0
"""Seconds that the last requests of a client may take after its end of input."""

LAST_SECONDS = 2.0
"""Seconds that a client gets to read the last lines before the connection is closed."""

MAX_HELD = 100
"""Maximum number of held requests; then nothing more is read until they are released."""

MAX_UNREAD_NOTICES = 4 * 1024 * 1024
"""Unread bytes from which on a client gets no more momentary notifications: more than any client that reads ever
leaves, except of large answers."""

MAX_UNREAD = MAX_LINE
"""Unread bytes after which a client is cut off: no single message is larger."""

BROKEN = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)


class LineStream:
    """A connection as a stream of lines, created by `open_lines`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, descriptor: int) -> None:
        self._reader = reader
        self._writer = writer
        self._descriptor = descriptor
        self._lines = Lines(MAX_HELLO)

    def allow_messages(self) -> None:
        """Raise the size limit from that of the first line to that of messages."""
        self._lines.max_bytes = MAX_LINE

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


def as_state(memory: SessionMemory) -> JsonObject:
    """Return the session state for the bridge to keep."""
    return {"focus": [*map(list, memory.focus)], "follows": memory.follows, "digests": dict(memory.digests)}


def restored(state: JsonObject | None) -> SessionMemory:
    """Return the session memory from the state that a bridge gives back, with defaults for missing parts."""
    given = state or {}
    try:
        focus = tuple((str(server), str(tool)) for server, tool in given.get("focus") or ())
        digests = {str(kind): str(digest) for kind, digest in (given.get("digests") or {}).items()}
    except (TypeError, ValueError, AttributeError):
        # The state is from a gateway with another format.
        return SessionMemory()
    return SessionMemory(focus, bool(given.get("follows")), digests)


class _Progress:
    """The `Delivery` of one request: reports its progress to the bridge, which answers if the gateway is lost."""

    def __init__(self, connection: LineStream, request_id: str | int) -> None:
        self._connection = connection
        self._request_id = request_id
        self._is_repeatable = True
        self._is_sent = False
        self._unanswered = 0
        """Number of rounds under way or failed; a request that is a plan of calls has several."""

    def sending(self, *, repeatable: bool) -> None:
        """Report, before a server gets the request, that it is being sent, unless the bridge knows that already."""
        self._unanswered += 1
        if self._is_sent and (repeatable or not self._is_repeatable):
            return
        self._is_sent = True
        self._is_repeatable = self._is_repeatable and repeatable
        self._connection.tell({"sent": self._request_id, "repeatable": self._is_repeatable})

    def answered(self) -> None:
        """Count a round as answered; more may follow."""
        self._unanswered -= 1

    def finished(self) -> None:
        """Report a request that must not be repeated as done, unless a failed round leaves that unknown."""
        if not self._is_repeatable and not self._unanswered:
            self._connection.tell({"done": self._request_id})


@dataclass(slots=True)
class Member:
    """An attached client while it is served."""

    attachment: Attachment
    lines: LineStream
    name: str = ""
    calls: int = 0
    since: float = field(default_factory=time.monotonic)
    memory: SessionMemory = field(default_factory=SessionMemory)
    unanswered: UnansweredRequests = field(default_factory=UnansweredRequests)
    leaving: anyio.Event = field(default_factory=anyio.Event)
    is_held: bool = False
    _released: Signal = field(default_factory=Signal)

    @property
    def shown(self) -> str:
        """Return its name and process id for display."""
        return f"{self.name or 'not known yet'} ({self.attachment.pid})"

    def hold(self) -> None:
        """Hold its requests until it is released; if it is sent away instead, its bridge repeats them elsewhere."""
        self.is_held = True

    def release(self) -> None:
        """Accept its requests again, including the held ones."""
        self.is_held = False
        self._released.set()

    async def until_released(self) -> None:
        """Wait until it is not held."""
        await self._released.until(lambda: not self.is_held)

    async def send_away(self, reason: str, seconds: float) -> bool:
        """Make the bridge hold new requests, answer those in flight, and end the session; return True if that succeeds.

        Args:
            reason: `down`, `restart`, `replaced` or `idle`.
            seconds: time limit for requests in flight.
        """
        self.lines.tell({"leaving": reason})
        has_all = await self.settled(seconds)
        self.leaving.set()
        return has_all

    async def settled(self, seconds: float) -> bool:
        """Wait until every answer is written and read; return False if that takes longer than `seconds`."""
        with anyio.move_on_after(seconds) as patience:
            await self.unanswered.answered(seconds)
            await self.lines.taken()
        return not (self.unanswered or patience.cancelled_caught)

    def note(self, item: SessionMessage) -> None:
        """Record the client's name and count its calls."""
        match item.message:
            case JSONRPCRequest(method="tools/call", params=params):
                self.calls += 1
                self.name = self.name or client_name(params)
            case JSONRPCRequest(params=params) if not self.name:
                self.name = client_name(params)


async def serve_session(runtime: Runtime, member: Member, lines: AsyncIterator[bytes | OversizedLine]) -> None:
    """Serve a client until its bridge leaves or it is sent away."""
    over_stdio.set(True)
    changed = CoalescedSignal(0.05)
    member.memory.keep = changed.ask
    connection = LocalConnection(
        member.attachment.client, lambda request_id: _Progress(member.lines, request_id), member.memory
    )
    CONNECTION.set(connection)
    arriving, read = create_context_streams[SessionMessage | Exception](0)
    write, outgoing = create_context_streams[SessionMessage](0)
    # If the bridge was killed, no client waits for the answers.
    patience = 0.0
    held: dict[str | int, SessionMessage] = {}

    async def messages() -> AsyncIterator[bytes | OversizedLine]:
        nonlocal patience
        async for line in lines:
            if line == FINISHING:
                await pass_held()
                patience = FINISHING_SECONDS
                return
            yield line

    async def receive() -> None:
        async with arriving:
            with suppress(*BROKEN):
                async for message in incoming(messages(), member.unanswered.requests, refuse):
                    item = SessionMessage(message)
                    match message:
                        case JSONRPCRequest(id=request_id) if member.is_held:
                            held[request_id] = item
                            if len(held) == 1:
                                tasks.start_soon(pass_held)
                            elif len(held) >= MAX_HELD:
                                await member.until_released()
                        case JSONRPCNotification(
                            method="notifications/cancelled", params={"requestId": str() | int() as request_id}
                        ) if request_id in held:
                            del held[request_id]
                        case _:
                            await take(item)

    async def refuse(answer: JSONRPCError) -> None:
        member.lines.write(as_bytes(answer))

    async def take(item: SessionMessage) -> None:
        member.note(item)
        await arriving.send(item)

    async def pass_held() -> None:
        await member.until_released()
        with suppress(*BROKEN):
            while held:
                await take(held.pop(next(iter(held))))

    async def send() -> None:
        async with outgoing:
            with suppress(*BROKEN):
                async for item in outgoing:
                    if member.lines.unread > MAX_UNREAD:
                        logger.warning(
                            "%s (process %d) leaves %d bytes unread: it is cut off",
                            member.name or "a client",
                            member.attachment.pid,
                            member.lines.unread,
                        )
                        member.leaving.set()
                        return
                    if member.lines.unread > MAX_UNREAD_NOTICES and is_momentary(item):
                        continue
                    member.lines.write(*pieces_of_message(item.message))

    known: JsonObject | None = None

    async def keep() -> None:
        nonlocal known
        if (state := as_state(member.memory)) != known:
            known = state
            member.lines.tell({"state": state})

    async with anyio.create_task_group() as tasks:

        async def end_when_sent_away() -> None:
            await member.leaving.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(receive)
        tasks.start_soon(send)
        tasks.start_soon(changed.run, keep)
        tasks.start_soon(end_when_sent_away)
        options = runtime.server.create_initialization_options()
        read_all = member.unanswered.read(read, lambda: patience)
        await runtime.server.run(read_all, member.unanswered.write(write), options)
        await member.settled(patience)
        tasks.cancel_scope.cancel()


async def serve_operation(
    runtime: Runtime,
    member: Member,
    operation: AskedOperation,
    lines: AsyncIterator[bytes | OversizedLine],
    warnings: Sequence[str],
) -> None:
    """Perform an operation and write its answer as one line, unless the command leaves or is sent away first."""
    async with anyio.create_task_group() as tasks:

        async def end_when_left() -> None:
            async for _ in lines:
                pass
            tasks.cancel_scope.cancel()

        async def end_when_sent_away() -> None:
            await member.leaving.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(end_when_left)
        tasks.start_soon(end_when_sent_away)
        with member.unanswered.noted(operation.name):
            await member.until_released()
            # Importing the reports takes as long as starting a gateway, and most gateways never need them.
            await anyio.to_thread.run_sync(import_module, "pml_gateway.owner.operations")
            answer = await _answer(operation, runtime, member, warnings)
            try:
                member.lines.write(json.dumps(answer).encode())
                await member.lines.taken()
            except BROKEN:
                logger.debug("%s left before its answer", member.shown)
        tasks.cancel_scope.cancel()


async def _answer(operation: AskedOperation, runtime: Runtime, member: Member, warnings: Sequence[str]) -> JsonObject:
    from pml_gateway.owner.context import OperationContext
    from pml_gateway.owner.operations import OPERATIONS, perform

    attachment = member.attachment
    context = OperationContext(runtime.gateway, attachment.paths, attachment.identity, member.lines.tell)
    if operation.name not in OPERATIONS:
        unknown = GatewayError(f"unknown operation {operation.name!r}", hint="pml restart, if pml was changed since")
        return {"error": unknown.as_json(), "exit": unknown.exit_code}
    try:
        return await perform(operation.name, operation.arguments, context, warnings)
    # A bug in one operation must not end the gateway.
    except Exception as raised:
        logger.exception("%s failed", operation.name)
        error = GatewayError(f"{operation.name} failed ({type(raised).__name__})", hint="the gateway's log says more")
        return {"error": error.as_json(), "exit": error.exit_code}
