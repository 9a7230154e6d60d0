"""Every use of the MCP SDK's private parts, each with its reason: the one module to check when the SDK is updated."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

import anyio
import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.session import ClientSession, _make_handshake_stamp
from mcp.server._otel import OpenTelemetryMiddleware
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.shared._compat import resync_tracer
from mcp.shared._context_streams import ContextReceiveStream, ContextSendStream, create_context_streams
from mcp.shared._httpx_utils import sse_within_origin, stream_within_origin
from mcp.shared.dispatcher import CallOptions, DispatchContext
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from mcp.shared.transport_context import TransportContext
from mcp_types import ClientCapabilities, InitializeResult, JSONRPCError, JSONRPCRequest, JSONRPCResponse, RequestId
from mcp_types.jsonrpc import PARSE_ERROR, ErrorData

from pml_gateway.errors import GatewayError
from pml_gateway.foreign_json import sound_error
from pml_gateway.json_text.pieces import LARGE
from pml_gateway.json_text.reading import TooManyListedError
from pml_gateway.mcp.http import ConnectionFacts, answer_in_context
from pml_gateway.processes.framing import AnswerFault
from pml_gateway.processes.messages import read_message
from pml_gateway.types import JsonObject

if TYPE_CHECKING:
    # Importing the first is slow, and gateways with only stdio upstreams never need it.
    from mcp.client.auth import OAuthClientProvider
    from mcp.client.streamable_http import RequestContext
    from mcp.server.auth.middleware.bearer_auth import AuthorizationContext
    from mcp.server.streamable_http import EventStore, StreamableHTTPServerTransport
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

__all__ = [
    "ContextReceiveStream",
    "ContextSendStream",
    "OpenDispatcher",
    "OpenOAuthFlow",
    "OpenSession",
    "OpenTelemetryMiddleware",
    "TappedReceive",
    "TappedSend",
    "TransportStreams",
    "begin_session_ids",
    "connection_of",
    "create_context_streams",
    "http_streams",
    "live_sessions",
    "on_session_end",
    "refresh_request",
    "request_channel",
    "sse_within_origin",
    "stream_within_origin",
]
"""Re-exported unchanged: the type of a transport's streams, those of stdio and their constructor, the middleware that
opens a request's span, and requests that follow redirects within one origin only."""

NEGOTIATION = ("initialize", "server/discover")

REOPEN_SECONDS = 5.0
"""Pause in seconds before the session is checked and its notification stream reopened."""

UNREADABLE = "Failed to parse JSON response: "
"""The beginning of the SDK's error for a body that is not a message; the reason follows."""


def connection_of(ctx: ServerRequestContext[Any, Any]) -> Connection:
    """Return the connection of a handshake session, which outlives the request; there is no public access to it."""
    return ctx.session._connection


def request_channel(ctx: ServerRequestContext[Any, Any]) -> DispatchContext[TransportContext]:
    """Return the channel to the client in one request; the public methods rebuild what they send and receive."""
    return ctx.session._request_outbound


def live_sessions(manager: StreamableHTTPSessionManager) -> dict[str, Any]:
    """Return the open sessions by id: the public API does not report the end of a session."""
    return manager._server_instances


def on_session_end(manager: StreamableHTTPSessionManager, tell: Callable[[str, EventStore | None], None]) -> None:
    """Call `tell` at the end of each session, with its events, however it ends; some ends are reported twice."""
    discard = manager._discard_session

    async def told(session_id: str, transport: StreamableHTTPServerTransport) -> None:
        tell(session_id, transport._event_store)
        await discard(session_id, transport)

    setattr(manager, "_discard_session", told)  # noqa: B010  # a method may not be assigned


