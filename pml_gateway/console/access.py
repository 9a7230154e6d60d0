"""Access to the console: a link that works once, or the owner's token, becomes a cookie; other sites stay out."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cachetools import TTLCache
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pml_gateway.config.servers import LOOPBACK_HOSTS
from pml_gateway.hosts import KnownHosts, read_authority, read_origin
from pml_gateway.policy.owner_tokens import OwnerTokens
from pml_gateway.policy.refusals import is_loopback

ROOT = "/console"

LINK_SECONDS = 300.0
"""Seconds that a link can be opened."""

COOKIE = "pml_console"

SESSION_SECONDS = 7 * 86_400.0
"""Seconds without a request after which a session ends; an open page makes some."""

MAX_SESSIONS = 100
"""Maximum number of sessions; the oldest one ends."""

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""Nothing inline, nothing from elsewhere, and no frame around a page."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Stricter, and browsers send the forms of this page with `Origin: null`.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}

NO_ACCESS = (
    "This page needs the link that `pml console` printed. A link works once; run `pml console` again for another one."
)

LOGIN_PATH = f"{ROOT}/login"
LOGIN_PATHS = {LOGIN_PATH, f"{ROOT}/console.css", f"{ROOT}/icon.svg"}
"""Paths that need no session if the owner's token opens the console; the files are the same for everyone."""

_PAGE_PATH = re.compile(rf"{ROOT}/([A-Za-z0-9_-]+)(/.*)?")


@dataclass(slots=True)
class ConsoleAccess:
    """The secrets of one console: a link, which is spent when it is opened, and the sessions that were opened.

    Pages lie below `root`, a path that cannot be guessed. Browsers send cookies of this machine to all of its ports,
    but none to a path other than the cookie's.

    Args:
        tokens: the owner's tokens, if one of them also opens the console; its sessions end with it.
        holder: the beginning of the root below its first part, by which replicas find the one that has it.
    """

    clock: Callable[[], float] = time.monotonic
    tokens: OwnerTokens | None = None
    holder: str = ""
    root: str = field(init=False)
    _form_secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    _link: str = field(default="", repr=False)
    _link_ends: float = 0.0
    _sessions: TTLCache[str, str] = field(init=False, repr=False)
    """The token by which each session was opened, empty for a link, by the hash of its cookie."""

    def __post_init__(self) -> None:
        self.root = f"{ROOT}/{self.holder}{secrets.token_urlsafe(12)}"
        self._sessions = TTLCache(MAX_SESSIONS, SESSION_SECONDS, timer=self.clock)

    def new_link(self) -> str:
        """Return the path of a link, which replaces an unused one."""
        self._link, self._link_ends = secrets.token_urlsafe(32), self.clock() + LINK_SECONDS
        return f"{ROOT}?link={self._link}"

    def open_link(self, link: str) -> bool:
        """Return True if this is the link, which is then spent."""
        is_right = bool(self._link) and _equal(link, self._link)
        if is_right:
            # A wrong guess must not spend the owner's link.
            self._link = ""
        return is_right and self.clock() <= self._link_ends

    @property
    def form_token(self) -> str:
        """Return the token that forms of this console carry: no page of another site can read it."""
        return self._form_secret

    def has_session(self, connection: HTTPConnection) -> bool:
        """Return True if a request carries the cookie of a session whose token, if it has one, is still in force."""
        session = _hashed(connection.cookies.get(COOKIE, ""))
        key_id = self._sessions.get(session)
        if key_id is None:
            return False
        if key_id and (self.tokens is None or key_id not in self.tokens.in_force):
            del self._sessions[session]
            return False
        # Setting it puts its end off.
        self._sessions[session] = key_id
        return True

    def with_session(self, response: Response, key_id: str = "", *, is_secure: bool = False) -> Response:
        """Open a session by a link or a token, and set its cookie; never one that the browser brought along."""
        session = secrets.token_urlsafe(32)
        self._sessions[_hashed(session)] = key_id
        response.set_cookie(COOKIE, session, path=self.root, httponly=True, samesite="strict", secure=is_secure)
        return response


class ConsoleGuard:
    """ASGI middleware in front of all pages: checks Host and Origin, the session, and adds the headers.

    Only forms change anything; they also need the token of the console, which is checked where they are read.
    """

    def __init__(self, app: ASGIApp, access: ConsoleAccess, hosts: KnownHosts, login: ASGIApp | None = None) -> None:
        """Guard pages; without a session, `login` answers below its paths, if a token opens the console."""
        self._app = app
        self._access = access
        self._hosts = hosts
        self._login = login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            return await refusal(scope, receive, with_headers)
        # Routes lie below the root, so that its secret part is in no link of a page's source but the base.
        below = {**scope, "root_path": self._access.root, "headers": scope["headers"]}
        return await self._app(below, receive, with_headers)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers, connection = Headers(scope=scope), HTTPConnection(scope)
        is_at_door = scope["path"].rstrip("/") == ROOT and not connection.query_params
        if self._hosts.refused(scope["headers"]) is not None:
            return PlainTextResponse("This page is not for this host.", 403)
        # The page that asks for the token may be linked to; it does nothing by itself.
        if _is_of_another_site(headers) and not (is_at_door and scope["method"] == "GET"):
            return PlainTextResponse("This page is not for other sites.", 403)
        is_login = self._login is not None and scope["path"] == LOGIN_PATH
        is_form = scope["method"] == "POST" and (is_login or scope["path"].startswith(f"{self._access.root}/do/"))
        if scope["method"] not in ("GET", "HEAD") and not is_form:
            return PlainTextResponse("Use GET.", 405, {"Allow": "GET, HEAD"})
        if is_form and not is_own(headers):
            return PlainTextResponse("This form is not of this page.", 403)
        if self._login is not None and (is_at_door or scope["path"] in LOGIN_PATHS):
            return self._login
        if scope["path"].rstrip("/") == ROOT:
            if _is_local(scope, headers) and self._access.open_link(connection.query_params.get("link", "")):
                return self._access.with_session(RedirectResponse(f"{self._access.root}/", 303))
            return self._no_access()
        found = _PAGE_PATH.fullmatch(scope["path"])
        if found is None or not _equal(f"{ROOT}/{found[1]}", self._access.root):
            return self._no_access()
        return None if self._access.has_session(connection) else self._no_access()

    def _no_access(self) -> ASGIApp:
        if self._login is None:
            return PlainTextResponse(NO_ACCESS, 403)
        return HTMLResponse(f'<!doctype html><title>pml</title><p>{NO_ACCESS} Or <a href="{ROOT}">log in</a>.', 403)


def _is_local(scope: Scope, headers: Headers) -> bool:
    """Return True if a request comes from this machine, and not by a proxy that others can ask."""
    host, client = read_authority(headers["host"]), scope.get("client")
    return host is not None and host.host in LOOPBACK_HOSTS and (client is None or is_loopback(client[0]))


def _is_of_another_site(headers: Headers) -> bool:
    """Return True for a request that a page of another site, or of another port, caused."""
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def is_own(headers: Headers) -> bool:
    """Return True if the page that sent a form is of this host and port, which all browsers tell."""
    origin = read_origin(headers.get("origin", ""))
    return origin is not None and read_origin(f"{origin[0]}://{headers['host']}") == origin


def _hashed(session: str) -> str:
    """Return the hash that a session is found by, so that comparing tells nothing about it."""
    return hashlib.sha256(session.encode()).hexdigest()


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
