"""Every use of the MCP SDK's private parts, each with its reason: the one place to look at when the SDK is updated."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

import anyio
import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.session import ClientSession
from mcp.server._otel import OpenTelemetryMiddleware
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.shared._compat import resync_tracer
from mcp.shared._context_streams import ContextReceiveStream, ContextSendStream, create_context_streams
from mcp.shared._httpx_utils import stream_within_origin
from mcp.shared.dispatcher import CallOptions, DispatchContext
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from mcp.shared.transport_context import TransportContext
from mcp_types import ClientCapabilities, JSONRPCError, JSONRPCRequest, JSONRPCResponse, RequestId
from mcp_types.jsonrpc import PARSE_ERROR, ErrorData

from pml_gateway.foreign_json import LARGE, TooManyListedError
from pml_gateway.processes.framing import AnswerFault, read_message
from pml_gateway.types import JsonObject

if TYPE_CHECKING:
    # The first takes its time to import, which gateways with stdio upstreams alone never need.
    from mcp.client.auth import OAuthClientProvider
    from mcp.server.streamable_http import EventStore, StreamableHTTPServerTransport
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

__all__ = [
    "ContextReceiveStream",
    "ContextSendStream",
    "OpenDispatcher",
    "OpenSession",
    "OpenTelemetryMiddleware",
    "TappedReceive",
    "TappedSend",
    "TransportStreams",
    "connection_of",
    "create_context_streams",
    "http_streams",
    "live_sessions",
    "on_session_end",
    "refresh_request",
    "request_channel",
    "stream_within_origin",
]
"""Taken over as they are: the type of a transport's streams, those of stdio and how they are made, the middleware that
opens a request's span, and a request that is redirected within one origin only."""


def connection_of(ctx: ServerRequestContext[Any, Any]) -> Connection:
    """The connection of a handshake session, which lives on after the request; there is no public way to it."""
    return ctx.session._connection


def request_channel(ctx: ServerRequestContext[Any, Any]) -> DispatchContext[TransportContext]:
    """The way back to the client in one request; the public methods rebuild what they send and get."""
    return ctx.session._request_outbound


def live_sessions(manager: StreamableHTTPSessionManager) -> dict[str, Any]:
    """The open sessions by id: nothing public tells of a session's end."""
    return manager._server_instances


def on_session_end(manager: StreamableHTTPSessionManager, tell: Callable[[str, EventStore | None], None]) -> None:
    """Have the end of each session told, with its events, whichever way it ends; some ends are told twice."""
    discard = manager._discard_session

    async def told(session_id: str, transport: StreamableHTTPServerTransport) -> None:
        tell(session_id, transport._event_store)
        await discard(session_id, transport)

    setattr(manager, "_discard_session", told)  # noqa: B010  # a method may not be assigned