def begin_session_ids(manager: StreamableHTTPSessionManager, prefix: str) -> None:
    """Have the ids of sessions begin with a text; the SDK makes them itself, and offers no other way."""
    admit = manager._admit_session

    def admitted(requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        transport = admit(requestor)
        if transport is not None and transport.mcp_session_id is not None:
            made, named = transport.mcp_session_id, prefix + transport.mcp_session_id
            transport.mcp_session_id = named
            manager._server_instances[named] = manager._server_instances.pop(made)
            if requestor is not None:
                manager._session_owners[named] = manager._session_owners.pop(made)
        return transport

    setattr(manager, "_admit_session", admitted)  # noqa: B010  # a method may not be assigned


class TappedReceive(ContextReceiveStream[SessionMessage | Exception]):
    """A stream of the messages from a client that passes each to `note`: the same stream in another wrapper.

    At its end, the reader keeps waiting until `until_over` returns.
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
        """Receive the next message."""
        try:
            item = await super().receive()
        except anyio.EndOfStream:
            await self._until_over()
            raise
        self._note(item)
        return item


class TappedSend(ContextSendStream[SessionMessage]):
    """A stream of the messages to a client that passes each to `note` once it is accepted."""

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
    """A dispatcher that can delay or refuse incoming messages before the SDK starts a task for each.

    `open_requests` counts requests of the peer whose answer is not written yet.
    """

    open_requests = 0

    async def arrived(self, item: SessionMessage | Exception) -> None:
        """Handle each item of the connection; the next one waits for it."""

    def refusal(self) -> ErrorData | None:
        """Return the reason to refuse one more request of the peer; None to accept it."""

    async def _dispatch(self, item: SessionMessage | Exception, *rest: Any) -> None:
        await self.arrived(item)
        await super()._dispatch(item, *rest)
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
            # The caller has the result by now; the SDK would keep the message until the next one arrives.
            item.message.result = {}

    async def _dispatch_request(self, req: JSONRPCRequest, *rest: Any) -> None:
        if (refusal := self.refusal()) is None:
            await super()._dispatch_request(req, *rest)
        else:
            # A peer that does not read its answers is not read any further.
            await self._write_error(req.id, refusal)

    async def _handle_request(self, *request: Any) -> None:
        self.open_requests += 1
        try:
            await super()._handle_request(*request)
        finally:
            self.open_requests -= 1


class OpenSession(ClientSession):
    """A client session that passes plain JSON: its public methods only accept and return models."""

    def stamp(self, data: JsonObject, options: CallOptions) -> None:
        """Add what the negotiated version requires to a request and its HTTP headers."""
        self._stamp(data, options)

    def adopt_handshake(self, result: InitializeResult, said: str) -> None:
        """Apply the answer to `initialize`; requests carry the version in the server's own notation, `said`."""
        self.adopt(result)
        self._stamp = _make_handshake_stamp(said)

    def announced_in(self, version: str) -> JsonObject:
        """Return the client capabilities that the session announces in a protocol version."""
        raise NotImplementedError

    async def asked(self, ctx: DispatchContext[TransportContext], method: str, params: JsonObject) -> JsonObject:
        """Return the answer to one request of the server."""
        raise NotImplementedError

    async def is_told(self, method: str, params: JsonObject) -> bool:
        """Handle one notification of the server; return False to leave it to the SDK."""
        raise NotImplementedError

    def param_headers(self, name: str, arguments: Mapping[str, Any]) -> dict[str, str]:
        """Return the `Mcp-Param-*` headers of a call; the SDK only knows those of tools that it has listed itself."""
        raise NotImplementedError

    def _build_capabilities(self, version: str) -> ClientCapabilities:
        return ClientCapabilities.model_validate(self.announced_in(version))

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


class OpenOAuthFlow:
    """A mixin placed before the SDK's provider; passes each response of a flow to `answered` first."""

    def answered(self, response: httpx2.Response) -> httpx2.Response:
        """Return a response as the flow should read it."""
        raise NotImplementedError

    @property
    def expected_issuer(self) -> str:
        """Return the issuer that the metadata of the authorization server must name."""
        issuer: str = self._expected_issuer()  # type: ignore[attr-defined]  # the provider's, which is the next base
        return issuer

    async def _auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        flow = super()._auth_flow(request)  # type: ignore[misc]  # the provider's, which is the next base
        try:
            outgoing = await anext(flow)
            while True:
                response = yield outgoing
                if outgoing is not request:
                    await response.aread()
                    response = self.answered(response)
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()


async def refresh_request(provider: OAuthClientProvider) -> httpx2.Request:
    """Return the request for new tokens, which the SDK makes only within its own flow."""
    return await provider._refresh_token()


@asynccontextmanager
async def http_streams(url: str, client: httpx2.AsyncClient, http: ConnectionFacts) -> AsyncIterator[TransportStreams]:
    """Open streams like `mcp.client.streamable_http.streamable_http_client`, with four differences.

    Large messages are parsed in pieces; an error answers the request it was sent for, whatever its id; a connection
    that fails during negotiation fails only that request; and a notification stream that ended is reopened while the
    session is alive.
    """
    # Importing it takes 0.1 s, which gateways with only stdio upstreams never need.
    from mcp.client.streamable_http import StreamableHTTPTransport

    class Transport(StreamableHTTPTransport):
        """The SDK's transport, which would parse a message in one go."""

        async def _handle_post_request(self, ctx: RequestContext) -> None:
            message = ctx.session_message.message
            try:
                await super()._handle_post_request(ctx)
            except httpx2.TransportError as error:
                answered = answer_in_context()
                if answered is None or not isinstance(message, JSONRPCRequest) or message.method not in NEGOTIATION:
                    raise
                answered.failure = error
                await self._resolve_abandoned_request(ctx.read_stream_writer, message.id, str(error))

        async def _handle_json_response(
            self,
            response: httpx2.Response,
            read_stream_writer: ContextSendStream[SessionMessage | Exception],
            *,
            request_id: RequestId,
        ) -> None:
            try:
                content = await response.aread()
                message = await read_message(content, request_id)
            except (httpx2.StreamError, ValueError) as exc:
                content = b"" if isinstance(exc, httpx2.StreamError) else content
                message = _unread(exc, request_id, content)
            if isinstance(message, JSONRPCError):
                _name_request(message, request_id)
            await read_stream_writer.send(SessionMessage(message))

        async def _handle_sse_event(
            self,
            sse: httpx2.ServerSentEvent,
            read_stream_writer: ContextSendStream[SessionMessage | Exception],
            original_request_id: RequestId | None = None,
            resumption_callback: Callable[[str], Awaitable[None]] | None = None,
        ) -> bool:
            if sse.event != "message" or not sse.data:
                return await super()._handle_sse_event(
                    sse, read_stream_writer, original_request_id, resumption_callback
                )
            try:
                message = await read_message(sse.data, original_request_id)
            except ValueError as exc:
                if original_request_id is None:
                    await read_stream_writer.send(exc)
                    return False
                message = _unread(exc, original_request_id, sse.data)
            is_answer = isinstance(message, JSONRPCResponse | JSONRPCError)
            if isinstance(message, JSONRPCResponse | JSONRPCError):
                if original_request_id is not None:
                    _name_request(message, original_request_id)
            elif (answered := answer_in_context()) is not None:
                answered.has_begun = True
            await read_stream_writer.send(SessionMessage(message))
            if sse.id and resumption_callback:
                await resumption_callback(sse.id)
            return is_answer

    transport = Transport(url, max_sse_event_size=http.max_bytes)
    arriving, read = create_context_streams[SessionMessage | Exception](0)
    write, leaving = create_context_streams[SessionMessage](0)
    async with arriving, read, write, leaving, anyio.create_task_group() as tasks:

        async def follow() -> None:
            await transport.handle_get_stream(client, arriving)
            while http.has_stream and http.look_after is not None:
                http.has_stream = False
                await anyio.sleep(REOPEN_SECONDS)
                try:
                    if not await http.look_after():
                        # Not now; try again later.
                        http.has_stream = True
                        continue
                except GatewayError:
                    # The session is over, and soon the connection.
                    return
                await transport.handle_get_stream(client, arriving)

        def listen() -> None:
            tasks.start_soon(follow)

        tasks.start_soon(transport.post_writer, client, leaving, arriving, write, listen, tasks)
        try:
            yield read, write
        finally:
            if transport.session_id:
                await transport.terminate_session(client)
            tasks.cancel_scope.cancel()
    await resync_tracer()


def _name_request(message: JSONRPCResponse | JSONRPCError, request_id: RequestId) -> None:
    """Set the id of a message to this request; servers often do not know which request an error answers."""
    if (answered := answer_in_context()) is not None:
        answered.names_request = message.id == request_id
    message.id = request_id


def _error_in(content: bytes | str) -> JsonObject | None:
    """Return the error in a response that is not JSON-RPC otherwise."""
    try:
        message = json.loads(content) if len(content) < LARGE else None
    except (ValueError, RecursionError):
        return None
    return sound_error(message.get("error")) if isinstance(message, dict) and "result" not in message else None


def _unread(error: Exception, request_id: RequestId, content: bytes | str) -> JSONRPCError:
    if (said := _error_in(content)) is not None:
        return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData.model_validate(said))
    is_json = not isinstance(error, json.JSONDecodeError | UnicodeDecodeError)
    reason = str(error) if is_json else f"the answer is not JSON: {content[:80]!r}"
    fault = AnswerFault(str(error), is_too_large=True) if isinstance(error, TooManyListedError) else None
    data = ErrorData(code=PARSE_ERROR, message=f"{UNREADABLE}{reason}", data=fault)
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=data)
