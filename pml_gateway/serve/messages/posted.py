"""Messages that clients POST: refused as on every other transport, with ids that the SDK can tell apart."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest
from mcp_types.jsonrpc import ErrorData
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pml_gateway.gateway.request import SCOPE_KEY, RequestScope
from pml_gateway.serve.messages.incoming import RefusedMessageError, as_bytes, read_incoming
from pml_gateway.serve.messages.request_ids import distinct, in_use

SESSION_HEADER = b"mcp-session-id"
VERSION_HEADER = b"mcp-protocol-version"

_NUMBER_ID = re.compile(rb'"id"\s*:\s*-?[0-9]+[.eE]')
"""An id like 1.0, which the SDK takes for none."""


ANSWERED_SECONDS = 5.0
"""Seconds to wait for an answered exchange to end: its client may read slowly, or not at all."""


@dataclass(slots=True)
class _OpenRequest:
    """A request, held by its HTTP exchange and the work on it: each may outlast the other, as clients may leave."""

    holders: int = 0
    has_answer: bool = False
    ended: anyio.Event = field(default_factory=anyio.Event)

    async def ends(self) -> bool:
        """Return False if it has no answer; else wait for its end, as its client may have the answer already."""
        if self.has_answer:
            with anyio.move_on_after(ANSWERED_SECONDS):
                await self.ended.wait()
        return self.ended.is_set()


@dataclass(frozen=True, slots=True)
class PostedMessages:
    """The application that the SDK serves, behind a look at each message."""

    app: ASGIApp
    open_requests: dict[tuple[bytes, str | int], _OpenRequest] = field(default_factory=dict)
    """By session and id."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request whose body is at most as large as it may be."""
        if scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        headers = dict(reversed(scope["headers"]))
        version = headers.get(VERSION_HEADER)
        is_modern = version is not None and version.decode("latin-1") not in HANDSHAKE_PROTOCOL_VERSIONS
        body = await _body(receive)
        try:
            message = await read_incoming(body)
        except RefusedMessageError as error:
            await _refusal(error.answer, is_modern)(scope, receive, send)
            return
        if body.startswith(codecs.BOM_UTF8) or _NUMBER_ID.search(body):
            body = as_bytes(message)
        session = headers.get(SESSION_HEADER)
        if is_modern:
            # Each of its requests stands for itself.
            await self.app(scope, again(body, receive), send)
        elif session is None or not isinstance(message, JSONRPCRequest):
            await self.app(scope, again(_kept_apart(message, body), receive), send)
        elif not await self._is_free(key := (session, message.id)):
            error_data = ErrorData.model_validate(in_use(message.id))
            answer = JSONRPCError(jsonrpc="2.0", id=message.id, error=error_data)
            await _refusal(answer, is_modern)(scope, receive, send)
        else:
            request_scope: RequestScope = scope[SCOPE_KEY]
            request_scope.open_request = self._held(key, is_work=True)
            with self._held(key):
                await self.app(scope, again(_kept_apart(message, body), receive), send)

    async def _is_free(self, key: tuple[bytes, str | int]) -> bool:
        """Return True if no request with this id is open."""
        while (known := self.open_requests.get(key)) is not None:
            if not await known.ends():
                return False
        return True

    @contextmanager
    def _held(self, key: tuple[bytes, str | int], *, is_work: bool = False) -> Iterator[None]:
        """Hold a request in this context."""
        known = self.open_requests.setdefault(key, _OpenRequest())
        known.holders += 1
        try:
            yield
        finally:
            known.holders -= 1
            known.has_answer |= is_work
            if not known.holders:
                del self.open_requests[key]
                known.ended.set()


def _kept_apart(message: JSONRPCMessage, body: bytes) -> bytes:
    """Return the body with an id that the SDK takes for no other; the same bytes where it is such an id already."""
    match message:
        case JSONRPCRequest(id=given) if distinct(given) != given:
            message.id = distinct(given)
        case JSONRPCNotification(method="notifications/cancelled", params={"requestId": str(given)}) if (
            distinct(given) != given
        ):
            message.params = {**(message.params or {}), "requestId": distinct(given)}
        case _:
            return body
    return as_bytes(message)


async def _body(receive: Receive) -> bytes:
    """Return the whole body; whoever gave `receive` limits it, and raises where it breaks off."""
    parts, has_more = [], True
    while has_more:
        message = await receive()
        parts.append(message.get("body", b""))
        has_more = message.get("more_body", False)
    return b"".join(parts)


def again(body: bytes, receive: Receive, *, has_more: bool = False) -> Receive:
    """Receive a body that was read already, and then what follows it."""
    is_read = False

    async def received() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": has_more}

    return received


def _refusal(answer: JSONRPCError | None, is_modern: bool) -> Response:
    """Return the answer to a message that is not served; in the handshake era, one with an id is answered as any is."""
    if answer is None:
        return Response(status_code=400)
    status = 400 if is_modern or answer.id is None else 200
    return Response(as_bytes(answer), status, media_type="application/json")
