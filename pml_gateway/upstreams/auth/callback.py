"""The redirect that ends a login in the browser: its authorization code, checked and used once."""

from __future__ import annotations

import html
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp.shared.auth import AuthorizationCodeResult

from pml_gateway.config.servers import LOOPBACK_HOSTS
from pml_gateway.errors import InvalidInputError, UpstreamAuthError, innermost
from pml_gateway.hosts import KnownHosts
from pml_gateway.mcp.http import plain
from pml_gateway.upstreams.auth.logins import login_command

MAX_REQUEST = 32 * 1024
REQUEST_SECONDS = 10.0

_KNOWN_HOSTS = KnownHosts(LOOPBACK_HOSTS)

_PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>pml</title>'
    '<body style="font-family: sans-serif; margin: 4em"><h1>{title}</h1><p>{text}</p></body></html>'
)


@dataclass
class Callback:
    """Waits for the response to one authorization request."""

    upstream_id: str
    redirect_uri: str
    state: str = ""
    _answered: anyio.Event = field(default_factory=anyio.Event)
    _answer: AuthorizationCodeResult | UpstreamAuthError | None = None

    def expect(self, authorization_url: str) -> None:
        """Accept only responses to this request."""
        self.state = _parameters(authorization_url).get("state", "")

    def take(self, redirected_to: str) -> bool:
        """Return True if the URL that a browser was sent back to contains a code; an error ends the wait as well.

        Raises:
            InvalidInputError: it is not the response to this request; the wait goes on.
        """
        given = _parameters(redirected_to)
        if not ("code" in given or "error" in given):
            raise InvalidInputError(
                "this is not the address the browser was sent back to",
                hint=f"it starts with {self.redirect_uri} and has a code; copy the whole address",
            )
        if not self.state or not secrets.compare_digest(given.get("state", "").encode(), self.state.encode()):
            raise InvalidInputError(
                "this answer does not belong to this login (its state differs)",
                hint="the login goes on; if another one is open in the browser, close it",
            )
        if self._answered.is_set():
            return False
        self._answer = self._checked(given)
        self._answered.set()
        return isinstance(self._answer, AuthorizationCodeResult)

    def _checked(self, given: dict[str, str]) -> AuthorizationCodeResult | UpstreamAuthError:
        again = login_command(self.upstream_id)
        if "error" in given:
            reason = given.get("error_description") or given["error"]
            why = "consent was denied" if given["error"] == "access_denied" else "the authorization server refused"
            return UpstreamAuthError(f"{self.upstream_id}: {why}: {plain(reason)}", hint=again)
        return AuthorizationCodeResult(code=given["code"], state=given["state"], iss=given.get("iss"))

    async def result(self) -> AuthorizationCodeResult:
        """Wait for the authorization code, and return it.

        Raises:
            UpstreamAuthError: consent was denied, or the response belongs to another login.
        """
        await self._answered.wait()
        if isinstance(self._answer, UpstreamAuthError):
            raise self._answer
        assert self._answer is not None
        return self._answer

    async def answer(self, stream: anyio.abc.ByteStream) -> None:
        """Serve one request of the browser."""
        async with stream:
            with anyio.move_on_after(REQUEST_SECONDS):
                try:
                    head = await BufferedByteReceiveStream(stream).receive_until(b"\r\n\r\n", MAX_REQUEST)
                    await stream.send(self._response(head.decode("latin-1")))
                except (anyio.IncompleteRead, anyio.DelimiterNotFound, anyio.BrokenResourceError):
                    return

    def _response(self, head: str) -> bytes:
        request, *lines = head.split("\r\n")
        method, _, rest = request.partition(" ")
        target = rest.partition(" ")[0]
        headers = [
            (name.lower().encode(), value.strip().encode())
            for name, _, value in (line.partition(":") for line in lines)
        ]
        # The origin is not checked: browsers differ in what they send after the redirect of a form.
        if _KNOWN_HOSTS.refused(headers) == "host":
            return _http("421 Misdirected Request", "Not found", "")
        if method != "GET" or urlsplit(target).path != urlsplit(self.redirect_uri).path:
            return _http("404 Not Found", "Not found", "")
        try:
            is_good = self.take(target)
        except InvalidInputError:
            return _http("400 Bad Request", "Not an answer", "")
        if is_good:
            return _http("200 OK", "You are logged in", "Close this window and go back to the terminal.")
        return _http("400 Bad Request", "Not logged in", "The terminal says why.")


def _http(status: str, title: str, text: str) -> bytes:
    body = _PAGE.format(title=html.escape(title), text=html.escape(text)).encode()
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {len(body)}\r\n"
        "cache-control: no-store\r\nreferrer-policy: no-referrer\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


def _parameters(url: str) -> dict[str, str]:
    try:
        return {name: values[0] for name, values in parse_qs(urlsplit(url.strip()).query).items()}
    except ValueError:
        return {}


@asynccontextmanager
async def listening(upstream_id: str, redirect_uri: str | None) -> AsyncIterator[Callback]:
    """Yield a callback that a browser on this machine can reach, at the given address or at a free port.

    Raises:
        UpstreamAuthError: the port of `redirect_uri` is in use.
    """
    parts = urlsplit(redirect_uri or "http://127.0.0.1:0/callback")
    try:
        listener = await anyio.create_tcp_listener(local_host=parts.hostname, local_port=parts.port or 0)
    except OSError as exc:
        raise UpstreamAuthError(
            f"{upstream_id}: nothing can listen at {redirect_uri} ({exc.strerror})",
            hint=f"end the program that uses port {parts.port}, or change servers.{upstream_id}.auth.redirect_uri",
        ) from exc
    try:
        async with listener, anyio.create_task_group() as tasks:
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            callback = Callback(upstream_id, redirect_uri or f"http://127.0.0.1:{port}/callback")
            tasks.start_soon(listener.serve, callback.answer)
            yield callback
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise innermost(group) from None
