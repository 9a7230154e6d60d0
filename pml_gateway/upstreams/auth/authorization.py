"""The source of access tokens for all requests to an upstream: those of the SDK and those sent outside of it.

A token that ends or is refused is renewed once, by the first request that needs it, in this or another process.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2

from pml_gateway.config.servers import AuthDefinition, AuthKind, UpstreamDefinition
from pml_gateway.errors import GatewayError, UpstreamAuthError, UpstreamUnavailableError, innermost
from pml_gateway.files import Signature
from pml_gateway.files import signature as file_signature
from pml_gateway.log import get_logger
from pml_gateway.mcp.http import CREDENTIALS_ENDED, Challenge
from pml_gateway.secrets.references import resolve_in
from pml_gateway.storage.places import AUTH, warn_unwritable
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.auth.addresses import origin_of
from pml_gateway.upstreams.auth.logins import LoginStore, StoredLogin, login_needed
from pml_gateway.working_directory import WorkingDirectory

logger = get_logger(__name__)

RENEWAL_SECONDS = 60.0
"""Time limit in seconds for a renewal, including those of other processes that come first."""

ENDED = "the login was revoked or has ended"

TRUST_SECONDS = 30.0
"""Seconds after a renewal in which a server that refuses the new token gets no further one."""

RETRY_STORE_SECONDS = 30.0
"""Seconds until a login that could not be read is read again, unless it is replaced before."""

Start = Callable[[Callable[[], Coroutine[Any, Any, None]]], object]
"""Starts a renewal that lives as long as the gateway, so that no token is lost if the caller is cancelled."""


@dataclass(slots=True, eq=False)
class _Renewal:
    """One renewal, shared by all requests that wait for it."""

    done: anyio.Event = field(default_factory=anyio.Event)
    login: StoredLogin | None = None
    error: GatewayError | None = None


class Authorization:
    """Credentials for one upstream, in addition to the configured headers."""

    def __init__(
        self,
        upstream_id: str,
        definition: UpstreamDefinition,
        store: LoginStore,
        start: Start,
        working_directory: WorkingDirectory | None = None,
    ) -> None:
        self._upstream_id = upstream_id
        self._definition = definition
        self._auth = definition.auth or AuthDefinition()
        self._needs_no_person = self._auth.type is AuthKind.CLIENT_CREDENTIALS
        self._store = store
        self._start = start
        self._workplace = working_directory or WorkingDirectory.here()
        self._is_off = definition.url is None or self._auth.type is AuthKind.NONE or definition.has_authorization_header
        self._login: StoredLogin | None = None
        self._signature: Signature = None
        self._url_and_path: tuple[str, Path] | None = None
        self._problem: GatewayError | None = None
        self._read_again_at = 0.0
        self._renewal: _Renewal | None = None
        self._renewal_error: GatewayError | None = None
        self._refused_fresh: tuple[str, float] | None = None
        self._is_asked = False

    async def headers(self) -> dict[str, str]:
        """Return the header with an access token; empty if no login is stored, as the server may not need one.

        Raises:
            UpstreamAuthError: there was a login, but a person has to log in again.
            UpstreamUnavailableError: the token expired, and the authorization server cannot be reached.
        """
        login = await self._current()
        if login is None and self._needs_no_person and not self._is_off:
            login = await self._renewed(None)
        if login is None:
            return {}
        if login.tokens is None:
            raise self._needed(ENDED)
        if not login.is_fresh:
            login = await self._renewed(login.access_token)
        return {"authorization": f"Bearer {login.access_token}"}

    async def renewed(self, sent: str | None) -> bool:
        """Return True if a request answered with 401 is worth repeating.

        Args:
            sent: the header the server refused.

        Raises:
            GatewayError: the reason why there is no other token.
        """
        login = await self._current()
        if not self._needs_no_person:
            if login is None:
                return False
            if login.tokens is None:
                raise self._needed(ENDED)
        refused = sent.removeprefix("Bearer ") if sent else None
        if login is not None and login.tokens is not None and login.access_token != refused:
            return True
        known = self._refused_fresh
        if known is not None and refused == known[0] and time.monotonic() < known[1]:
            raise self._needed("the server refuses even a new token")
        fresh = await self._renewed(refused)
        self._refused_fresh = (fresh.access_token or "", time.monotonic() + TRUST_SECONDS)
        return True

    async def refusal(self, challenge: Challenge) -> GatewayError:
        """Return the error for a 401 or 403 response."""
        status = challenge.status
        said = f": {challenge.said}" if challenge.said else ""

        def refused(what: str, hint: str) -> UpstreamAuthError:
            return UpstreamAuthError(
                f"{self._upstream_id}: the server {what} (HTTP {status}){said}",
                hint=f"check servers.{self._upstream_id}.{hint}",
                details={"http_status": status},
            )

        headers_refused = "refused the gateway's credentials", "headers, then: pml upstreams"
        if self._is_off:
            return refused(*headers_refused)
        if challenge.missing_scope is not None:
            await self._want(challenge.missing_scope)
            scope = challenge.missing_scope
            return self._needed(
                "the login does not allow this" + (f"; it takes the scope {scope!r}" if scope else ""),
                http_status=status,
                scope=scope,
            )
        problem = self._problem or self._renewal_error
        if problem is not None and status == CREDENTIALS_ENDED:
            return problem.anew()
        login = self._login
        if status != CREDENTIALS_ENDED:
            whose = "to this login" if login is not None else "to the gateway"
            return refused(f"forbids this {whose}", "auth" if self._definition.auth else "headers")
        if login is None and self._definition.auth is None and self._definition.headers and not challenge.is_bearer:
            return refused(*headers_refused)
        self._is_asked = True
        reason = "the server asks for a login" if login is None else ENDED
        return self._needed(f"{reason} (HTTP {status})", http_status=status)

    def for_httpx(self) -> httpx2.Auth | None:
        """Return the same credentials for the SDK's client."""
        return None if self._is_off else BearerAuth(self, self._url())

    async def read(self) -> None:
        """Read the stored login, so that `status` reports its current state."""
        with suppress(GatewayError):
            await self._current()

    def signature(self) -> object:
        """Return a value that changes whenever the stored login does."""
        with suppress(GatewayError):
            return file_signature(self._path())
        return None

    def status(self) -> JsonObject:
        """Return the state of the login when last read, without any part of a token."""
        if self._is_off:
            return {"state": "headers" if self._definition.has_authorization_header else "not_needed"}
        if self._problem is not None:
            return {"state": "login_needed", "reason": self._problem.message}
        login = self._login
        if self._needs_no_person:
            return {"state": "client_credentials", "expires_at": moment(login.expires_at if login else None)}
        if login is None:
            return {"state": "login_needed" if self._definition.auth or self._is_asked else "not_needed"}
        if login.tokens is None or not (login.is_fresh or login.is_renewable):
            return {"state": "login_needed"}
        state: JsonObject = {"state": "logged_in", "expires_at": moment(login.expires_at)}
        return {**state, "renews": login.is_renewable, "scope": login.scope}

    async def _current(self) -> StoredLogin | None:
        """Return the stored login; read it again if a login, a logout or another process changed it."""
        if self._is_off:
            return None
        path = self._path()
        signature = file_signature(path)
        if signature == self._signature and (self._problem is None or time.monotonic() < self._read_again_at):
            if self._problem is not None:
                raise self._problem.anew()
            return self._login
        try:
            login = await anyio.to_thread.run_sync(self._store.load, self._upstream_id, path)
        except UpstreamAuthError as error:
            self._login, self._signature, self._problem = None, signature, error
            self._read_again_at = time.monotonic() + RETRY_STORE_SECONDS
            raise
        self._take(login, signature)
        return login

    def _take(self, login: StoredLogin | None, signature: Signature) -> None:
        self._login, self._signature = login, signature
        self._problem = self._renewal_error = None
        self._is_asked = self._is_asked and login is None

    async def _renewed(self, refused: str | None) -> StoredLogin:
        renewal = self._renewal
        if renewal is None:
            renewal = self._renewal = _Renewal()
            self._start(lambda: self._run(renewal, refused))
        await renewal.done.wait()
        if renewal.error is not None:
            raise renewal.error.anew()
        assert renewal.login is not None
        return renewal.login

    async def _run(self, renewal: _Renewal, refused: str | None) -> None:
        try:
            with anyio.fail_after(RENEWAL_SECONDS):
                renewal.login = await self._renew(refused)
        except TimeoutError:
            renewal.error = UpstreamUnavailableError(f"{self._upstream_id}: renewing the login took too long")
        # Every waiting request gets the error, whatever it was; this task serves them all.
        except Exception as exc:  # noqa: BLE001
            cause = innermost(exc)
            renewal.error = (
                cause
                if isinstance(cause, GatewayError)
                else self._needed(f"the login cannot be renewed ({type(cause).__name__})")
            )
        finally:
            if renewal.login is None and renewal.error is None:
                renewal.error = UpstreamUnavailableError(f"{self._upstream_id}: the gateway ends")
            self._renewal, self._renewal_error = None, renewal.error
            renewal.done.set()

    async def _renew(self, refused: str | None) -> StoredLogin:
        # The SDK's client takes 0.1 s to import, which upstreams without a login never need.
        from pml_gateway.upstreams.auth.oauth import GrantRefusedError, client_credentials, refreshed

        path = self._path()
        async with self._store.locked(self._upstream_id, path):
            login = await self._read_for_renewal(path)
            if login is not None and login.is_fresh and login.access_token != refused:
                return self._adopt(path, login)
            if self._needs_no_person:
                allowed = login.allowed if login is not None else ()
                granted = await client_credentials(
                    self._upstream_id, self._definition, self._auth, self._workplace, allowed=allowed
                )
                return await self._save(path, granted)
            if login is None:
                raise self._needed("there is no login")
            # Not cancelled half-way: the old refresh token may be spent already.
            with anyio.CancelScope(shield=True):
                try:
                    if login.is_renewable:
                        return await self._save(path, await refreshed(self._upstream_id, login, self._workplace))
                except GrantRefusedError:
                    logger.info("%s: the authorization server renews the login no more", self._upstream_id)
                await self._save(path, login.refused())
            raise self._needed(ENDED)

    async def _read_for_renewal(self, path: Path) -> StoredLogin | None:
        try:
            return await anyio.to_thread.run_sync(self._store.load, self._upstream_id, path)
        except UpstreamAuthError:
            # An unreadable login is replaced if no person is needed for that.
            if self._needs_no_person:
                return None
            raise

    async def _save(self, path: Path, login: StoredLogin) -> StoredLogin:
        try:
            await anyio.to_thread.run_sync(self._store.save, path, login)
        except OSError as error:
            warn_unwritable(AUTH, path.parent, error)
        return self._adopt(path, login)

    def _adopt(self, path: Path, login: StoredLogin) -> StoredLogin:
        self._take(login, file_signature(path))
        return login

    async def _want(self, scope: str) -> None:
        """Store a scope that a call lacked, so that the next login requests it."""
        login = self._login
        if login is None or not scope or login.wanted_scope == scope:
            return
        path = self._path()
        async with self._store.locked(self._upstream_id, path):
            stored = await self._read_for_renewal(path)
            if stored is not None:
                await self._save(path, stored.model_copy(update={"wanted_scope": scope}))

    def _url(self) -> str:
        return resolve_in(self._definition.url or "", self._workplace)

    def _path(self) -> Path:
        url = self._url()
        if self._url_and_path is None or self._url_and_path[0] != url:
            self._url_and_path = url, self._store.path(self._upstream_id, url, self._auth)
        return self._url_and_path[1]

    def _needed(self, reason: str, **details: object) -> UpstreamAuthError:
        if self._needs_no_person:
            return UpstreamAuthError(
                f"{self._upstream_id}: {reason}", hint=f"check servers.{self._upstream_id}.auth", details=details
            )
        return login_needed(self._upstream_id, reason, **details)


class BearerAuth(httpx2.Auth):
    """Adapter for the SDK's client: adds the token, and repeats a request once after a renewal."""

    def __init__(self, authorization: Authorization, url: str) -> None:
        self._authorization = authorization
        self._origin = origin_of(httpx2.URL(url))

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send the request with a token, or without one: this never raises, as the SDK understands a 401 response."""
        if origin_of(request.url) != self._origin:
            yield request
            return
        await self._authorize(request)
        response = yield request
        if response.status_code != CREDENTIALS_ENDED:
            return
        try:
            again = await self._authorization.renewed(request.headers.get("authorization"))
        except GatewayError:
            return
        if again and await self._authorize(request):
            yield request

    async def _authorize(self, request: httpx2.Request) -> bool:
        try:
            headers = await self._authorization.headers()
        except GatewayError:
            return False
        request.headers.update(headers)
        return bool(headers)


def moment(seconds: float | None) -> str | None:
    """Return seconds since the epoch as an ISO timestamp in local time."""
    return None if seconds is None else datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