class TappedReceive(ContextReceiveStream[SessionMessage | Exception]):
    """What a client sends, told to `note` as it is read: the same stream, seen through another wrapper.

    At its end, the reader goes on waiting for as long as `until_over` does.
    """

    __slots__ = ("_note", "_until_over")

    def __init__(
        self,
        stream: ContextReceiveStream[SessionMessage | Exception],
        note: Callable[[SessionMessage | Exception], None],
        until_over: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(stream._inner)
        self._note = note
        self._until_over = until_over

    def __aiter__(self) -> TappedReceive:
        return self

    async def __aenter__(self) -> TappedReceive:
        return self

    async def receive(self) -> SessionMessage | Exception:
        """The next message."""
        try:
            item = await super().receive()
        except anyio.EndOfStream:
            await self._until_over()
            raise
        self._note(item)
        return item


class TappedSend(ContextSendStream[SessionMessage]):
    """What a client is sent, told to `note` as it is taken."""

    __slots__ = ("_note",)

    def __init__(self, stream: ContextSendStream[SessionMessage], note: Callable[[SessionMessage], None]) -> None:
        super().__init__(stream._inner)
        self._note = note

    async def __aenter__(self) -> Self:
        return self

    async def send(self, item: SessionMessage) -> None:
        """Send one message."""
        await super().send(item)
        self._note(item)


class OpenDispatcher(JSONRPCDispatcher[TransportContext]):
    """A dispatcher that can hold up what arrives, or refuse it, before the SDK begins a task for it.

    `open_requests` are those of the peer of which the answer is not written yet.
    """

    open_requests = 0

    async def arrived(self, item: SessionMessage | Exception) -> None:
        """Called with each item of the connection; the next one waits for it."""

    def refusal(self) -> ErrorData | None:
        """Why one more request of the peer is not taken, if it is not."""

    async def _dispatch(self, item: SessionMessage | Exception, *rest: Any) -> None:
        await self.arrived(item)
        await super()._dispatch(item, *rest)

    async def _dispatch_request(self, req: JSONRPCRequest, *rest: Any) -> None:
        if (refusal := self.refusal()) is None:
            await super()._dispatch_request(req, *rest)
        else:
            # Whoever does not read what it is answered is not read any further.
            await self._write_error(req.id, refusal)

    async def _handle_request(self, *request: Any) -> None:
        self.open_requests += 1
        try:
            await super()._handle_request(*request)
        finally:
            self.open_requests -= 1


class OpenSession(ClientSession):
    """A client session that passes plain JSON: its public methods know requests and results as models only."""

    def stamp(self, data: JsonObject, options: CallOptions) -> None:
        """Write what the negotiated version wants into a request and its HTTP headers."""
        self._stamp(data, options)

    def capabilities(self) -> ClientCapabilities:
        """What the session announces that it can be asked."""
        raise NotImplementedError

    async def asked(self, ctx: DispatchContext[TransportContext], method: str, params: JsonObject) -> JsonObject:
        """The answer to one request of the server."""
        raise NotImplementedError

    async def is_told(self, method: str, params: JsonObject) -> bool:
        """Take one notification of the server, or leave it to the SDK."""
        raise NotImplementedError

    def param_headers(self, name: str, arguments: Mapping[str, Any]) -> dict[str, str]:
        """The `Mcp-Param-*` headers of a call; the SDK knows those of tools only that it has listed itself."""
        raise NotImplementedError

    def _build_capabilities(self, version: str) -> ClientCapabilities:
        return self.capabilities()

    async def _on_request(
        self, dctx: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None
    ) -> JsonObject:
        return await self.asked(dctx, method, dict(params or {}))

    async def _on_notify(
        self, dctx: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None
    ) -> None:
        if not await self.is_told(method, dict(params or {})):
            await super()._on_notify(dctx, method, params)

    def _resolve_param_headers(self, name: str, arguments: Mapping[str, Any]) -> dict[str, str]:
        return self.param_headers(name, arguments)


async def refresh_request(provider: OAuthClientProvider) -> httpx2.Request:
    """The request for new tokens, which the SDK makes only within its own flow."""
    return await provider._refresh_token()


@asynccontextmanager
async def http_streams(url: str, client: httpx2.AsyncClient, *, max_bytes: int) -> AsyncIterator[TransportStreams]:
    """As `mcp.client.streamable_http.streamable_http_client`, but that large messages are read in turns."""
    # It takes 0.1 s to import, which gateways with stdio upstreams alone never need.
    from mcp.client.streamable_http import StreamableHTTPTransport

    class Transport(StreamableHTTPTransport):
        """The SDK's transport, which reads a message in one go."""

        async def _handle_json_response(
            self,
            response: httpx2.Response,
            read_stream_writer: ContextSendStream[SessionMessage | Exception],
            *,
            request_id: RequestId,
        ) -> None:
            try:
                message = await read_message(await response.aread())
            except (httpx2.StreamError, ValueError) as exc:
                message = _unread(exc, request_id, "Failed to parse JSON response")
            await read_stream_writer.send(SessionMessage(message))

        async def _handle_sse_event(
            self,
            sse: httpx2.ServerSentEvent,
            read_stream_writer: ContextSendStream[SessionMessage | Exception],
            original_request_id: RequestId | None = None,
            resumption_callback: Callable[[str], Awaitable[None]] | None = None,
        ) -> bool:
            if sse.event != "message" or len(sse.data) < LARGE or original_request_id is None:
                return await super()._handle_sse_event(
                    sse, read_stream_writer, original_request_id, resumption_callback
                )
            try:
                message = await read_message(sse.data)
            except ValueError as exc:
                message = _unread(exc, original_request_id, "Failed to parse SSE message")
            is_answer = isinstance(message, JSONRPCResponse | JSONRPCError)
            if isinstance(message, JSONRPCResponse | JSONRPCError):
                message.id = original_request_id
            await read_stream_writer.send(SessionMessage(message))
            if sse.id and resumption_callback:
                await resumption_callback(sse.id)
            return is_answer

    transport = Transport(url, max_sse_event_size=max_bytes)
    arriving, read = create_context_streams[SessionMessage | Exception](0)
    write, leaving = create_context_streams[SessionMessage](0)
    async with arriving, read, write, leaving, anyio.create_task_group() as tasks:

        def listen() -> None:
            tasks.start_soon(transport.handle_get_stream, client, arriving)

        tasks.start_soon(transport.post_writer, client, leaving, arriving, write, listen, tasks)
        try:
            yield read, write
        finally:
            if transport.session_id:
                await transport.terminate_session(client)
            tasks.cancel_scope.cancel()
    await resync_tracer()


def _unread(error: Exception, request_id: RequestId, what: str) -> JSONRPCError:
    fault = AnswerFault(str(error)) if isinstance(error, TooManyListedError) else None
    data = ErrorData(code=PARSE_ERROR, message=f"{what}: {error}", data=fault)
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=data)
