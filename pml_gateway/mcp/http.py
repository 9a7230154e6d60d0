"""HTTP beside the SDK's message streams: a request's credentials, and what an answer's status and headers say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

import httpx2

from pml_gateway.errors import GatewayError

SESSION_HEADER = "mcp-session-id"

CREDENTIALS_ENDED = 401
CREDENTIALS_REFUSED = (401, 403)
SESSION_UNKNOWN = 404
SERVER_FAILED = (*range(500, 600), 429)
"""The server, or what stands before it, cannot answer now; some mean that nothing was executed, but none surely."""


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


class SessionUnknownError(Exception):
    """A server answered 404 to a session it knew before: it executed nothing, and a new session is needed."""


@dataclass(slots=True)
class HttpSide:
    """What a transport is told and says beside the message streams; of HTTP, what the SDK keeps to itself.

    `max_bytes` is the size of the largest message that is taken; `refused` the error for the last answer to the SDK's
    client, if it refused the credentials; `failed_with` the status by which it said that the server cannot answer;
    `pid` the process that was started.
    """

    max_bytes: int = 64 * 1024**2
    authorization: Credentials | None = None
    refused: GatewayError | None = None
    failed_with: int | None = None
    session_id: str | None = None
    pid: int | None = None
    cookies: dict[str, str] = field(default_factory=dict)

    async def headers(self) -> dict[str, str]:
        """What a request beside the SDK's client carries to be let in."""
        return await self.authorization.headers() if self.authorization is not None else {}

    async def renewed(self, sent: str | None) -> bool:
        """Whether it is worth sending a request again that was refused with this header."""
        return self.authorization is not None and await self.authorization.renewed(sent)

    async def refusal(self, status: int, challenge: str) -> GatewayError | None:
        """The error for an answer that refuses the credentials; None for every other answer."""
        if status in CREDENTIALS_REFUSED and self.authorization is not None:
            return await self.authorization.refusal(Challenge(status, challenge))
        return None

    async def note(self, status: int, challenge: str) -> None:
        """Keep whether an answer to the SDK's client refused the credentials, and tell whoever sent the request."""
        self.refused = await self.refusal(status, challenge)
        request = _refusal.get()
        if request is not None:
            request.error = self.refused


class Refusal:
    """What one request was refused with, if it was."""

    error: GatewayError | None = None


_refusal: ContextVar[Refusal | None] = ContextVar("refusal", default=None)


@contextmanager
def noting_refusal() -> Iterator[Refusal]:
    """Learn how the request sent in this block was refused: the SDK answers 401 with an error that does not say so,
    and runs what it sends in its sender's context."""
    refusal = Refusal()
    token = _refusal.set(refusal)
    try:
        yield refusal
    finally:
        _refusal.reset(token)


_PARAMETER = r'(?:^|[\s,]){name}\s*=\s*(?:"([^"]*)"|([^\s,]+))'
MAX_SCOPE = 500

MAX_TEXT = 200


def plain(text: str) -> str:
    """What a server said, short and without characters that a terminal obeys."""
    return "".join(character for character in text if character.isprintable())[:MAX_TEXT]


@dataclass(frozen=True, slots=True)
class Challenge:
    """The status and the `WWW-Authenticate` header of a refusal."""

    status: int
    header: str = ""

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
