"""Connections over HTTP: how many there are in all and from one address, and how long and large a request may be.

A connection on which nothing is being served gives way where others need its place: the oldest of the address that has
most of them. One that serves a request, such as a stream of notices, is never cut. Time is limited only while a request
arrives: for its headers, and for its body, in all and since anything came of it.

Everything of a request but its body is counted as it arrives, before the parser keeps it: the request line, headers,
trailers, and what frames chunks. A request that follows one without an answer waits unparsed.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pml_gateway.config.settings import HttpSettings
from pml_gateway.log import ThrottledWarning, get_logger
from pml_gateway.quotas import Holdings, quota_key_of_address
from pml_gateway.serve.workers.handover import FrameKind, HandedConnection

logger = get_logger(__name__)

STALL_PART = 4
"""A body may stand still for a quarter of the time that it may take in all."""

MAX_HEAD_BYTES = 64 * 1024
"""Bytes of one request without its body: four times what servers usually allow, and little for each connection."""

MAX_HEADERS = 256
"""Headers of one request: several times what clients and proxies send, and each takes much more than its bytes."""

SLICE = 4096
"""Bytes given to the parser at once, outside of a body whose length is known: most requests are smaller."""

MAX_DISCARDED = 4 * 1024 * 1024
"""Bytes that are read and dropped after a refusal, so that the client reads it before its own sending fails."""

REFUSING_SECONDS = 2.0
MAX_REFUSING = 64
"""Connections that are told why they are refused, once they have sent something; more are closed without a word."""

RETRY_AFTER_SECONDS = 5

OF_REPLICAS = "replicas"
"""Quota key of the connections of other replicas, each of which is that of many clients."""

CONNECTION_KEY = "pml_connection"
"""The connection of a request, in the state of its ASGI scope."""


class Refusal(Enum):
    """Reason to refuse or end a connection, as metrics name it."""

    FULL = "full"
    ADDRESS = "address"
    LATE = "late"
    LARGE = "large"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one listener, and what is open on it."""

    settings: HttpSettings
    max_connections: int
    open: Counter[str] = field(default_factory=Counter)
    waiting: Holdings[ClientConnection] = field(default_factory=Holdings)
    refusing: set[ClientConnection] = field(default_factory=set)
    refused: Counter[Refusal] = field(default_factory=Counter)
    line: dict[Refusal, ThrottledWarning] = field(
        default_factory=lambda: {each: ThrottledWarning(logger) for each in Refusal}
    )

    def protocol(self) -> type[asyncio.Protocol]:
        """Create the protocol of one connection for uvicorn."""
        return cast(type[asyncio.Protocol], partial(ClientConnection, self))

    def admit(self, quota_key: str, kind: FrameKind | None = None) -> Refusal | None:
        """Admit one more connection of an address, closing an idle one if needed, or return why not.

        Of a connection that was handed over, `kind` says whether all workers together have as many as they may.
        """
        settings = self.settings
        if kind is FrameKind.ADDRESS_FULL or self.open[quota_key] >= settings.max_connections_per_address:
            oldest = next(self.waiting.of(quota_key), None)
            if oldest is None:
                self._note(
                    Refusal.ADDRESS, quota_key, "max_connections_per_address", settings.max_connections_per_address
                )
                return Refusal.ADDRESS
            oldest.give_way()
        elif kind is FrameKind.FULL or self.open.total() >= self.max_connections:
            oldest = self.waiting.first_to_go()
            if oldest is None:
                self._note(Refusal.FULL, quota_key, "max_connections", self.max_connections)
                return Refusal.FULL
            oldest.give_way()
        self.open[quota_key] += 1
        return None

    def left(self, quota_key: str) -> None:
        """Note that an admitted connection has ended."""
        self.open[quota_key] -= 1
        if not self.open[quota_key]:
            del self.open[quota_key]

    def late(self, quota_key: str, setting: str, seconds: float) -> None:
        """Note that a request did not arrive in time."""
        self._note(Refusal.LATE, quota_key, setting, seconds)

    def unreadable(self, refusal: Refusal, quota_key: str) -> None:
        """Count a request that is too large outside of its body, or is not HTTP."""
        self.refused[refusal] += 1
        what = "with too large headers" if refusal is Refusal.LARGE else "that is not HTTP"
        self.line[refusal].warning("a request of %s %s was refused", quota_key, what)

    def end_refused(self) -> None:
        """Wait no longer for what refused connections send."""
        for connection in list(self.refusing):
            connection.transport.abort()

    def _note(self, refusal: Refusal, quota_key: str, setting: str, value: float) -> None:
        self.refused[refusal] += 1
        what = "a request that did not arrive in time" if refusal is Refusal.LATE else "one connection too many"
        self.line[refusal].warning("%s of %s was refused: http.%s is %g", what, quota_key, setting, value)

    def answer(self, refusal: Refusal) -> bytes:
        """Return the whole HTTP response for a refusal."""
        match refusal:
            case Refusal.FULL:
                status, message = HTTPStatus.SERVICE_UNAVAILABLE, f"{self.max_connections} connections are open already"
                hint = "try again, or raise http.max_connections"
            case Refusal.ADDRESS:
                most = self.settings.max_connections_per_address
                status, message = HTTPStatus.TOO_MANY_REQUESTS, f"{most} connections of this address are open already"
                hint = "close some, or raise http.max_connections_per_address"
            case Refusal.LATE:
                status, message = HTTPStatus.REQUEST_TIMEOUT, "the request did not arrive in time"
                hint = "send it at once, or raise http.header_seconds or http.body_seconds"
            case Refusal.LARGE:
                status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                message = f"the request has more than {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} headers outside its body"
                hint = "send fewer or shorter headers, or a shorter URL"
            case Refusal.MALFORMED:
                status, message, hint = HTTPStatus.BAD_REQUEST, "the request is not valid HTTP/1.1", ""
        body = json.dumps({"error": message} | ({"hint": hint} if hint else {})).encode()
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *([f"retry-after: {RETRY_AFTER_SECONDS}"] if refusal in (Refusal.FULL, Refusal.ADDRESS) else []),
            "connection: close",
        ]
        return "\r\n".join([*lines, "", ""]).encode() + body


