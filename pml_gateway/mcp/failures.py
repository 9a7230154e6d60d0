"""Translation of transport and SDK errors into the gateway's upstream errors."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator

import anyio
import httpx2
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import PARSE_ERROR, REQUEST_TIMEOUT

from pml_gateway.errors import (
    AnswerTooLargeError,
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
from pml_gateway.mcp.negotiation import ClosedAtVersionError
from pml_gateway.mcp.refusals import shown
from pml_gateway.mcp.sdk import UNREADABLE
from pml_gateway.mcp.session import CLOSED
from pml_gateway.processes.framing import AnswerFault
from pml_gateway.secrets.masking import mask_text
from pml_gateway.text import escaped, shortened

_REDIRECTED = "Redirect to "
"""The beginning of the SDK's error for a redirect to another origin."""

MAX_WORDS = 150
"""Maximum number of characters quoted of an error."""

_HOST = re.compile(r"[\w.:-]+")
"""A host that may be shown; in a malformed URL, the host may contain a secret from another part."""


def translate(error: BaseException, upstream_id: str) -> GatewayError:
    """Return the gateway's error for a fault at the boundary to `upstream_id`."""
    cause = innermost(error)
    if isinstance(cause, ConfigurationError):
        # The calling model did nothing wrong, and cannot fix a missing secret.
        return UpstreamUnusableError(f"{upstream_id}: {cause.message}", hint=cause.hint, details=cause.details)
    if isinstance(cause, GatewayError):
        if not cause.message.startswith(upstream_id):
            cause.message = f"{upstream_id}: {cause.message}"
        return cause
    match cause:
        case MCPError() if isinstance(fault := cause.error.data, AnswerFault):
            refused = AnswerTooLargeError if fault.is_too_large else UpstreamProtocolError
            return refused(f"{upstream_id}: {fault.reason}", hint=fault.hint)
        case MCPError(code=code, message=message) if code == PARSE_ERROR and message.startswith(UNREADABLE):
            reason = message.removeprefix(UNREADABLE).splitlines()[0][:300]
            kind = UpstreamUnavailableError if reason.startswith(CUT_SHORT) else UpstreamProtocolError
            return kind(f"{upstream_id}: {reason}")
        case ClosedAtVersionError():
            return _closed(upstream_id)
        case MCPError(code=code, message=message) if (code, message) == CLOSED:
            return _closed(upstream_id)
        case MCPError(code=code, message=message) if code == REQUEST_TIMEOUT and message.endswith("timed out"):
            return UpstreamTimeoutError(f"{upstream_id}: {cause.message}")
        case MCPError(message=message) if message.startswith(_REDIRECTED):
            location = mask_text(message.removeprefix(_REDIRECTED).partition(" not followed")[0])
            return UpstreamUnusableError(
                f"{upstream_id}: the server redirects requests to {shown(location)}, where the gateway does not follow",
                hint=f"correct servers.{upstream_id}.url; if that is a login page, the server wants credentials",
            )
        case MCPError():
            return UpstreamError(
                f"{upstream_id}: {cause.message}",
                details={"jsonrpc_code": cause.code, **({"data": cause.error.data} if cause.error.data else {})},
            )
        case httpx2.ConnectError() | httpx2.ConnectTimeout() | httpx2.ProxyError() | ConnectionRefusedError():
            error = unreachable(cause)
            return UpstreamUnavailableError(f"{upstream_id}: {error.message}", hint=error.hint, details=error.details)
        case httpx2.InvalidURL():
            # Its text quotes the URL, including secrets.
            return UpstreamUnusableError(
                f"{upstream_id}: the url is not valid", hint=f"check servers.{upstream_id}.url"
            )
        case httpx2.HTTPStatusError():
            return UpstreamUnavailableError(f"{upstream_id}: HTTP {cause.response.status_code}")
        case httpx2.HTTPError() | OSError() | anyio.ClosedResourceError() | anyio.BrokenResourceError():
            return UpstreamUnavailableError(f"{upstream_id}: {_text(cause)}")
        case _:
            return UpstreamProtocolError(f"{upstream_id}: {_text(cause)}")


def reconfigured(upstream_id: str) -> UpstreamUnavailableError:
    """Return the error for a call that waited for a connection of an upstream that is no longer wanted."""
    return UpstreamUnavailableError(
        f"{upstream_id}: its configuration changed while the call waited",
        hint="call again",
        details={"executed": "no"},
    )


def ended_at_start(upstream_id: str, hint: str = "") -> UpstreamUnavailableError:
    """Return the error for a server that ended before it answered anything."""
    return UpstreamUnavailableError(
        f"{upstream_id}: the server ended or closed the connection while starting", hint=hint
    )


def _closed(upstream_id: str) -> UpstreamUnavailableError:
    return UpstreamUnavailableError(
        f"{upstream_id}: the connection ended before the answer",
        hint="whether the call was executed is unknown",
        details={"executed": "unknown"},
    )


def _text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        # Its text names the file, whose path may contain secrets.
        return f"{type(error).__name__}: {error.strerror}"
    text = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__


def unreachable(error: BaseException) -> UpstreamUnavailableError:
    """Return the gateway's error for a connection that could not be made; nothing was executed."""
    reason, hint = _why(error)
    return UpstreamUnavailableError(f"cannot connect: {reason}", hint=hint, details={"executed": "no"})


def _why(error: BaseException) -> tuple[str, str]:
    host = _host(error)
    for cause in _causes(error):
        match cause:
            case httpx2.ProxyError():
                return f"the proxy refuses ({_words(cause)})", "check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
            case socket.gaierror():
                return (
                    f"the name {host or 'of the server'} is not known ({_words(cause)})",
                    "a DNS failure: check the host in the url, and the network",
                )
            case ssl.SSLCertVerificationError():
                return (
                    f"the certificate of {host or 'the server'} is not trusted ({cause.verify_message})",
                    "set SSL_CERT_FILE to the authority that signed it, or correct the certificate",
                )
            case ssl.SSLError():
                return (
                    f"TLS with {host or 'the server'} failed ({_words(cause)})",
                    "does the server speak https? if not, the url begins with http://",
                )
            case ConnectionRefusedError():
                return "the connection was refused; nothing listens there", "is it running?"
            case httpx2.ConnectTimeout() | TimeoutError():
                return "no connection within the limit", "check the host, the port and the firewall between"
    return _words(error), "is it running?"


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield innermost(cause)
        cause = innermost(cause)
        cause = cause.__cause__ or cause.__context__


def _host(error: BaseException) -> str:
    host = str(getattr(error, "host", ""))
    if isinstance(error, httpx2.RequestError):
        try:
            host = error.request.url.host
        except RuntimeError:
            host = ""
    return host if _HOST.fullmatch(host) else ""


def _words(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return shortened(escaped(text.splitlines()[0] if text else type(error).__name__), MAX_WORDS)
