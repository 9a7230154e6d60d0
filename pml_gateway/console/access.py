"""Access to the console: a link that works once becomes a cookie, and pages of other sites stay out."""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pml_gateway.hosts import KnownHosts, read_origin

ROOT = "/console"

LINK_SECONDS = 300.0
"""Seconds that a link can be opened."""

COOKIE = "pml_console"

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

_PAGE_PATH = re.compile(rf"{ROOT}/([A-Za-z0-9_-]+)(/.*)?")


@dataclass(slots=True)
class ConsoleAccess:
    """The secrets of one console: a link, which is spent when it is opened, and the session that it becomes.

    Pages lie below `root`, a path that cannot be guessed. Browsers send cookies of this machine to all of its ports,
    but none to a path other than the cookie's.
    """

    clock: Callable[[], float] = time.monotonic
    root: str = field(default_factory=lambda: f"{ROOT}/{secrets.token_urlsafe(12)}")
    _session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    _link: str = field(default="", repr=False)
    _link_ends: float = 0.0

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
        """Return the token that forms of the session carry: no page of another site can read it."""
        return hmac.digest(self._session.encode(), b"forms", "sha256").hex()

    def has_session(self, connection: HTTPConnection) -> bool:
        """Return True if a request carries the cookie of this console."""
        return _equal(connection.cookies.get(COOKIE, ""), self._session)

    def with_session(self, response: Response) -> Response:
        """Set the cookie."""
        response.set_cookie(COOKIE, self._session, path=self.root, httponly=True, samesite="strict")
        return response


class ConsoleGuard:
    """ASGI middleware in front of all pages: checks Host and Origin, the session, and adds the headers.

    Only forms change anything; they also need the token of the session, which is checked where they are read.
    """

    def __init__(self, app: ASGIApp, access: ConsoleAccess, hosts: KnownHosts) -> None:
        self._app = app
        self._access = access
        self._hosts = hosts

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

    def _refusal(self, scope: Scope) -> Response | None:
        if self._hosts.refused(scope["headers"]) is not None or _is_of_another_site(Headers(scope=scope)):
            return PlainTextResponse("This page is for the browser of this machine alone.", 403)
        is_form = scope["method"] == "POST" and scope["path"].startswith(f"{self._access.root}/do/")
        if scope["method"] not in ("GET", "HEAD") and not is_form:
            return PlainTextResponse("Use GET.", 405, {"Allow": "GET, HEAD"})
        if is_form and not _is_own(Headers(scope=scope)):
            return PlainTextResponse("This form is not of this page.", 403)
        connection = HTTPConnection(scope)
        path = scope["path"].rstrip("/")
        if path == ROOT:
            if self._access.open_link(connection.query_params.get("link", "")):
                return self._access.with_session(RedirectResponse(f"{self._access.root}/", 303))
            return PlainTextResponse(NO_ACCESS, 403)
        found = _PAGE_PATH.fullmatch(scope["path"])
        if found is None or not _equal(f"{ROOT}/{found[1]}", self._access.root):
            return PlainTextResponse(NO_ACCESS, 403)
        return None if self._access.has_session(connection) else PlainTextResponse(NO_ACCESS, 403)


def _is_of_another_site(headers: Headers) -> bool:
    """Return True for a request that a page of another site, or of another port, caused."""
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def _is_own(headers: Headers) -> bool:
    """Return True if the page that sent a form is of this host and port, which all browsers tell."""
    origin = read_origin(headers.get("origin", ""))
    return origin is not None and read_origin(f"{origin[0]}://{headers['host']}") == origin


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
