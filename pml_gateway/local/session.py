"""Serving one connection: the MCP session of an attached client, or a single operation of a command."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import anyio
from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import JSONRPCError, JSONRPCNotification, JSONRPCRequest

from pml_gateway.config.findings import Finding
from pml_gateway.gateway.request import CONNECTION, LocalConnection, SessionMemory
from pml_gateway.local.attachment import Attachment
from pml_gateway.local.lines import FINISHING, MAX_LINE
from pml_gateway.log import get_logger
from pml_gateway.mcp.sdk import create_context_streams
from pml_gateway.owner.answering import AskedOperation, answer_of
from pml_gateway.owner.connection import BROKEN, LineStream, write_answer
from pml_gateway.owner.context import OperationContext
from pml_gateway.processes.framing import OversizedLine
from pml_gateway.serve.clients import client_name
from pml_gateway.serve.messages.incoming import as_bytes, incoming
from pml_gateway.serve.messages.written import pieces_of_message
from pml_gateway.serve.runtime import Runtime
from pml_gateway.serve.stdio import UnansweredRequests, is_momentary
from pml_gateway.signal import CoalescedSignal, Signal
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

FINISHING_SECONDS = 60.0
"""Seconds that the last requests of a client may take after its end of input."""

MAX_HELD = 100
"""Maximum number of held requests; then nothing more is read until they are released."""

MAX_UNREAD_NOTICES = 4 * 1024 * 1024
"""Unread bytes from which on a client gets no more momentary notifications: more than any client that reads ever
leaves, except of large answers."""

MAX_UNREAD = MAX_LINE
"""Unread bytes after which a client is cut off: no single message is larger."""


def as_state(memory: SessionMemory) -> JsonObject:
    """Return the session state for the bridge to keep."""
    return {
        "searches": [[text, at] for text, at in memory.searches.items()],
        "used": [[*source, at] for source, at in memory.used.items()],
        "digests": dict(memory.digests),
        "interfaces": sorted(memory.interfaces),
    }


def restored(state: JsonObject | None) -> SessionMemory:
    """Return the session memory from the state that a bridge gives back, with defaults for missing parts."""
    given = state or {}
    try:
        searches = {str(text): float(at) for text, at in given.get("searches") or ()}
        used = {(str(server), str(tool)): float(at) for server, tool, at in given.get("used") or ()}
        digests = {str(kind): str(digest) for kind, digest in (given.get("digests") or {}).items()}
        interfaces = {str(server) for server in given.get("interfaces") or ()}
    except (TypeError, ValueError, AttributeError):
        # The state is from a gateway with another format.
        return SessionMemory()
    return SessionMemory(searches, used, digests, interfaces)


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
    is_command: bool = False
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
    warnings: Sequence[Finding],
) -> None:
    """Perform an operation and write its answer as one line, unless the command leaves or is sent away first."""
    attachment = member.attachment
    context = OperationContext(runtime.gateway, attachment.paths, attachment.identity, member.lines.tell)

    async def work() -> JsonObject:
        await member.until_released()
        return await answer_of(operation, context, warnings)

    async with anyio.create_task_group() as tasks:

        async def end_when_sent_away() -> None:
            await member.leaving.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(end_when_sent_away)
        with member.unanswered.noted(operation.name):
            await write_answer(member.lines, work, lines)
        tasks.cancel_scope.cancel()
