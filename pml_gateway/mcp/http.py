"""HTTP beside the SDK's message streams: a request's credentials, and what an answer's status and headers say."""

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
from pml_gateway.mcp.refusals import MAX_READ, Refusal, shown

SESSION_HEADER = "mcp-session-id"

CREDENTIALS_ENDED = 401
CREDENTIALS_REFUSED = (401, 403)


class Credentials(Protocol):
    """What lets requests to one upstream in; the logins of `upstreams.auth` are."""

    async def headers(self) -> dict[str, str]:
        """What a request beside the SDK's client carries."""
        ...

    async def renewed(self, sent: str | None) -> bool:
        """Whether it is worth sending a request again that was refused with this header."""
        ...

    async def refusal(self, challenge: Challenge) -> GatewayError | None:
        """The error for an answer that refuses the credentials."""
        ...

    def for_httpx(self) -> httpx2.Auth | None:
        """The same for the SDK's client."""
        ...


class SessionUnknownError(UpstreamUnavailableError):
    """A server refused a request because it no longer knows the session.

    `executed` in the details is `no` where the request may be repeated in a new session.
    """

    @classmethod
    def of(cls, refusal: Refusal) -> Self:
        """Return the error for a refusal of the session."""
        said = shown(refusal.text) or f"HTTP {refusal.status}"
        return cls(f"the server no longer knows the session: {said}", details={"executed": refusal.executed})


@dataclass(slots=True)
class HttpSide:
    """What a transport is told and says beside the message streams; of HTTP, what the SDK keeps to itself.

    `max_bytes` is the size of the largest message that is taken; `pid` the process that was started, and `was_read` is
    False if it ended without reading anything. `has_stream` says that the server gives a stream of its notifications;
    once that ended and cannot be opened again, `look_after` finds out whether the session goes on.
    """

    max_bytes: int = 64 * 1024**2
    authorization: Credentials | None = None
    session_id: str | None = None
    pid: int | None = None
    was_read: bool = True
    cookies: dict[str, str] = field(default_factory=dict)
    has_stream: bool = False
    look_after: Callable[[], Awaitable[bool]] | None = None

    async def headers(self) -> dict[str, str]:
        """What a request beside the SDK's client carries to be let in."""
        return await self.authorization.headers() if self.authorization is not None else {}

    async def renewed(self, sent: str | None) -> bool:
        """Whether it is worth sending a request again that was refused with this header."""
        return self.authorization is not None and await self.authorization.renewed(sent)

    async def refusal(self, status: int, challenge: str, said: str) -> GatewayError | None:
        """The error for an answer that refuses the credentials; None for every other answer."""
        if status in CREDENTIALS_REFUSED and self.authorization is not None:
            return await self.authorization.refusal(Challenge(status, challenge, said))
        return None

    async def note(self, response: httpx2.Response) -> None:
        """Keep what an answer to the SDK's client says beside its message, and tell the sender of the request."""
        status, headers = response.status_code, response.headers
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        is_refusal = status >= FIRST_REFUSAL
        bound(
            response, MAX_READ if is_refusal else self.max_bytes, is_endless=not is_refusal and content_type == EVENTS
        )
        # Balancers keep a session at one machine by a cookie.
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


OK = 200
FIRST_REFUSAL = 400
JSON = "application/json"
EVENTS = "text/event-stream"


async def read_refusal(response: httpx2.Response) -> Refusal:
    """Read an answer that is an error or no message; its body is bounded, and may be missing."""
    try:
        body = await response.aread()
    except (httpx2.StreamError, httpx2.TransportError):
        body = b""
    try:
        request_id = json.loads(response.request.content).get("id")
    except (ValueError, AttributeError, httpx2.RequestNotRead):
        request_id = None
    return Refusal.of_answer(response.status_code, response.headers, body, request_id)


class Answered:
    """What one request of the SDK's client was answered with, beside the message.

    `refusal` is set where the answer is not a message, `failure` where the connection failed. `names_request` is False
    once the error in a message carries another id, and `has_begun` is True once a part of the answer has come.
    """

    def __init__(self) -> None:
        self.refusal: Refusal | None = None
        self.failure: Exception | None = None
        self.names_request = True
        self.has_begun = False


_answered: ContextVar[Answered | None] = ContextVar("answered", default=None)


@contextmanager
def noting_answer() -> Iterator[Answered]:
    """Learn how the request sent in this block was answered: the SDK turns statuses into errors that do not say so,
    and runs what it sends in its sender's context."""
    answered = Answered()
    token = _answered.set(answered)
    try:
        yield answered
    finally:
        _answered.reset(token)


def answer_in_context() -> Answered | None:
    """Return what the request of this context is answered with so far."""
    return _answered.get()


_PARAMETER = r'(?:^|[\s,]){name}\s*=\s*(?:"([^"]*)"|([^\s,]+))'
MAX_SCOPE = 500

MAX_TEXT = 200


def plain(text: str) -> str:
    """What a server said, short and without characters that a terminal obeys."""
    return "".join(character for character in text if character.isprintable())[:MAX_TEXT]


@dataclass(frozen=True, slots=True)
class Challenge:
    """The status and the `WWW-Authenticate` header of a refusal, and the start of its body, masked."""

    status: int
    header: str = ""
    said: str = ""

    @property
    def is_bearer(self) -> bool:
        """Whether the server wants a token as OAuth gives them."""
        return re.search(r"(?:^|,\s*)bearer\b", self.header, re.IGNORECASE) is not None

    @property
    def missing_scope(self) -> str | None:
        """The scope that the token lacks, which may be unnamed; None where that is not the reason."""
        if self.status != 403 or self._parameter("error") != "insufficient_scope":
            return None
        scope = self._parameter("scope") or ""
        return scope[:MAX_SCOPE] if scope.isprintable() else ""

    def _parameter(self, name: str) -> str | None:
        found = re.search(_PARAMETER.format(name=name), self.header, re.IGNORECASE)
        return (found[1] or found[2]) if found else None
