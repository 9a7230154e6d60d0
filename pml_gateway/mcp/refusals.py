"""Responses that are errors: their HTTP status, JSON-RPC error and text, and the gateway's error for them."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import INVALID_REQUEST

from pml_gateway.errors import UpstreamProtocolError, UpstreamUnavailableError
from pml_gateway.foreign_json import repaired, sound_error
from pml_gateway.secrets.masking import mask_text
from pml_gateway.text import escaped, shortened
from pml_gateway.types import JsonObject

MAX_SHOWN = 300
"""Maximum number of characters of a body that an error quotes."""

MAX_READ = 64 * 1024
"""Maximum number of bytes read of an error's body: proxies and frameworks write less."""

MAX_RETRY_AFTER = 24 * 3600.0
"""Maximum seconds that a server may ask the gateway to wait; after a longer pause, it can ask again."""

_OK = 200
_EXECUTION_UNKNOWN_FROM = 500
_TAGS = re.compile(r"<(script|style)\b.*?</\1\s*>|<!--.*?-->|<[^>]*>", re.IGNORECASE | re.DOTALL)

_HINTS = {
    404: "check the path of the url",
    405: "check the url, or the transport: an SSE endpoint takes no requests of streamable HTTP",
    407: "the proxy wants credentials; check HTTP_PROXY and HTTPS_PROXY",
    429: "the server limits requests; try again later",
    502: "a proxy before the server cannot reach it",
    503: "the server, or a proxy before it, is not available now",
    504: "a proxy before the server got no answer from it",
}


GONE = (404, 410)
"""Statuses that mean that the session, or the address, does not exist."""

_UNRELATED = (402, 405, 406, 407, 408, 411, 413, 414, 415, 417, 429, 431, 451)
"""Statuses from 400 to 499 with a meaning unrelated to sessions."""

_INTERNAL = 500

_SERVER_CODES = range(-32099, -31999)
"""Server-defined JSON-RPC codes; servers use these, or "invalid request", for unknown sessions."""

_ABOUT_SESSIONS = re.compile(r"session|initiali[sz]|handshake", re.IGNORECASE)

_ABOUT_OURS = re.compile(
    r"mcp[ -]?session|session[ _-]?id\b|not (?:yet )?(?:been )?initiali[sz]ed|initiali[sz]e request"
    r"|^(?:[\w ]{1,30}: )?(?:(?:no|a|the|your|valid|invalid|unknown|missing|expired|stale|mcp|active) ){0,3}session\b",
    re.IGNORECASE,
)

CHECK_SECONDS = 5.0
"""Time limit in seconds of the check; without an answer, the refusal counts as the server's answer."""


@dataclass(frozen=True, slots=True)
class HttpRefusal:
    """One response that is an error.

    `error` is its JSON-RPC error, and `names_request` is True if that carries the id of the request. `has_begun` is
    True if the server had already sent a part of the answer. `challenge` is the `WWW-Authenticate` header.
    """

    status: int = _OK
    body: str = ""
    content_type: str = ""
    error: JsonObject | None = None
    names_request: bool = False
    has_begun: bool = False
    challenge: str = ""
    retry_after: float | None = None

    @classmethod
    def of_error(cls, error: MCPError, *, names_request: bool = True, has_begun: bool = False) -> HttpRefusal:
        """Return the refusal for a JSON-RPC error in an HTTP response of status 200."""
        content = {"code": error.code, "message": error.message, "data": error.error.data}
        return cls(error=content, names_request=names_request, has_begun=has_begun)

    @classmethod
    def of_answer(cls, status: int, headers: Mapping[str, str], body: bytes, request_id: object) -> HttpRefusal:
        """Parse an HTTP response; `headers` must have lower-case names."""
        message = _message(body)
        error = message.get("error")
        is_message = "jsonrpc" in message or (isinstance(error, dict) and "code" in error)
        return cls(
            status,
            body.decode("utf-8", "replace"),
            headers.get("content-type", "").partition(";")[0].strip().lower(),
            error=sound_error(error) if is_message else None,
            names_request=request_id is not None and message.get("id") == request_id,
            challenge=headers.get("www-authenticate", ""),
            retry_after=seconds_to_wait(headers.get("retry-after", "")),
        )

    @property
    def code(self) -> int | None:
        """Return the code of the JSON-RPC error."""
        return None if self.error is None else int(self.error["code"])

    @property
    def text(self) -> str:
        """Return the full text of the server's error."""
        if self.error is None:
            return self.body
        data = self.error.get("data")
        return str(self.error["message"]) + (f" {json.dumps(data, default=str)[:MAX_READ]}" if data else "")

    @property
    def said(self) -> str:
        """Return the start of the server's error, for display."""
        return shown(str(self.error["message"]) if self.error is not None else self.body, self.content_type)

    @property
    def executed(self) -> str:
        """Return `no` if the request was certainly not executed, else `unknown`."""
        return "unknown" if self.has_begun or self.status >= _EXECUTION_UNKNOWN_FROM else "no"

    def as_error(self) -> Exception:
        """Return the server's own JSON-RPC error, or the gateway's error for the HTTP answer."""
        if self.error is not None:
            return MCPError(self.error["code"], self.error["message"], self.error.get("data"))
        return self.as_http_error()

    def as_http_error(self) -> UpstreamUnavailableError | UpstreamProtocolError:
        """Return an error that quotes the status and the start of the body."""
        said = self.said
        details: dict[str, Any] = {"http_status": self.status, "executed": self.executed}
        if self.error is not None:
            data = self.error.get("data")
            details |= {"jsonrpc_code": self.error["code"], **({"data": data} if data else {})}
        if self.status < 400:
            kind = f"{self.content_type or 'no content type'} where JSON belongs (HTTP {self.status})"
            return UpstreamProtocolError(
                f"the server answered with {kind}{f': {said}' if said else ''}",
                hint="the address may be that of a web page, a login or a proxy; check the url",
                details={"http_status": self.status},
            )
        wait = ""
        if self.retry_after is not None:
            details["retry_after_seconds"] = self.retry_after
            wait = f"; it asks to wait {self.retry_after:.0f} s"
        return UpstreamUnavailableError(
            f"the server answered with HTTP {self.status}{f': {said}' if said else ''}{wait}",
            hint=_HINTS.get(self.status, ""),
            details=details,
        )


