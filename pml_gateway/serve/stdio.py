"""The gateway over its own stdin and stdout, until the client leaves or a signal asks it to."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import cast

import anyio
import anyio.to_thread
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from pml_gateway.mcp.sdk import ContextReceiveStream, ContextSendStream, TappedReceive, create_context_streams
from pml_gateway.processes.framing import Lines, OversizedLine
from pml_gateway.serve.messages.incoming import OpenRequests, incoming
from pml_gateway.serve.messages.written import WrittenSent
from pml_gateway.serve.methods import LISTEN
from pml_gateway.serve.runtime import OpenRuntime
from pml_gateway.serve.signals import first_signal

DRAIN_SECONDS = 5.0
"""Seconds that calls in flight may continue after a signal or the end of input; children then get their own
grace."""

CHUNK = 65_536

MAX_LINE = 256 * 1024 * 1024
"""Longer lines are not messages, as for clients that share a gateway."""

MOMENTARY = frozenset({"notifications/progress", "notifications/message"})
"""Notices that count for the moment only."""

MAX_WAITING = 1000
"""Messages that wait for a client, from which on it is told nothing momentary: more than servers write in one go."""


def is_momentary(item: SessionMessage) -> bool:
    """Return True if a message can be dropped for a client that does not read."""
    return isinstance(item.message, JSONRPCNotification) and item.message.method in MOMENTARY


class Outgoing(WrittenSent):
    """Stream to a client that drops transient messages while its backlog is long."""

    __slots__ = ("waiting",)

    def __init__(self, stream: ContextSendStream[SessionMessage], note: Callable[[SessionMessage], None]) -> None:
        super().__init__(stream, note)
        self.waiting = 0

    async def send(self, item: SessionMessage) -> None:
        """Send one message."""
        if self.waiting >= MAX_WAITING and is_momentary(item):
            return
        self.waiting += 1
        try:
            await super().send(item)
        finally:
            self.waiting -= 1


class UnansweredRequests:
    """The requests of one client over a pair of streams that have no answer yet.

    A request that has been worked on is not yet answered: over stdio, its answer is still to be written.
    """

    def __init__(self) -> None:
        self.requests = OpenRequests()
        self._ids: set[str | int] = set()
        self._changed = anyio.Event()

    def __bool__(self) -> bool:
        return bool(self._ids)

    async def answered(self, timeout: float) -> None:
        """Wait until every request has its answer, at most `timeout` seconds."""
        with anyio.move_on_after(timeout):
            while self._ids:
                await self._changed.wait()

    @contextmanager
    def noted(self, name: str) -> Iterator[None]:
        """Count what is no message as a request for the length of this context."""
        self._ids.add(name)
        try:
            yield
        finally:
            self._forget(name)

    def read(
        self, stream: ContextReceiveStream[SessionMessage | Exception], patience: Callable[[], float]
    ) -> TappedReceive:
        """Yield the client's messages; the stream ends once all is answered, or `patience` seconds after the input."""
        return TappedReceive(stream, self._note_request, lambda: self.answered(patience()))

    def write(self, stream: ContextSendStream[SessionMessage]) -> Outgoing:
        """Return the stream of what it is sent."""
        return Outgoing(stream, self._note_answer)

    def _note_request(self, item: SessionMessage | Exception) -> None:
        match item.message if isinstance(item, SessionMessage) else None:
            case JSONRPCRequest(method=method, id=request_id) if method != LISTEN:
                self._ids.add(request_id)
            case JSONRPCNotification(
                method="notifications/cancelled", params={"requestId": str() | int() as request_id}
            ):
                # What is cancelled may never be answered.
                self._forget(request_id)

    def _note_answer(self, item: SessionMessage) -> None:
        self.requests.answered(item.message)
        if isinstance(item.message, JSONRPCResponse | JSONRPCError) and item.message.id is not None:
            self._forget(item.message.id)

    def _forget(self, request_id: str | int) -> None:
        self._ids.discard(request_id)
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


class _NoLines:
    """The end of a file, for the SDK, which would drop a line that it cannot read."""

    def __aiter__(self) -> _NoLines:
        return self

    async def __anext__(self) -> str:
        raise StopAsyncIteration


@contextmanager
def _stdin() -> Iterator[int]:
    """Yield a descriptor of the client's lines; children and handlers find nothing on stdin meanwhile."""
    own = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        yield own
    finally:
        os.dup2(own, 0)
        os.close(own)


async def _lines(descriptor: int) -> AsyncIterator[bytes | OversizedLine]:
    lines = Lines(MAX_LINE)
    while chunk := await anyio.to_thread.run_sync(os.read, descriptor, CHUNK, abandon_on_cancel=True):
        for line in lines.feed(chunk):
            yield line
    for line in lines.feed(b"\n"):
        yield line


async def serve_stdio(open_runtime: OpenRuntime) -> None:
    """Serve one client. A signal lets calls in flight finish, closes the upstreams and ends the process."""
    with _stdin() as stdin:
        await _serve(open_runtime, stdin)


async def _serve(open_runtime: OpenRuntime, stdin: int) -> None:
    async with stdio_server(cast(anyio.AsyncFile[str], _NoLines())) as (_, write), first_signal() as signalled:
        unanswered = UnansweredRequests()
        arriving, read = create_context_streams[SessionMessage | Exception](0)

        async def refuse(answer: JSONRPCError) -> None:
            await write.send(SessionMessage(answer))

        async def receive() -> None:
            async with arriving:
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    async for message in incoming(_lines(stdin), unanswered.requests, refuse):
                        await arriving.send(SessionMessage(message))

        async with open_runtime() as runtime, anyio.create_task_group() as tasks:

            async def shut_down() -> None:
                await signalled.wait()
                runtime.gateway.tell_in_flight(DRAIN_SECONDS)
                await unanswered.answered(DRAIN_SECONDS)
                tasks.cancel_scope.cancel()

            tasks.start_soon(receive)
            tasks.start_soon(shut_down)
            options = runtime.server.create_initialization_options()
            await runtime.server.run(unanswered.read(read, lambda: DRAIN_SECONDS), unanswered.write(write), options)
            tasks.cancel_scope.cancel()
        if signalled.is_set():
            # A thread still waits for the client's next line and cannot be interrupted; everything else has ended.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
