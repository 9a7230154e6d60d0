"""Errors of transports and of the SDK, translated into the gateway's upstream errors."""

from __future__ import annotations

import anyio
import httpx2
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import CONNECTION_CLOSED, PARSE_ERROR, REQUEST_TIMEOUT

from pml_gateway.errors import (
    ConfigurationError,
    GatewayError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeoutError,
    UpstreamUnavailableError,
    UpstreamUnusableError,
    innermost,
)
from pml_gateway.mcp.bodies import CUT_SHORT
from pml_gateway.mcp.http import HttpSide
from pml_gateway.processes.framing import AnswerFault

_CLOSED = (CONNECTION_CLOSED, "Connection closed")
"""What the SDK raises; servers use the same code for errors of their own."""

_HTTP_FAILED = "Server returned an error response"
"""What the SDK says of a status for which the body gives no error."""

_REDIRECTED = "Redirect to "
"""What the SDK says of a redirect to another origin."""

_UNREADABLE = "Failed to parse JSON response: "
"""What the SDK says of a body that is no message; the reason follows."""


def translate(error: BaseException, upstream_id: str, *, http: HttpSide | None = None) -> GatewayError:
    """The gateway's error for a fault at the boundary to `upstream_id`."""
    cause = innermost(error)
    if http is not None and http.refused is not None and isinstance(cause, MCPError | httpx2.HTTPStatusError):
        return http.refused
    if isinstance(cause, ConfigurationError):
        # Whoever calls a tool did nothing wrong, and can do nothing about a secret that is not there.
        return UpstreamUnusableError(f"{upstream_id}: {cause.message}", hint=cause.hint, details=cause.details)
    if isinstance(cause, GatewayError):
        if not cause.message.startswith(upstream_id):
            cause.message = f"{upstream_id}: {cause.message}"
        return cause
    if isinstance(cause, MCPError) and cause.message == _HTTP_FAILED:
        status = http.failed_with if http else None
        return UpstreamUnavailableError(
            f"{upstream_id}: the server answered with HTTP {status or 'status 500 or above'}",
            details={"http_status": status} if status else {},
        )
    match cause:
        case MCPError() if isinstance(fault := cause.error.data, AnswerFault):
            return UpstreamProtocolError(f"{upstream_id}: {fault.reason}", hint=fault.hint)
        case MCPError(code=code, message=message) if code == PARSE_ERROR and message.startswith(_UNREADABLE):
            reason = message.removeprefix(_UNREADABLE).splitlines()[0][:300]
            kind = UpstreamUnavailableError if reason.startswith(CUT_SHORT) else UpstreamProtocolError
            return kind(f"{upstream_id}: {reason}")
        case MCPError(code=code, message=message) if (code, message) == _CLOSED:
            return UpstreamUnavailableError(
                f"{upstream_id}: the connection ended before the answer",
                hint="whether the call was executed is unknown",
                details={"executed": "unknown"},
            )
        case MCPError(code=code, message=message) if code == REQUEST_TIMEOUT and message.endswith("timed out"):
            return UpstreamTimeoutError(f"{upstream_id}: {cause.message}")
        case MCPError(message=message) if message.startswith(_REDIRECTED):
            return UpstreamUnusableError(
                f"{upstream_id}: the server sends requests elsewhere, where the gateway does not follow",
                hint=f"correct servers.{upstream_id}.url",
            )
        case MCPError():
            return UpstreamError(
                f"{upstream_id}: {cause.message}",
                details={"jsonrpc_code": cause.code, **({"data": cause.error.data} if cause.error.data else {})},
            )
        case httpx2.ConnectError() | httpx2.ConnectTimeout() | ConnectionError():
            return UpstreamUnavailableError(f"{upstream_id}: cannot connect ({_text(cause)})", hint="is it running?")
        case httpx2.InvalidURL():
            # Its text quotes the URL, secrets and all.
            return UpstreamUnusableError(
                f"{upstream_id}: the url is not valid", hint=f"check servers.{upstream_id}.url"
            )
        case httpx2.HTTPStatusError():
            return UpstreamUnavailableError(f"{upstream_id}: HTTP {cause.response.status_code}")
        case httpx2.HTTPError() | OSError() | anyio.ClosedResourceError() | anyio.BrokenResourceError():
            return UpstreamUnavailableError(f"{upstream_id}: {_text(cause)}")
        case _:
            return UpstreamProtocolError(f"{upstream_id}: {_text(cause)}")


def _text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        # Its text names the file, whose path may be made of secrets.
        return f"{type(error).__name__}: {error.strerror}"
    text = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__