def shown(body: str, content_type: str = "") -> str:
    """Return the start of a body for display: without tags, secrets and control characters."""
    text = body[:MAX_READ]
    if "html" in content_type or text.lstrip()[:1] == "<":
        text = _TAGS.sub(" ", text)
    return shortened(mask_text(escaped(" ".join(text.split()))[: MAX_SHOWN * 2]), MAX_SHOWN)


def seconds_to_wait(header: str) -> float | None:
    """Return the seconds of a `Retry-After` header, which holds a number or a date."""
    text = header.strip()
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            at = parsedate_to_datetime(text)
        except ValueError:
            return None
        seconds = (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(seconds, 0.0), MAX_RETRY_AFTER) if seconds == seconds else None  # not NaN


def _message(body: bytes) -> JsonObject:
    try:
        message = json.loads(repaired(body))
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


Ask = Callable[[str], Awaitable[HttpRefusal | None]]
"""Makes a harmless request in the session after this method was refused; returns its refusal, if any.

It raises `TimeoutError` if there is no answer.
"""


class SessionCheck:
    """The state of one session, checked when a request is refused; all requests of the session share the result."""

    def __init__(self, session_id: Callable[[], str | None], ask: Ask) -> None:
        """Check one session.

        Args:
            session_id: returns the id that requests carry; None if the server gave none.
            ask: makes a harmless request in the session.
        """
        self._session_id = session_id
        self._ask = ask
        self._lock = anyio.Lock()
        self._has_found_lost = False

    async def is_lost(self, refusal: HttpRefusal, method: str) -> bool:
        """Return True if the refusal means that the server does not know the session."""
        session_id = self._session_id()
        if session_id is None or not _may_concern_session(refusal):
            return False
        async with self._lock:
            if self._has_found_lost or await self._is_lost(refusal, method, session_id):
                self._has_found_lost = True
                return True
            return False

    async def _is_lost(self, refusal: HttpRefusal, method: str, session_id: str) -> bool:
        if refusal.status in GONE and not refusal.names_request:
            return True
        try:
            with anyio.fail_after(CHECK_SECONDS):
                again = await self._ask(method)
        except TimeoutError:
            return refusal.status in GONE
        if again is not None and _are_alike(refusal, again):
            return True
        if refusal.names_request:
            return session_id in refusal.text
        return refusal.status >= 400 and _ABOUT_OURS.search(refusal.text) is not None


def _may_concern_session(refusal: HttpRefusal) -> bool:
    speaks = _ABOUT_SESSIONS.search(refusal.text) is not None
    match refusal.status:
        case 200:
            code = refusal.code
            return code is not None and (speaks or code == INVALID_REQUEST or code in _SERVER_CODES)
        case 401 | 403 if refusal.challenge:
            # It requires credentials, which is a different problem.
            return speaks and "invalid_token" not in refusal.challenge
        case status if 400 <= status < _INTERNAL:
            return status not in _UNRELATED
        case status:
            return status == _INTERNAL and speaks


def _are_alike(one: HttpRefusal, other: HttpRefusal) -> bool:
    if (one.status, one.code) != (other.status, other.code):
        return False
    # With status 200, one code stands for many errors.
    return one.status != 200 or _general(one) == _general(other)


def _general(refusal: HttpRefusal) -> str:
    """Return the error text without parts that differ between requests."""
    text = str(refusal.error["message"]) if refusal.error is not None else refusal.body
    return re.sub(r"\d+", "0", text)
