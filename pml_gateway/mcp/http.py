"""HTTP details next to the SDK's message streams: credentials of requests, and status and headers of responses."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol, Self

import httpx2

from pml_gateway.errors import GatewayError, UpstreamUnavailableError
from pml_gateway.mcp.bodies import bound
from pml_gateway.mcp.refusals import MAX_READ, HttpRefusal, shown
from pml_gateway.processes.installs import Install

SESSION_HEADER = "mcp-session-id"

CREDENTIALS_ENDED = 401
CREDENTIALS_REFUSED = (401, 403)

OK = 200
FIRST_REFUSAL = 400
JSON = "application/json"
EVENTS = "text/event-stream"
_answered: ContextVar[RequestOutcome | None] = ContextVar("answered", default=None)
_PARAMETER = r'(?:^|[\s,]){name}\s*=\s*(?:"([^"]*)"|([^\s,]+))'
MAX_SCOPE = 500
MAX_TEXT = 200


class Credentials(Protocol):
    """The credentials for requests to one upstream; implemented by the logins of `upstreams.auth`."""

    async def headers(self) -> dict[str, str]:
        """Return the headers of a request made outside the SDK's client."""
        ...

    async def renewed(self, sent: str | None) -> bool:
        """Renew the credentials; return True if a request refused with this header is worth repeating."""
        ...

    async def refusal(self, challenge: Challenge) -> GatewayError | None:
        """Return the error for a response that refuses the credentials."""
        ...

    def for_httpx(self) -> httpx2.Auth | None:
        """Return the credentials for the SDK's client."""
        ...


class SessionUnknownError(UpstreamUnavailableError):
    """A server refused a request because it no longer knows the session.

    `executed` in the details is `no` if the request may be repeated in a new session.
    """

    @classmethod
    def of(cls, refusal: HttpRefusal) -> Self:
        """Return the error for a refusal of the session."""
        said = shown(refusal.text) or f"HTTP {refusal.status}"
        return cls(f"the server no longer knows the session: {said}", details={"executed": refusal.executed})


@dataclass(slots=True)
class ConnectionFacts:
    """State shared with a transport next to the message streams, including HTTP details that the SDK does not expose.

    `max_bytes` is the maximum size of a message; `install` the first start of a package; `pid` the process that was
    started, and `was_read` is False if it ended without reading anything. `has_stream` is True if the server offers a
    notification stream; once that has ended and cannot be reopened, `look_after` checks if the session is still alive.
    Neither side is told of `denied_extensions`.
    """

    max_bytes: int = 64 * 1024**2
    authorization: Credentials | None = None
    session_id: str | None = None
    install: Install | None = None
    pid: int | None = None
    was_read: bool = True
    cookies: dict[str, str] = field(default_factory=dict)
    has_stream: bool = False
    look_after: Callable[[], Awaitable[bool]] | None = None
    denied_extensions: frozenset[str] = frozenset()

    async def headers(self) -> dict[str, str]:
        """Return the authorization headers of a request made outside the SDK's client."""
        return await self.authorization.headers() if self.authorization is not None else {}

    async def renewed(self, sent: str | None) -> bool:
        """Renew the credentials; return True if a request refused with this header is worth repeating."""
        return self.authorization is not None and await self.authorization.renewed(sent)

    async def refusal(self, status: int, challenge: str, said: str) -> GatewayError | None:
        """Return the error for a response that refuses the credentials; None for any other response."""
        if status in CREDENTIALS_REFUSED and self.authorization is not None:
            return await self.authorization.refusal(Challenge(status, challenge, said))
        return None

    async def note(self, response: httpx2.Response) -> None:
        """Record status and headers of a response to the SDK's client, and report a refusal to the sender."""
        status, headers = response.status_code, response.headers
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        is_refusal = status >= FIRST_REFUSAL
        bound(
            response, MAX_READ if is_refusal else self.max_bytes, is_endless=not is_refusal and content_type == EVENTS
        )
        # Load balancers use a cookie to keep a session on one machine.
        self.cookies.update(dict(response.cookies))
        method = response.request.method
        if not is_refusal:
            self.has_stream = self.has_stream or (method == "GET" and content_type == EVENTS)
            self.session_id = headers.get(SESSION_HEADER, self.session_id)
        request = _answered.get()
        if request is None:
            return
        is_foreign = status == OK and method == "POST" and not content_type.startswith((JSON, EVENTS))
        request.refusal = await read_refusal(response) if is_refusal or is_foreign else None


async def read_refusal(response: httpx2.Response) -> HttpRefusal:
    """Read a response that is an error or not a message; its body is bounded, and may be missing."""
    try:
        body = await response.aread()
    except (httpx2.StreamError, httpx2.TransportError):
        body = b""
    try:
        request_id = json.loads(response.request.content).get("id")
    except (ValueError, AttributeError, httpx2.RequestNotRead):
        request_id = None
    return HttpRefusal.of_answer(response.status_code, response.headers, body, request_id)


class RequestOutcome:
    """The outcome of one request of the SDK's client, apart from the message.

    `refusal` is set if the response is not a message, `failure` if the connection failed. `names_request` is False once
    the error in a message carries another id, and `has_begun` is True once part of the answer has arrived.
    """

    def __init__(self) -> None:
        self.refusal: HttpRefusal | None = None
        self.failure: Exception | None = None
        self.names_request = True
        self.has_begun = False


@contextmanager
def noting_answer() -> Iterator[RequestOutcome]:
    """Yield the outcome of the request sent in this block.

    The SDK turns statuses into errors that do not contain them, and runs what it sends in the sender's context.
    """
    answered = RequestOutcome()
    token = _answered.set(answered)
    try:
        yield answered
    finally:
        _answered.reset(token)


def answer_in_context() -> RequestOutcome | None:
    """Return the outcome so far of the request of this context."""
    return _answered.get()


def plain(text: str) -> str:
    """Return a server's text, shortened and without control characters."""
    return "".join(character for character in text if character.isprintable())[:MAX_TEXT]


@dataclass(frozen=True, slots=True)
class Challenge:
    """The status and the `WWW-Authenticate` header of a refusal, and the start of its body, masked."""

    status: int
    header: str = ""
    said: str = ""

    @property
    def is_bearer(self) -> bool:
        """Return True if the server wants an OAuth bearer token."""
        return re.search(r"(?:^|,\s*)bearer\b", self.header, re.IGNORECASE) is not None

    @property
    def missing_scope(self) -> str | None:
        """Return the scope that the token lacks, possibly empty; None if that is not the reason."""
        if self.status != 403 or self._parameter("error") != "insufficient_scope":
            return None
        scope = self._parameter("scope") or ""
        return scope[:MAX_SCOPE] if scope.isprintable() else ""

    def _parameter(self, name: str) -> str | None:
        found = re.search(_PARAMETER.format(name=name), self.header, re.IGNORECASE)
        return (found[1] or found[2]) if found else None
