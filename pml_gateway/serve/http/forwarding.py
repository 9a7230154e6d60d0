"""Requests about something in the memory of another replica: forwarded to it, and its answer relayed.

A session, a call that waits for an answer and a console stay where they run. Their ids begin with the id of the
replica.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

import anyio
import httpx2
from mcp_types import INTERNAL_ERROR, JSONRPCRequest
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pml_gateway.config.settings import HttpSettings
from pml_gateway.errors import GatewayError, ReplicaUnavailableError, SharedStateError
from pml_gateway.log import ThrottledWarning, get_logger
from pml_gateway.serve.messages.incoming import RefusedMessageError, read_incoming
from pml_gateway.serve.messages.posted import SESSION_HEADER, VERSION_HEADER, again
from pml_gateway.storage.replicas import Replica, Replicas, without_replica
from pml_gateway.telemetry.trace import REQUEST_ID_HEADER

logger = get_logger(__name__)

FORWARDED_HEADER = b"pml-forwarded"
"""Signed, with the method and path: the receiving and the forwarding replica, the client's address, and the time."""

FORWARDED_SECONDS = 60.0
"""Age of a signature at most, with clocks that differ."""

MISDIRECTED = 421
MISDIRECTED_HEADER = b"pml-not-this-replica"
"""In a response with this status: the id of the receiving replica, at whose address another process listens now."""

CONNECT_SECONDS = 2.0

SILENT_SECONDS = 90.0
"""Time without a byte after which a replica is given up, also while Redis cannot say that it is gone. Whatever runs
long for a client pings it every 15 seconds, and a page of the owner waits 70 seconds at most, for the search model."""

MAX_IDLE_CONNECTIONS = 100
IDLE_SECONDS = 60.0
"""Less than the listener at the other end keeps a connection: one that it closes meanwhile would lose a request."""

_SOCKET_OPTIONS = [
    (level, getattr(socket, name), value)
    for level, name, value in (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 5),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 2),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 11_000),
    )
    if hasattr(socket, name)
]
"""A machine that has gone silent is noticed in 11 seconds, also while Redis cannot say so; not all systems have all."""

HOP_HEADERS = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect"}
)

_HOLDER = re.compile(r"([0-9a-f]{12})-")
"""Beginning of what is found at the replica with this id: a session, the pages of a console."""


@dataclass(slots=True)
class ForwardedRequest:
    """A request about something that another replica holds."""

    replica: Replica
    body: bytes
    is_modern: bool
    is_session: bool
    is_gone: bool = False
    """True once no process listens at the address of that replica; nothing is answered yet."""
    is_open: bool = False
    """True while the answer has begun, and not ended."""


