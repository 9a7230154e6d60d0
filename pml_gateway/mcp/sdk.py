"""Every use of the MCP SDK's private parts, each with its reason: the one place to look at when the SDK is updated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcp.client._transport import TransportStreams
from mcp.server._otel import OpenTelemetryMiddleware
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared._context_streams import ContextReceiveStream, ContextSendStream
from mcp.shared._httpx_utils import stream_within_origin
from mcp.shared.dispatcher import DispatchContext
from mcp.shared.message import SessionMessage
from mcp.shared.transport_context import TransportContext

__all__ = [
    "ContextReceiveStream",
    "ContextSendStream",
    "OpenTelemetryMiddleware",
    "TappedReceive",
    "TappedSend",
    "TransportStreams",
    "connection_of",
    "live_sessions",
    "request_channel",
    "stream_within_origin",
]


def connection_of(ctx: ServerRequestContext[Any, Any]) -> Connection:
    """The connection of a handshake session, which lives on after the request; there is no public way to it."""
    return ctx.session._connection


def request_channel(ctx: ServerRequestContext[Any, Any]) -> DispatchContext[TransportContext]:
    """The way back to the client in one request; the public methods rebuild what they send and get."""
    return ctx.session._request_outbound


def live_sessions(manager: StreamableHTTPSessionManager) -> dict[str, Any]:
    """The open sessions by id: nothing public tells of a session's end."""
    return manager._server_instances


class TappedReceive(ContextReceiveStream[SessionMessage | Exception]):
    """What a client sends, told to `note` as it is read: the same stream, seen through another wrapper."""

    __slots__ = ("_note",)

    def __init__(
        self,
        stream: ContextReceiveStream[SessionMessage | Exception],
        note: Callable[[SessionMessage | Exception], None],
    ) -> None:
        super().__init__(stream._inner)
        self._note = note

    def __aiter__(self) -> TappedReceive:
        return self

    async def __aenter__(self) -> TappedReceive:
        return self

    async def receive(self) -> SessionMessage | Exception:
        """The next message."""
        item = await super().receive()
        self._note(item)
        return item


class TappedSend(ContextSendStream[SessionMessage]):
    """What a client is sent, told to `note` as it is taken."""

    __slots__ = ("_note",)

    def __init__(self, stream: ContextSendStream[SessionMessage], note: Callable[[SessionMessage], None]) -> None:
        super().__init__(stream._inner)
        self._note = note

    async def __aenter__(self) -> TappedSend:
        return self

    async def send(self, item: SessionMessage) -> None:
        """Send one message."""
        await super().send(item)
        self._note(item)
