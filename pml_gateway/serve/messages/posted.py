"""Messages that clients POST: refused as on every other transport, with ids that the SDK can tell apart."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class PostedMessages:
    """The application that the SDK serves, behind a look at each message."""

    app: ASGIApp
    open_requests: Counter[tuple[bytes, str | int]] = field(default_factory=Counter)
    """By session and id: what still holds a request, of its HTTP exchange and the work on it."""

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
        elif (key := (session, message.id)) in self.open_requests:
            error_data = ErrorData.model_validate(in_use(message.id))
            answer = JSONRPCError(jsonrpc="2.0", id=message.id, error=error_data)
            await _refusal(answer, is_modern)(scope, receive, send)
        else:
            request_scope: RequestScope = scope[SCOPE_KEY]
            request_scope.open_request = self._held(key)
            with self._held(key):
                await self.app(scope, again(_kept_apart(message, body), receive), send)

    @contextmanager
    def _held(self, key: tuple[bytes, str | int]) -> Iterator[None]:
        """Count one more that holds a request; both outlive each other, as a client may leave and come back."""
        self.open_requests[key] += 1
        try:
            yield
        finally:
            self.open_requests[key] -= 1
            if not self.open_requests[key]:
                del self.open_requests[key]


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
