"""Events of handshake sessions, kept while the client may resume with `Last-Event-ID`."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast

from cachetools import FIFOCache
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import (
    GET_STREAM_KEY,
    EventCallback,
    EventId,
    EventMessage,
    EventStore,
    StreamId,
)
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse

from pml_gateway.gateway.request import CURRENT
from pml_gateway.mcp.sdk import on_session_end
from pml_gateway.quotas import OWN, Holdings
from pml_gateway.serve.messages.posted import PostedMessages
from pml_gateway.serve.messages.request_ids import original
from pml_gateway.serve.messages.written import size_of
from pml_gateway.signal import Signal

RETRY_MILLISECONDS = 500
"""Milliseconds after which a client is asked to reconnect if its stream ended early."""

MAX_STREAMS = 64
MAX_EVENTS = 256
MAX_BYTES = 4 * 1024 * 1024
"""Limits of one session's backlog: streams, events of a stream, and bytes of JSON in unread streams."""

MAX_ALL_BYTES = 256 * 1024 * 1024
"""JSON of streams that nobody reads, of all sessions; past it, the client that has most waiting loses its oldest."""

NOT_KEPT = ""
"""The id of an event that nobody can ask for again; the SDK sends none."""


@dataclass(slots=True)
class _Stream:
    """Events sent on the stream of one request, or of notifications, since it was opened."""

    events: deque[tuple[EventId, JSONRPCMessage]] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    first_id: EventId = NOT_KEPT
    is_read: bool = False
    grown: Signal = field(default_factory=Signal)

    @property
    def is_answered(self) -> bool:
        return any(isinstance(message, JSONRPCResponse | JSONRPCError) for _, message in self.events)

    def after(self, event_id: EventId) -> list[tuple[EventId, JSONRPCMessage]] | None:
        """Return the events after one, or nothing when that one is not known (any more)."""
        ids = [self.first_id, *(known for known, _ in self.events)]
        return list(self.events)[ids.index(event_id) :] if event_id in ids else None

    def size(self) -> int:
        return sum(size_of(message) for _, message in self.events)


class SessionEvents(EventStore):
    """The streams of one session.

    A stream that was read to its end is forgotten at once, so that an ordinary call leaves nothing behind. While
    somebody reads a stream its events are only referred to; they are measured once nobody does.
    """

    def __init__(self, all_waiting: Holdings[SessionEvents] | None = None, quota_key: str = OWN) -> None:
        """`all_waiting` are the bytes that wait for each session, and `quota_key` whom this one's are counted for."""
        self._all_waiting: Holdings[SessionEvents] = Holdings() if all_waiting is None else all_waiting
        self._quota_key = quota_key
        self._is_over = False
        self._streams: FIFOCache[StreamId, _Stream] = FIFOCache(MAX_STREAMS)
        self._last = 0

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        """Keep one event, with the id that the client knows; an empty one opens the stream of the current request."""
        if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
            message.id = original(message.id)
        self._last += 1
        event_id = f"{self._last}-{stream_id}"
        if message is None:
            self._streams[stream_id] = _Stream(first_id=event_id)
            self._is_read_by_this_request(stream_id)
            return event_id
        stream = self._streams.get(stream_id)
        if stream is None:
            if stream_id != GET_STREAM_KEY:
                # Clients before 2025-11-25 cannot come back.
                return NOT_KEPT
            stream = self._streams[stream_id] = _Stream()
        stream.events.append((event_id, message))
        stream.grown.set()
        if not stream.is_read:
            self._limit()
        return event_id

    async def replay_events_after(self, last_event_id: EventId, send_callback: EventCallback) -> StreamId | None:
        """Send what followed an event on its stream, and what follows it from now on, up to the answer.

        The SDK would take over after the stored events, but lose one that arrives in between and never end. So it is
        never told a stream.
        """
        stream_id = last_event_id.partition("-")[2]
        stream = self._streams.get(stream_id)
        if stream is None or stream.after(last_event_id) is None:
            return None
        self._is_read_by_this_request(stream_id)
        while True:
            events = stream.after(last_event_id)
            for event_id, message in events or ():
                await send_callback(EventMessage(message, event_id))
                last_event_id = event_id
            if events is None or stream.is_answered:
                return None
            if not events:
                await stream.grown.wait()

    def _is_read_by_this_request(self, stream_id: StreamId) -> None:
        self._streams[stream_id].is_read = True
        scope = CURRENT.get()
        if scope is not None:
            scope.on_sent = lambda complete: self._sent(stream_id, complete)

    def _sent(self, stream_id: StreamId, complete: bool) -> None:
        """Note that the HTTP response of a stream has ended: completely, or because the client left."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if complete and stream.is_answered:
            del self._streams[stream_id]
            if self not in self._all_waiting:
                return
        stream.is_read = False
        self._limit()

    def _limit(self) -> None:
        """Forget what has waited longest, down to what one session and all may keep; the last stream of it is kept."""
        if self._is_over:
            self.forget_waiting()
            return
        waiting = {key: stream.size() for key, stream in self._streams.items() if not stream.is_read}
        total = sum(waiting.values())
        for key, size in list(waiting.items())[:-1]:
            if total <= MAX_BYTES:
                break
            del self._streams[key]
            total -= size
        everyone = self._all_waiting
        everyone.note(self, self._quota_key, total)
        while everyone.total > MAX_ALL_BYTES and (oldest := everyone.first_to_go()) is not None:
            everyone.forget(oldest)
            oldest.forget_waiting()

    def end(self) -> None:
        """Keep nothing any longer, also of what is still answered: nobody can ask for it once the session is over."""
        self._is_over = True
        self._all_waiting.forget(self)
        self.forget_waiting()

    def forget_waiting(self) -> None:
        """Keep nothing any longer of what nobody reads."""
        for key in [key for key, stream in self._streams.items() if not stream.is_read]:
            del self._streams[key]


class ResumableSessions(StreamableHTTPSessionManager):
    """The SDK's sessions, each with events of its own: streams are named after request ids, which others use too."""

    def __init__(self, app: Server[Any], *, idle_seconds: float, max_body_bytes: int) -> None:
        self._all_waiting: Holdings[SessionEvents] = Holdings()
        super().__init__(
            app,
            retry_interval=RETRY_MILLISECONDS,
            session_idle_timeout=idle_seconds,
            max_request_body_size=max_body_bytes,
            # Whoever opens one too many loses another: `serve/limits/sessions.py`.
            max_sessions=None,
        )
        self.asgi_app.app = PostedMessages(self.asgi_app.app)
        on_session_end(self, self._forget_events)

    @property
    def event_store(self) -> EventStore:
        """A store for the session that is being opened."""
        scope = CURRENT.get()
        return SessionEvents(self._all_waiting, OWN if scope is None else scope.client.quota_key)

    @event_store.setter
    def event_store(self, _: EventStore | None) -> None:
        pass

    def _forget_events(self, _: str, events: EventStore | None) -> None:
        cast(SessionEvents, events).end()