class _Phase(Enum):
    """Phase of a connection."""

    IDLE = auto()
    HEADERS = auto()
    BODY = auto()
    SERVING = auto()


class ClientConnection(HttpToolsProtocol):
    """One connection, served by uvicorn within the limits."""

    transport: asyncio.Transport

    def __init__(self, limits: ConnectionLimits, *, handed: HandedConnection | None = None, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._limits = limits
        self._handed = handed
        self._quota_key = ""
        self._refusal: Refusal | None = None
        self._is_admitted = False
        self._is_counted = False
        self._phase = _Phase.IDLE
        self._has_begun = False
        self._timed: object = None
        self._timer: asyncio.TimerHandle | None = None
        self._body_until = 0.0
        self._last_data = 0.0
        self._waiting = b""
        """Bytes received after a request that has no answer yet."""
        self._in_head = True
        self._head = 0
        """Bytes of the request at hand that are not of its body."""
        self._body_left = 0
        """Bytes of its body that are still to come, where their number was told."""
        self._chunk = 0
        self._is_complete = False
        self._upgrades = False
        self._discarded = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit it, or wait for what it wants in order to tell it that it cannot be served."""
        peer = transport.get_extra_info("peername")
        self._quota_key = quota_key_of_address(str(peer[0]) if isinstance(peer, tuple) else "")
        kind = None if self._handed is None else self._handed.kind
        self._refusal = self._limits.admit(self._quota_key, kind)
        if self._refusal is None:
            self._is_admitted = self._is_counted = True
            super().connection_made(transport)
            self._enter(_Phase.HEADERS)
            return
        self._count_no_more()
        self.transport = transport
        if len(self._limits.refusing) >= MAX_REFUSING:
            transport.abort()
            return
        self._limits.refusing.add(self)
        self._timer = self.loop.call_later(REFUSING_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Serve what came, and see how far the request has arrived."""
        if self._refusal is None:
            self._waiting += data
            self._parse()
        elif self._is_admitted:
            self._discarded += len(data)
            if self._discarded > MAX_DISCARDED:
                self.transport.abort()
        elif not self.transport.is_closing():
            self.transport.write(self._limits.answer(self._refusal))
            self.transport.close()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if self._refusal is not None:
            if not self.pipeline:
                self._tell_refusal()
            return
        self._follow(arrived=False)
        if self._waiting:
            self._parse()

    # Parsing

    def _parse(self) -> None:
        """Give the parser what may be parsed now, slice by slice."""
        data = memoryview(self._waiting)
        self._waiting, at = b"", 0
        while at < len(data) and self._refusal is None and not self.transport.is_closing():
            if self._is_serving:
                self._waiting = bytes(data[at:])
                self.flow.pause_reading()
                break
            room = MAX_HEAD_BYTES - self._head
            if room <= 0:
                self._refuse(Refusal.LARGE)
                return
            part = data[at : at + max(min(SLICE, room), self._body_left)]
            at += len(part)
            self._feed(part)
            if self._upgrades:
                break
        if self._refusal is None:
            self._follow(arrived=True)

    @property
    def _is_serving(self) -> bool:
        """Return True while a request that has arrived in full has no complete answer."""
        cycle = self.cycle
        return cycle is not None and not cycle.more_body and not cycle.response_complete

    def _feed(self, part: memoryview) -> None:
        self._unset_keepalive_if_required()
        self._is_complete = self._upgrades = False
        try:
            self.parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            # It is answered as a plain request, and what follows it is of the other protocol.
            self._upgrades = True
        except httptools.HttpParserError:
            self._refuse(Refusal.LARGE if len(self.headers or ()) >= MAX_HEADERS else Refusal.MALFORMED)
            return
        # Of a slice with the end of one request and the beginning of the next, neither is counted.
        self._head = 0 if self._is_complete else self._head + len(part)

    def on_message_begin(self) -> None:
        """Begin to count."""
        super().on_message_begin()
        self.scope["state"][CONNECTION_KEY] = self
        self._in_head = True

    def on_headers_complete(self) -> None:
        """Begin to serve the request; trailers are counted with the head, and nobody gets them."""
        if len(self.headers) > MAX_HEADERS:
            raise ValueError("too many headers")
        super().on_headers_complete()
        self._in_head = False
        length = next((value for name, value in self.headers if name == b"content-length"), b"")
        self._body_left = int(length) if length.isdigit() else 0
        self.headers = []

    def on_chunk_header(self) -> None:
        """Begin to count the bytes of a chunk."""
        self._chunk = 0

    def on_body(self, body: bytes) -> None:
        """Take a part of the body, which is limited by those who read it."""
        self._head -= len(body)
        self._body_left -= len(body)
        self._chunk += len(body)
        super().on_body(body)

    def on_chunk_complete(self) -> None:
        """Do not count the size of a chunk and the ends of its two lines: small chunks are allowed."""
        self._head -= len(f"{self._chunk:x}") + 4

    def on_message_complete(self) -> None:
        """Expect the next request."""
        super().on_message_complete()
        self._is_complete = True

    def _refuse(self, refusal: Refusal) -> None:
        """Serve nothing more on this connection, and say why once requests before this one are answered."""
        self._limits.unreadable(refusal, self._quota_key)
        self._refusal = refusal
        if not self.pipeline and not self._is_serving:
            self._tell_refusal()

    def _tell_refusal(self) -> None:
        """Say why the request is refused, and drop what the client goes on to send until it has read that."""
        assert self._refusal is not None
        self._stop()
        cycle = self.cycle
        is_answered = not self._in_head and cycle is not None and cycle.response_started
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()
        if is_answered:
            self.transport.close()
            return
        self.transport.write(self._limits.answer(self._refusal))
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._timer = self.loop.call_later(REFUSING_SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave its place to others."""
        self._leave()
        self._limits.refusing.discard(self)
        if self._is_admitted:
            super().connection_lost(exc)

    def note_replica(self) -> None:
        """Limit this connection by `max_connections` alone: a request on it proved that it is another replica's."""
        if self._is_counted:
            self._limits.left(self._quota_key)
            self._quota_key = OF_REPLICAS
            self._limits.open[OF_REPLICAS] += 1

    def give_way(self) -> None:
        """End a connection on which nothing is served, at once."""
        self._leave()
        if self.transport.get_write_buffer_size():
            # It would stay open, and counted no more, until the last answer is read, which may be never.
            self.transport.abort()
        else:
            self.transport.close()

    def _leave(self) -> None:
        self._stop()
        self._limits.waiting.forget(self)
        if self._is_counted:
            self._is_counted = False
            self._limits.left(self._quota_key)
            self._count_no_more()

    def _count_no_more(self) -> None:
        if self._handed is not None:
            self._handed.left()

    def _follow(self, *, arrived: bool) -> None:
        """Enter the phase that the request at hand is in."""
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle is not None and cycle.more_body:
            self._last_data = self.loop.time()
            if self._phase is not _Phase.BODY or self._timed is not cycle:
                self._timed = cycle
                self._enter(_Phase.BODY)
        elif cycle is not None and not cycle.response_complete:
            if self._phase is not _Phase.SERVING:
                self._enter(_Phase.SERVING)
        elif not arrived:
            self._enter(_Phase.IDLE)
        else:
            self._has_begun = True
            if self._phase is not _Phase.HEADERS:
                self._enter(_Phase.HEADERS)

    def _enter(self, phase: _Phase) -> None:
        self._stop()
        was_waiting = self._phase in (_Phase.IDLE, _Phase.HEADERS)
        self._phase = phase
        match phase:
            case _Phase.IDLE:
                self._has_begun = False
                self._limits.waiting.note(self, self._quota_key)
            case _Phase.HEADERS:
                self._limits.waiting.note(self, self._quota_key)
                self._timer = self.loop.call_later(self._limits.settings.header_seconds, self._headers_are_late)
            case _Phase.BODY:
                self._body_until = self._last_data + self._limits.settings.body_seconds
                self._await_body()
            case _Phase.SERVING:
                pass
        if was_waiting and phase in (_Phase.BODY, _Phase.SERVING):
            self._limits.waiting.forget(self)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _headers_are_late(self) -> None:
        if self._has_begun:
            self._end_late("header_seconds", self._limits.settings.header_seconds)
        else:
            # There is no request to answer.
            self.transport.close()

    def _await_body(self) -> None:
        patience = self._limits.settings.body_seconds / STALL_PART
        until = min(self._body_until, self._last_data + patience)
        self._timer = self.loop.call_at(until, self._look_at_body)

    def _look_at_body(self) -> None:
        now = self.loop.time()
        if self.flow.read_paused:
            # It is the gateway that does not read.
            self._last_data = now
            self._body_until = max(self._body_until, now + self._limits.settings.body_seconds / STALL_PART)
        if now >= min(self._body_until, self._last_data + self._limits.settings.body_seconds / STALL_PART):
            self._end_late("body_seconds", self._limits.settings.body_seconds)
        else:
            self._await_body()

    def _end_late(self, setting: str, seconds: float) -> None:
        if self.transport.is_closing():
            return
        self._limits.late(self._quota_key, setting, seconds)
        if self._phase is _Phase.HEADERS or not self.cycle.response_started:
            self.transport.write(self._limits.answer(Refusal.LATE))
        self.transport.close()
