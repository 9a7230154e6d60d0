"""The protocol version of a connection: offered, refused, offered again as an older one, and agreed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import anyio
import httpx2
from mcp.shared.exceptions import MCPError
from mcp_types import DiscoverResult
from mcp_types.jsonrpc import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    KNOWN_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)
from pydantic import ValidationError

from pml_gateway.config.servers import Transport
from pml_gateway.errors import GatewayError, UpstreamError
from pml_gateway.mcp.http import FIRST_REFUSAL
from pml_gateway.mcp.session import CLOSED, PassthroughSession

MODERN = "modern"
HANDSHAKE = "handshake"

OLDER_VERSIONS = ("2025-06-18", "2024-11-05", "2025-03-26")
"""Versions offered, in this order, to servers that refuse the latest and do not name a supported one. Most servers that
support a single version support one of the first two."""

DISCOVER_SHARE = 0.3
DISCOVER_SECONDS = 10.0
"""Time limit for `server/discover`: this share of the connect timeout, but at most this many seconds; some old servers
never answer unknown requests."""

LATE_SECONDS = 1.0
"""Time that a process has to answer `server/discover` after it has answered the handshake that was sent later."""

FIRST_FAULT = 500
"""The first HTTP status that says nothing about the request."""

_NOT_DISCOVERED = (MCPError, ValidationError, RuntimeError, UpstreamError, httpx2.TransportError)
"""The ways in which a server fails to answer `server/discover`."""

_NOT_ABOUT_VERSIONS = frozenset({401, 402, 403, 404, 405, 407, 408, 410, 429, 502, 503, 504})
"""Statuses unrelated to the version: they concern credentials, the address, the proxy or the load."""


class WrongEraError(Exception):
    """The process does not support the handshake; it must be restarted with the modern protocol."""


class ClosedAtVersionError(Exception):
    """The server ended the connection after it was offered a version.

    The argument is the version to offer on the next connection; empty if none is left.
    """


@dataclass(frozen=True, slots=True)
class NegotiatedProtocol:
    """The known protocol of a server: its era and, for the handshake, the version it accepted; empty if unknown."""

    era: str = ""
    version: str = ""


async def negotiate(
    session: PassthroughSession, transport: Transport, spoken: NegotiatedProtocol, connect_timeout: float
) -> bool:
    """Negotiate the era and the version.

    The SDK's probe is not used: some stdio servers exit on it, and others never answer it.

    Returns:
        True if the modern protocol was offered and the server is sure not to speak it: it refused it, or answered a
        later request and not this one.

    Raises:
        WrongEraError: the process supports only the modern protocol.
        ClosedAtVersionError: the server closed the connection.
        GatewayError, MCPError: the server refused every version, or the connection failed.
    """
    is_one_stream = transport is not Transport.HTTP
    if transport is Transport.SSE or spoken.era == HANDSHAKE or (transport is Transport.STDIO and spoken.era != MODERN):
        try:
            await _initialize(session, spoken.version, is_one_stream=is_one_stream)
        except MCPError as error:
            is_wrong_era = error.code in (UNSUPPORTED_PROTOCOL_VERSION, METHOD_NOT_FOUND, INVALID_REQUEST)
            named = versions_in("", error.error.data) & set(MODERN_PROTOCOL_VERSIONS)
            if transport is Transport.STDIO and (is_wrong_era or named):
                raise WrongEraError from error
            raise
        return False
    seconds = min(connect_timeout * DISCOVER_SHARE, DISCOVER_SECONDS)
    if is_one_stream:
        return await _discover_or_initialize(session, spoken.version, seconds)
    try:
        await session.discover_within(seconds)
    except httpx2.ConnectError:
        raise
    except _NOT_DISCOVERED as error:
        await _initialize(session, spoken.version, is_one_stream=False)
        return _is_refusal(error)
    return False


async def _discover_or_initialize(session: PassthroughSession, version: str, seconds: float) -> bool:
    """Negotiate with a process; return True if it is sure not to speak the modern protocol.

    A process that is slow to start reads both requests at once, so a late answer to the first one counts.
    """
    answers: list[DiscoverResult | Exception] = []
    answered = anyio.Event()
    handshake = anyio.CancelScope()

    async def discover() -> None:
        try:
            answers.append(await session.discover_within(None))
            handshake.cancel()
        except _NOT_DISCOVERED as error:
            answers.append(error)
        answered.set()

    def discovered() -> DiscoverResult | None:
        return next((each for each in answers if isinstance(each, DiscoverResult)), None)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(discover)
        with anyio.move_on_after(seconds):
            await answered.wait()
        if discovered() is None:
            refusal = None
            try:
                with handshake:
                    await _initialize(session, version, is_one_stream=True)
            except MCPError as error:
                # The first request alone may decide how the process reads the others.
                refusal = error
            with anyio.move_on_after(LATE_SECONDS):
                await answered.wait()
            if refusal is not None and discovered() is None:
                raise refusal
        tasks.cancel_scope.cancel()
    if (result := discovered()) is not None:
        session.adopt(result)
        return False
    return all(isinstance(each, Exception) and _is_refusal(each) for each in answers)


def _is_refusal(error: Exception) -> bool:
    """Return True if a server that failed to answer `server/discover` has read it and does not know it."""
    match error:
        case MCPError():
            return error.code != REQUEST_TIMEOUT and (error.code, error.message) != CLOSED
        case UpstreamError():
            status = error.details.get("http_status", FIRST_REFUSAL)
            return status < FIRST_FAULT and status not in _NOT_ABOUT_VERSIONS
        case _:
            return isinstance(error, ValidationError | RuntimeError)


async def _initialize(session: PassthroughSession, version: str, *, is_one_stream: bool) -> None:
    """Offer a version, then older ones while the server refuses them; give up if a single stream fails."""
    offered: list[str] = []
    offer = version if version in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION
    refusal: Exception | None = None
    while offer:
        offered.append(offer)
        try:
            await session.initialize_with(offer)
            return
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            raise ClosedAtVersionError(_on_next_connection(offered)) from error
        except (MCPError, UpstreamError, httpx2.TransportError) as error:
            is_closed = isinstance(error, MCPError) and (error.code, error.message) == CLOSED
            if is_closed or (is_one_stream and isinstance(error, httpx2.TransportError)):
                raise ClosedAtVersionError(_on_next_connection(offered)) from error
            # The first refusal says most: it concerns the expected version.
            refusal = refusal or error
            offer = _next(error, offered)
    assert refusal is not None
    raise refusal


def _on_next_connection(offered: Sequence[str]) -> str:
    """Return the version to offer on the next connection after this one ended.

    If the server had refused a version before, the last one offered may not have reached it, so it is offered again.
    """
    return offered[-1] if len(offered) > 1 else _older_than(offered[0])


def _older_than(version: str) -> str:
    return next(iter(_rest_after(version)), "")


def _rest_after(version: str) -> Sequence[str]:
    return OLDER_VERSIONS[OLDER_VERSIONS.index(version) + 1 :] if version in OLDER_VERSIONS else OLDER_VERSIONS


def _next(error: Exception, offered: Sequence[str]) -> str:
    """Return the version to offer after a refusal; empty if the refusal has another reason, or none is left."""
    named: set[str] = set()
    match error:
        case httpx2.ConnectError() | httpx2.ConnectTimeout() | httpx2.ProxyError():
            return ""
        case MCPError():
            if error.code in (METHOD_NOT_FOUND, PARSE_ERROR):
                return ""
            named = versions_in(error.message, error.error.data)
        case GatewayError():
            status = error.details.get("http_status")
            if status is None or status < FIRST_REFUSAL or status in _NOT_ABOUT_VERSIONS:
                return ""
            named = versions_in(error.message, error.details.get("data"))
    named.difference_update(offered)
    best = [each for each in reversed(HANDSHAKE_PROTOCOL_VERSIONS) if each in named]
    order = (*best, *_rest_after(offered[-1]), *OLDER_VERSIONS)
    return next((each for each in order if each not in offered), "")


def versions_in(message: str, data: object) -> set[str]:
    """Return the known versions named in a refusal, in its data (`supported`) or else in its text."""
    supported = data.get("supported") if isinstance(data, dict) else None
    text = json.dumps(supported or [message, data], default=str)
    return {each for each in KNOWN_PROTOCOL_VERSIONS if each in text}
