"""The MCP session of one attached client, over the connection of its bridge; or one operation of a command."""

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
from pml_gateway.processes.framing import Lines, Oversized
from pml_gateway.serve.clients import client_name
from pml_gateway.serve.messages.incoming import as_bytes, incoming
from pml_gateway.serve.messages.written import over_stdio, pieces_of_message
from pml_gateway.serve.runtime import Runtime
from pml_gateway.serve.stdio import Unanswered, is_momentary
from pml_gateway.signal import Coalesced, Signal
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

MAX_HELLO = 16 * 1024 * 1024
"""Bytes of the first line of whoever connects: several times what a system gives a process as its variables."""

CHUNK = 65_536

FINISHING_SECONDS = 60.0
"""What the requests of a client that sends no more may still take."""

LAST_SECONDS = 2.0
"""What a client is given to take what it was written last."""

MAX_HELD = 100
"""Requests that are held, after which nothing more is read until they are released."""

MAX_UNREAD_NOTICES = 4 * 1024 * 1024
"""Bytes that wait for a client, from which on it is told nothing that counts for the moment only: more than a client
that reads ever leaves, but for large answers."""

MAX_UNREAD = MAX_LINE
"""Bytes that wait for a client, past which it is cut off: no single message is larger."""

BROKEN = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)


