"""Counts requests, so that an orderly end can wait until each has its answer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import anyio
from mcp.server.context import CallNext, HandlerResult, ServerMiddleware, ServerRequestContext
from mcp.shared._context_streams import ContextReceiveStream, ContextSendStream  # what the SDK's transports hand out
from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

ENDLESS = frozenset({"subscriptions/listen"})
"""Requests that stay open for as long as the client wants; nothing waits for them."""


def count_requests(in_flight: Callable[[], AbstractContextManager[None]]) -> ServerMiddleware[Any]:
    """A middleware that keeps `in_flight` entered while a request is worked on, all steps of a workflow included."""

    async def counting(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        if ctx.method in ENDLESS:
            return await call_next(ctx)
        with in_flight():
            return await call_next(ctx)

    return counting


class Unanswered:
    """The requests of one client over a pair of streams that have no answer yet.

    A request that has been worked on is not yet answered: over stdio, its answer is still to be written.
    """

    def __init__(self) -> None:
        self._ids: set[str | int] = set()
        self._changed = anyio.Event()

    async def answered(self, timeout: float) -> None:
        """Wait until every request has its answer, at most `timeout` seconds."""
        with anyio.move_on_after(timeout):
            while self._ids:
                await self._changed.wait()

    def read(self, stream: ContextReceiveStream[SessionMessage | Exception]) -> _Reading:
        """The stream of what the client sends."""
        return _Reading(stream, self._note_request)

    def write(self, stream: ContextSendStream[SessionMessage]) -> _Writing:
        """The stream of what it is sent."""
        return _Writing(stream, self._note_answer)

    def _note_request(self, item: SessionMessage | Exception) -> None:
        match item.message if isinstance(item, SessionMessage) else None:
            case JSONRPCRequest(method=method, id=request_id) if method not in ENDLESS:
                self._ids.add(request_id)
            case JSONRPCNotification(
                method="notifications/cancelled", params={"requestId": str() | int() as request_id}
            ):
                # What is cancelled may never be answered.
                self._forget(request_id)

    def _note_answer(self, item: SessionMessage) -> None:
        if isinstance(item.message, JSONRPCResponse | JSONRPCError) and item.message.id is not None:
            self._forget(item.message.id)

    def _forget(self, request_id: str | int) -> None:
        self._ids.discard(request_id)
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


class _Reading(ContextReceiveStream[SessionMessage | Exception]):
    """A stream that tells what was received."""

    __slots__ = ("_note",)

    def __init__(
        self,
        stream: ContextReceiveStream[SessionMessage | Exception],
        note: Callable[[SessionMessage | Exception], None],
    ) -> None:
        super().__init__(stream._inner)  # the same stream, seen through another wrapper
        self._note = note

    def __aiter__(self) -> _Reading:
        return self

    async def __aenter__(self) -> _Reading:
        return self

    async def receive(self) -> SessionMessage | Exception:
        item = await super().receive()
        self._note(item)
        return item


class _Writing(ContextSendStream[SessionMessage]):
    """A stream that tells what was taken for sending."""

    __slots__ = ("_note",)

    def __init__(self, stream: ContextSendStream[SessionMessage], note: Callable[[SessionMessage], None]) -> None:
        super().__init__(stream._inner)
        self._note = note

    async def __aenter__(self) -> _Writing:
        return self

    async def send(self, item: SessionMessage) -> None:
        await super().send(item)
        self._note(item)