class Forwarding:
    """Forwards requests to other replicas, and verifies those that they forward."""

    def __init__(self, replicas: Replicas, client: httpx2.AsyncClient, settings: HttpSettings) -> None:
        self._key = replicas.server.key_for("forwarded requests")
        self._replicas = replicas
        self._client = client
        self._max_body_bytes = settings.max_body_bytes
        self._line = ThrottledWarning(logger)

    # Received

    def verify(self, scope: Scope, headers: Mapping[bytes, bytes]) -> bool | Response:
        """Return True if another replica forwarded a request, and put the client's address into the scope.

        Return False for one of a client, without a valid signature; refuse one for another process, or a late one.
        """
        value = headers.get(FORWARDED_HEADER)
        if value is None:
            return False
        text, _, signature = value.partition(b".")
        if not hmac.compare_digest(signature, self._signature(text, scope["method"], _target(scope))):
            return False
        meant, sender, address, at = json.loads(base64.urlsafe_b64decode(text))
        if abs(time.time() - at) > FORWARDED_SECONDS:
            logger.warning("a request that replica %s forwarded is refused: the clocks differ", sender)
            return PlainTextResponse("the clocks of this replica and the one that forwarded this differ", 503)
        if meant != self._replicas.own.id:
            return PlainTextResponse("another replica is meant", MISDIRECTED, {MISDIRECTED_HEADER.decode(): meant})
        scope["client"] = (address, 0)
        return True

    def _signature(self, text: bytes, method: str, target: bytes) -> bytes:
        signed = b"\n".join((text, method.encode(), target))
        return base64.urlsafe_b64encode(hmac.digest(self._key, signed, "sha256"))

    # Sent

    async def find(
        self, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive
    ) -> tuple[ForwardedRequest | Response | None, Receive]:
        """Return a client's request about what another replica holds, and its body again; None for any other.

        If nobody knows whether that replica lives, return the answer that says so.
        """
        session_id = headers.get(SESSION_HEADER)
        is_modern = headers.get(VERSION_HEADER, b"").decode("latin-1") in MODERN_PROTOCOL_VERSIONS
        found = _HOLDER.match(session_id.decode("latin-1")) if session_id is not None else None
        holder, own = None if found is None else found[1], self._replicas.own.id
        if holder in (None, own) and not (session_id is None and is_modern and scope["method"] == "POST"):
            return None, receive
        body, receive = await _read(receive, self._max_body_bytes)
        if body is None:
            return None, receive
        holder = holder or await _replica_in(body)
        if holder in (None, own):
            return None, receive
        try:
            replica = await self._replicas.find(holder)
        except SharedStateError as error:
            return await unavailable(error, body, is_modern=is_modern), receive
        if replica is None or replica.url is None:
            return None, receive
        return ForwardedRequest(replica, body, is_modern, is_session=session_id is not None), receive

    async def forward(self, request: ForwardedRequest, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request and relay the answer; if the client disconnects, disconnect from the other replica."""
        await receive()  # the body, which was read before
        outcome: GatewayError | None = None
        answer = _Answer(request, send)
        async with anyio.create_task_group() as tasks:

            async def follow_client() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            async def follow_replica() -> None:
                nonlocal outcome
                await self._replicas.until_gone(request.replica.id)
                outcome = ReplicaUnavailableError("unknown")
                tasks.cancel_scope.cancel()

            tasks.start_soon(follow_client)
            tasks.start_soon(follow_replica)
            try:
                await self._exchange(request, scope, answer)
            except httpx2.ConnectTimeout:
                outcome = ReplicaUnavailableError("no")
            except httpx2.ConnectError:
                request.is_gone = request.is_session
                outcome = ReplicaUnavailableError("no")
            except httpx2.TransportError as error:
                logger.debug("replica %s: %s", request.replica.id, type(error).__name__)
                outcome = ReplicaUnavailableError("unknown")
            tasks.cancel_scope.cancel()
        if outcome is None:
            return
        replica = request.replica
        if request.is_gone:
            text = "replica %s is not at %s: it has ended, or its http.advertise is wrong"
            self._line.warning(text, replica.id, replica.url)
            return
        self._line.warning("replica %s at %s did not answer", replica.id, replica.url)
        if not request.is_open:
            response = await unavailable(outcome, request.body, is_modern=request.is_modern)
            await response(scope, receive, send)
        else:
            await answer.break_off(outcome)

    async def elsewhere(self, name: str) -> ASGIApp | None:
        """Return what forwards requests for the pages with this name to another replica; None if none has them."""
        found, own = _HOLDER.match(name), self._replicas.own.id
        if found is None or found[1] == own:
            return None
        with suppress(SharedStateError):
            if await self._replicas.find(found[1]) is None:
                return None
        return partial(self.forward_to, lambda: found[1])

    async def forward_to(self, find: Callable[[], str | None], scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request to the replica with the id that `find` returns, as an ASGI application."""
        body, receive = await _read(receive, self._max_body_bytes)
        if body is None:
            await PlainTextResponse("the body is too large", 413)(scope, receive, send)
            return
        try:
            replica = await self._replicas.find(find() or "")
        except SharedStateError:
            replica = None
        if replica is None or replica.url is None:
            message = "the process that answers this is being started; try again"
            await PlainTextResponse(message, 503, {"Retry-After": "1"})(scope, receive, send)
            return
        await self.forward(ForwardedRequest(replica, body, is_modern=True, is_session=False), scope, receive, send)

    async def _exchange(self, request: ForwardedRequest, scope: Scope, answer: _Answer) -> None:
        """Send a request to the other replica and relay its answer."""
        assert request.replica.url is not None
        target = _target(scope)
        own, client = self._replicas.own.id, scope["client"]
        claims = [request.replica.id, own, client[0] if client else "", time.time()]
        text = base64.urlsafe_b64encode(json.dumps(claims).encode())
        signature = self._signature(text, scope["method"], target)
        kept = [
            (name, value)
            for name, value in scope["headers"]
            if name not in HOP_HEADERS and name not in (FORWARDED_HEADER, b"content-length")
        ]
        headers = [*kept, (FORWARDED_HEADER, text + b"." + signature)]
        if request.body:
            headers.append((b"content-length", b"%d" % len(request.body)))
        # As part of the URL, it could be written otherwise than it was signed.
        as_received = {"target": target}
        sent = httpx2.Request(
            scope["method"], request.replica.url, headers=headers, content=request.body, extensions=as_received
        )
        response = await self._client.send(sent, stream=True)
        try:
            if response.status_code == MISDIRECTED and MISDIRECTED_HEADER.decode() in response.headers:
                raise httpx2.ConnectError("another process answers there", request=sent)
            await answer.relay(response)
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()


class _Answer:
    """An answer on its way back to the client."""

    def __init__(self, request: ForwardedRequest, send: Send) -> None:
        self._request = request
        self._send = send
        self._is_stream = False
        self._end = b"\n\n"

    async def relay(self, response: httpx2.Response) -> None:
        """Send all of a response, part by part."""
        # This replica gives its own date and request id.
        left_out = {*HOP_HEADERS, b"date", REQUEST_ID_HEADER.encode()}
        headers = [(name.lower(), value) for name, value in response.headers.raw if name.lower() not in left_out]
        self._is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        self._request.is_open = True
        await self._send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        async for part in response.aiter_raw():
            self._end = (self._end + part[-4:])[-4:]
            await self._send({"type": "http.response.body", "body": part, "more_body": True})
        await self.end()

    async def break_off(self, error: GatewayError) -> None:
        """End a stream of events, with the error as its last one if the client waits for an answer.

        Anything else stays incomplete, and its connection is closed.
        """
        if not self._is_stream:
            return
        request_id = await _request_id(self._request.body)
        if request_id is not None and self._end.endswith((b"\n\n", b"\r\n\r\n")):
            await self.end(b"event: message\ndata: %s\n\n" % json.dumps(_error(error, request_id)).encode())
        else:
            await self.end()

    async def end(self, last: bytes = b"") -> None:
        """Send the end."""
        await self._send({"type": "http.response.body", "body": last, "more_body": False})
        self._request.is_open = False


@asynccontextmanager
async def open_forwarding(replicas: Replicas | None, settings: HttpSettings) -> AsyncIterator[Forwarding | None]:
    """Open the connections to other replicas, which end with this context; None if there are none."""
    if replicas is None:
        yield None
        return
    limits = httpx2.Limits(
        max_connections=None, max_keepalive_connections=MAX_IDLE_CONNECTIONS, keepalive_expiry=IDLE_SECONDS
    )
    timeout = httpx2.Timeout(SILENT_SECONDS, connect=CONNECT_SECONDS)
    transport = httpx2.AsyncHTTPTransport(limits=limits, socket_options=_SOCKET_OPTIONS, trust_env=False)
    async with httpx2.AsyncClient(transport=transport, timeout=timeout, trust_env=False) as client:
        yield Forwarding(replicas, client, settings)


async def unavailable(error: GatewayError, body: bytes, *, is_modern: bool) -> Response:
    """Return the answer to a request that could not be forwarded."""
    request_id = await _request_id(body)
    status = 503 if error.retryable else 502
    # In the handshake era an error with an id is an answer as any is.
    return JSONResponse(_error(error, request_id), status if is_modern or request_id is None else 200)


async def _request_in(body: bytes) -> JSONRPCRequest | None:
    """Return the request that is sent in a body; None for any other body."""
    try:
        message = await read_incoming(body)
    except RefusedMessageError:
        return None
    return message if isinstance(message, JSONRPCRequest) else None


async def _request_id(body: bytes) -> str | int | None:
    request = await _request_in(body)
    return None if request is None else request.id


def _error(error: GatewayError, request_id: str | int | None) -> dict[str, object]:
    data = error.as_json()
    return {
        "jsonrpc": "2.0",
        "id": request_id,
        "error": {"code": INTERNAL_ERROR, "message": str(error), "data": data},
    }


def _target(scope: Scope) -> bytes:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return path + b"?" + query if query else path


async def _replica_in(body: bytes) -> str | None:
    """Return the id of the replica in a request's state; nearly all have none, and are not parsed."""
    request = await _request_in(body) if b"requestState" in body else None
    state = (request.params or {}).get("requestState") if request is not None else None
    return without_replica(state)[1] if isinstance(state, str) else None


async def _read(receive: Receive, most: int) -> tuple[bytes | None, Receive]:
    """Return a body, and what receives it again; None if it is larger than it may be."""
    parts: list[bytes] = []
    size, has_more = 0, True
    while has_more and size <= most:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        has_more = message.get("more_body", False)
    body = b"".join(parts)
    return None if has_more else body, again(body, receive, has_more=has_more)
