"""Lost HTTP sessions: distinguishing a refusal of the session from an error answer, whatever its wording.

The specification has one answer for an unknown session: HTTP 404. Servers give many others. A refusal that may be one
is checked: a harmless request in the same session is refused in the same way if the session is lost, and answered if it
is not. The wording of the refusal is only used if that check is inconclusive.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import anyio
from mcp_types.jsonrpc import INVALID_REQUEST

from pml_gateway.mcp.refusals import HttpRefusal

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
