"""The transport of the first protocol version: events arrive on one stream, and requests go to an address it names.

The SDK's own implementation ends at the first refused request, without informing the sender.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urljoin

import anyio
import anyio.abc
import httpx2
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCRequest
from mcp_types.jsonrpc import INTERNAL_ERROR, ErrorData

from pml_gateway.errors import UpstreamProtocolError, UpstreamUnusableError
from pml_gateway.log import get_logger
from pml_gateway.mcp.http import EVENTS, FIRST_REFUSAL, ConnectionFacts, answer_in_context, read_refusal
from pml_gateway.mcp.sdk import (
    ContextReceiveStream,
    ContextSendStream,
    TransportStreams,
    create_context_streams,
    sse_within_origin,
    stream_within_origin,
)
from pml_gateway.processes.messages import read_message

logger = get_logger(__name__)

Incoming = ContextSendStream[SessionMessage | Exception]


@asynccontextmanager
async def sse_streams(url: str, client: httpx2.AsyncClient, http: ConnectionFacts) -> AsyncIterator[TransportStreams]:
    """Open the event stream, and send messages to the address that it names.

    Raises:
        GatewayError: the server refused the stream, or named an address on another origin.
        httpx2.TransportError: the server cannot be reached.
    """
    async with sse_within_origin(client, url, max_event_size=http.max_bytes) as source:
        response = source.response
        if response.status_code >= FIRST_REFUSAL or not _is_stream(response):
            refusal = await read_refusal(response)
            raise await http.refusal(refusal.status, refusal.challenge, refusal.said) or refusal.as_http_error()
        arriving, read = create_context_streams[SessionMessage | Exception](0)
        write, leaving = create_context_streams[SessionMessage](0)
        async with arriving, read, write, leaving, anyio.create_task_group() as tasks:
            address = await tasks.start(_receive, url, source, arriving)
            tasks.start_soon(_send, address, client, leaving, arriving)
            yield read, write
            tasks.cancel_scope.cancel()


def _is_stream(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").lower().startswith(EVENTS)


async def _receive(
    url: str, source: httpx2.EventSource, arriving: Incoming, *, task_status: anyio.abc.TaskStatus[str]
) -> None:
    """Pass on the server's messages while the stream lasts."""
    address = ""
    async with arriving:
        try:
            async for event in source:
                if event.event == "endpoint" and not address:
                    address = _address(url, event.data)
                    task_status.started(address)
                elif event.event == "message" and event.data and address:
                    try:
                        await arriving.send(SessionMessage(await read_message(event.data)))
                    except ValueError as error:
                        await arriving.send(error)
        except (httpx2.TransportError, httpx2.StreamError) as error:
            logger.debug("the stream of events ended: %s", error)
        if not address:
            raise UpstreamProtocolError("the stream of events ended before it named an address for requests")


def _address(url: str, named: str) -> str:
    address = httpx2.URL(urljoin(url, named))
    own = httpx2.URL(url)
    if (address.scheme, address.host, address.port) != (own.scheme, own.host, own.port):
        raise UpstreamUnusableError(
            f"the server names an SSE endpoint on another origin ({_origin(address)}), where no request is sent",
            hint=f"the url is on {_origin(own)}; use the address that the server knows itself by, or "
            "correct the server or the proxy before it",
        )
    return str(address)


def _origin(url: httpx2.URL) -> str:
    return f"{url.scheme}://{url.host}" + (f":{url.port}" if url.port is not None else "")


async def _send(
    address: str, client: httpx2.AsyncClient, leaving: ContextReceiveStream[SessionMessage], arriving: Incoming
) -> None:
    """Send messages in order, each in its sender's context."""

    async def post(item: SessionMessage) -> None:
        message = item.message
        content = message.model_dump(by_alias=True, mode="json", exclude_unset=True)
        try:
            async with stream_within_origin(client, "POST", address, json=content) as response:
                if response.status_code < FIRST_REFUSAL and response.next_request is None:
                    return
                # `ConnectionFacts.note` has already reported the response to the sender.
                reason = f"HTTP {response.status_code}"
        except httpx2.TransportError as error:
            answered = answer_in_context()
            if answered is None or not isinstance(message, JSONRPCRequest):
                raise
            answered.failure, reason = error, str(error)
        logger.debug("a message did not arrive: %s", reason)
        if isinstance(message, JSONRPCRequest):
            refused = ErrorData(code=INTERNAL_ERROR, message=reason)
            # A stream that has ended has already ended its requests.
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                await arriving.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=message.id, error=refused)))

    async for item in leaving:
        context = leaving.last_context
        async with anyio.create_task_group() as tasks:
            if context is None:
                tasks.start_soon(post, item)
            else:
                context.run(tasks.start_soon, post, item)
