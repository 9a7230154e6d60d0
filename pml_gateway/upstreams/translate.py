"""Whatever a transport or the SDK raised becomes one of the gateway's upstream errors."""

from __future__ import annotations

import anyio
import httpx2
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import CONNECTION_CLOSED, REQUEST_TIMEOUT

from pml_gateway.errors import (
    GatewayError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeoutError,
    UpstreamUnavailableError,
    innermost,
)

_CLOSED = (CONNECTION_CLOSED, "Connection closed")
"""What the SDK raises; servers use the same code for errors of their own."""


def translate(error: BaseException, upstream_id: str, *, refused: GatewayError | None = None) -> GatewayError:
    """The gateway's error for a fault at the boundary to `upstream_id`, which may have refused the credentials."""
    cause = innermost(error)
    if refused is not None and isinstance(cause, MCPError | httpx2.HTTPStatusError):
        return refused
    if isinstance(cause, GatewayError):
        if not cause.message.startswith(upstream_id):
            cause.message = f"{upstream_id}: {cause.message}"
        return cause
    match cause:
        case MCPError(code=code, message=message) if (code, message) == _CLOSED:
            return UpstreamUnavailableError(
                f"{upstream_id}: the connection ended before the answer",
                hint="whether the call was executed is unknown",
                details={"executed": "unknown"},
            )
        case MCPError(code=code, message=message) if code == REQUEST_TIMEOUT and message.endswith("timed out"):
            return UpstreamTimeoutError(f"{upstream_id}: {cause.message}")
        case MCPError():
            return UpstreamError(
                f"{upstream_id}: {cause.message}",
                details={"jsonrpc_code": cause.code, **({"data": cause.error.data} if cause.error.data else {})},
            )
        case httpx2.ConnectError() | httpx2.ConnectTimeout() | ConnectionError():
            return UpstreamUnavailableError(f"{upstream_id}: cannot connect ({_text(cause)})", hint="is it running?")
        case httpx2.InvalidURL():
            # Its text quotes the URL, secrets and all.
            return UpstreamUnavailableError(
                f"{upstream_id}: the url is not valid", hint=f"check servers.{upstream_id}.url"
            )
        case httpx2.HTTPStatusError():
            return UpstreamUnavailableError(f"{upstream_id}: HTTP {cause.response.status_code}")
        case httpx2.HTTPError() | OSError() | anyio.ClosedResourceError() | anyio.BrokenResourceError():
            return UpstreamUnavailableError(f"{upstream_id}: {_text(cause)}")
        case _:
            return UpstreamProtocolError(f"{upstream_id}: {_text(cause)}")


def _text(error: BaseException) -> str:
    text = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__