class LineStream:
    """Lines over a connection: read one after the other, each written whole. Made by `open_lines`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, descriptor: int) -> None:
        self._reader = reader
        self._writer = writer
        self._descriptor = descriptor
        self._lines = Lines(MAX_HELLO)

    def allow_messages(self) -> None:
        """Take lines of the size that messages of clients may have: who sends them is known."""
        self._lines.max_bytes = MAX_LINE

    async def __aiter__(self) -> AsyncIterator[bytes | Oversized]:
        with suppress(OSError):
            while chunk := await self._reader.read(CHUNK):
                for line in self._lines.feed(chunk):
                    yield line

    @property
    def unread(self) -> int:
        """Bytes that the other side has yet to take."""
        return self._writer.transport.get_write_buffer_size()

    async def taken(self) -> None:
        """Wait until the other side has taken nearly all, or left."""
        with suppress(OSError):
            await self._writer.drain()

    def write(self, *pieces: bytes) -> None:
        """Write one line, given in pieces and without its end.

        What the other side does not read is kept: nothing waits for it here.

        Raises:
            OSError: the other side has left.
        """
        if self._writer.is_closing():
            raise BrokenPipeError(errno.EPIPE, "the connection is closed")
        last = len(pieces) - 1
        for number, piece in enumerate(pieces):
            part = piece + b"\n" if number == last else piece
            # Now rather than when the event loop comes to it: what follows must not be done before this is known.
            written = 0 if self.unread else self._written(part)
            if written < len(part):
                self._writer.write(part[written:])

    def _written(self, line: bytes) -> int:
        with suppress(BlockingIOError):
            return os.write(self._descriptor, line)
        return 0

    def tell(self, notice: JsonObject) -> None:
        """Write a notice for the bridge itself; one that has left need not know."""
        with suppress(OSError):
            self.write(b"!" + json.dumps(notice).encode())


@asynccontextmanager
async def open_lines(connection: socket.socket) -> AsyncIterator[LineStream]:
    """The lines over a connection, which ends with this context."""
    connection.setblocking(False)
    unix = connection.family == getattr(socket, "AF_UNIX", None)
    reader, writer = await (asyncio.open_unix_connection if unix else asyncio.open_connection)(sock=connection)
    try:
        yield LineStream(reader, writer, connection.fileno())
    finally:
        # What was written last is on its way; whoever does not read it is not waited for.
        with anyio.move_on_after(LAST_SECONDS, shield=True), suppress(OSError):
            writer.close()
            await writer.wait_closed()
        writer.transport.abort()


def as_state(memory: SessionMemory) -> JsonObject:
    """What a bridge keeps of its session."""
    return {"focus": [*map(list, memory.focus)], "follows": memory.follows, "digests": dict(memory.digests)}


def restored(state: JsonObject | None) -> SessionMemory:
    """The memory of a session that a bridge gives back; what it does not hold begins anew."""
    given = state or {}
    try:
        focus = tuple((str(server), str(tool)) for server, tool in given.get("focus") or ())
        digests = {str(kind): str(digest) for kind, digest in (given.get("digests") or {}).items()}
    except (TypeError, ValueError, AttributeError):
        # Of a gateway that kept something else.
        return SessionMemory()
    return SessionMemory(focus, bool(given.get("follows")), digests)


class _Progress:
    """`Delivery` of one request: its bridge is told what it must know to answer in our place."""

    def __init__(self, connection: LineStream, request_id: str | int) -> None:
        self._connection = connection
        self._request_id = request_id
        self._is_repeatable = True
        self._is_sent = False
        self._unanswered = 0
        """Rounds that are under way or failed; there are several where the request is a plan of calls."""

    def sending(self, *, repeatable: bool) -> None:
        """Tell before the server is sent anything, unless that is known."""
        self._unanswered += 1
        if self._is_sent and (repeatable or not self._is_repeatable):
            return
        self._is_sent = True
        self._is_repeatable = self._is_repeatable and repeatable
        self._connection.tell({"sent": self._request_id, "repeatable": self._is_repeatable})

    def answered(self) -> None:
        """Take note of it: there may be another round."""
        self._unanswered -= 1

    def finished(self) -> None:
        """Tell what must not be done again. Where a round failed, it is not known whether all of it was done."""
        if not self._is_repeatable and not self._unanswered:
            self._connection.tell({"done": self._request_id})


@dataclass(slots=True)
class Member:
    """One attached client while it is served."""

    attachment: Attachment
    lines: LineStream
    name: str = ""
    calls: int = 0
    since: float = field(default_factory=time.monotonic)
    memory: SessionMemory = field(default_factory=SessionMemory)
    unanswered: Unanswered = field(default_factory=Unanswered)
    leaving: anyio.Event = field(default_factory=anyio.Event)
    is_held: bool = False
    _released: Signal = field(default_factory=Signal)

    @property
    def shown(self) -> str:
        """Its name and process, by which people tell it from others."""
        return f"{self.name or 'not known yet'} ({self.attachment.pid})"

    def hold(self) -> None:
        """Take no request of it until it is released; its bridge repeats those of a member that leaves instead."""
        self.is_held = True

    def release(self) -> None:
        """Take what it asks."""
        self.is_held = False
        self._released.set()

    async def until_released(self) -> None:
        """Wait while it is held."""
        await self._released.until(lambda: not self.is_held)

    async def send_away(self, reason: str, seconds: float) -> bool:
        """Have the bridge hold new requests, and end the session once it has the answers to those in flight; whether
        it has all.

        Args:
            reason: `down`, `restart`, `replaced` or `idle`.
            seconds: what requests in flight are given.
        """
        self.lines.tell({"leaving": reason})
        has_all = await self.settled(seconds)
        self.leaving.set()
        return has_all

    async def settled(self, seconds: float) -> bool:
        """Wait until every request is answered and the answers are taken, at most so long; whether it came to that."""
        with anyio.move_on_after(seconds) as patience:
            await self.unanswered.answered(seconds)
            await self.lines.taken()
        return not (self.unanswered or patience.cancelled_caught)

    def note(self, item: SessionMessage) -> None:
        """Take note of what the client says of itself, and of its calls."""
        match item.message:
            case JSONRPCRequest(method="tools/call", params=params):
                self.calls += 1
                self.name = self.name or client_name(params)
            case JSONRPCRequest(params=params) if not self.name:
                self.name = client_name(params)


async def serve_session(runtime: Runtime, member: Member, lines: AsyncIterator[bytes | Oversized]) -> None:
    """Serve the client until its bridge leaves or it is sent away."""
    over_stdio.set(True)
    changed = Coalesced(0.05)
    member.memory.keep = changed.ask
    connection = LocalConnection(
        member.attachment.client, lambda request_id: _Progress(member.lines, request_id), member.memory
    )
    CONNECTION.set(connection)
    arriving, read = create_context_streams[SessionMessage | Exception](0)
    write, outgoing = create_context_streams[SessionMessage](0)
    # Of a bridge that was killed, nobody waits for answers.
    patience = 0.0
    held: dict[str | int, SessionMessage] = {}

    async def messages() -> AsyncIterator[bytes | Oversized]:
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
    lines: AsyncIterator[bytes | Oversized],
    warnings: Sequence[str],
) -> None:
    """Answer with one line, unless the command leaves before or is sent away."""
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
            # The reports take as long to import as a gateway to start, and most never need them.
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
    # A fault of one operation must not end the gateway.
    except Exception as raised:
        logger.exception("%s failed", operation.name)
        error = GatewayError(f"{operation.name} failed ({type(raised).__name__})", hint="the gateway's log says more")
        return {"error": error.as_json(), "exit": error.exit_code}
