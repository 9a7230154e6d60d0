"""A small real authorization server and, on another port, an MCP server that wants its tokens."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import anyio
import httpx2
import keyring
from keyring.backends.null import Keyring as NoKeyring
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    AuthorizeError,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.routes import create_auth_routes
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tests.support.listening import bound, served
from tests.support.scripted_server import ScriptedServer, text_result, tool

LIMIT = 60
SCOPES = ["read", "admin"]


@contextmanager
def keys_in_files() -> Iterator[None]:
    """Keep the keys of stored logins out of the keyring of the person who runs the tests."""
    before = keyring.get_keyring()
    keyring.set_keyring(NoKeyring())  # type: ignore[no-untyped-call]
    yield
    keyring.set_keyring(before)


@dataclass
class AuthorizationServer(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """Gives tokens to whoever asks; a test says how long they live, and what is refused."""

    lifetimes: list[int] = field(default_factory=list)
    scopes: list[str] = field(default_factory=lambda: ["read"])
    denies: bool = False
    fails_with: int | None = None
    hold: anyio.Event | None = None
    asked: anyio.Event = field(default_factory=anyio.Event)
    rejects_registration: bool = False
    forgets: bool = False
    grants: list[dict[str, str]] = field(default_factory=list)
    issued: set[str] = field(default_factory=set)
    clients: dict[str, OAuthClientInformationFull] = field(default_factory=dict)
    codes: dict[str, AuthorizationCode] = field(default_factory=dict)
    access: dict[str, AccessToken] = field(default_factory=dict)
    refresh: dict[str, RefreshToken] = field(default_factory=dict)
    machine: tuple[str, str] | None = None

    @property
    def refreshes(self) -> int:
        """How many refresh requests came."""
        return sum(grant.get("grant_type") == "refresh_token" for grant in self.grants)

    def app(self, issuer: str) -> Any:
        routes = create_auth_routes(
            self,
            AnyHttpUrl(issuer),
            client_registration_options=ClientRegistrationOptions(
                enabled=True, valid_scopes=SCOPES, default_scopes=["read"]
            ),
            revocation_options=RevocationOptions(enabled=True),
        )
        inner = Starlette(routes=routes)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and scope["path"] == "/register" and self.rejects_registration:
                await Response(status_code=403)(scope, receive, send)
            elif scope["type"] == "http" and scope["path"] == "/token":
                await self._token(inner, scope, receive, send)
            else:
                await inner(scope, receive, send)

        return app

    async def _token(self, inner: Any, scope: Any, receive: Any, send: Any) -> None:
        body = await Request(scope, receive).body()
        form = {key: values[0] for key, values in parse_qs(body.decode()).items()}
        self.grants.append(form)
        self.asked.set()
        if self.hold is not None:
            with anyio.fail_after(LIMIT):
                await self.hold.wait()
        if self.fails_with is not None:
            await Response(status_code=self.fails_with)(scope, receive, send)
            return
        if form.get("grant_type") == "client_credentials":
            await self._by_secret(scope, form)(scope, receive, send)
            return

        async def again() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        await inner(scope, again, send)

    def _by_secret(self, scope: Any, form: dict[str, str]) -> Response:
        header = dict(scope["headers"]).get(b"authorization", b"").removeprefix(b"Basic ")
        user, _, password = base64.b64decode(header).decode().partition(":")
        if self.machine is None or (user, password) != self.machine:
            return JSONResponse({"error": "invalid_client"}, 401)
        token = self._give(user, form.get("scope", "read").split(), form.get("resource"), None)
        return JSONResponse(token.model_dump(exclude_none=True))

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id] = client_info
        if client_info.client_secret:
            self.issued.add(client_info.client_secret)

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        if self.denies:
            raise AuthorizeError("access_denied", "The owner said no")
        code = self._secret("code")
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or ["read"],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._give(client.client_id, authorization_code.scopes, authorization_code.resource, "refresh")

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        if self.refresh.pop(refresh_token.token, None) is None:
            raise TokenError("invalid_grant", "spent")
        return self._give(client.client_id, scopes, refresh_token.resource, "refresh")

    async def load_access_token(self, token: str) -> AccessToken | None:
        return None if self.forgets else self.access.get(token)

    verify_token = load_access_token

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.access.clear()
        self.refresh.clear()

    def _give(self, client_id: str, scopes: list[str], resource: str | None, kind: str | None) -> OAuthToken:
        access = self._secret("access")
        self.access[access] = AccessToken(token=access, client_id=client_id, scopes=scopes, resource=resource)
        refresh = self._secret(kind) if kind else None
        if refresh is not None:
            self.refresh[refresh] = RefreshToken(token=refresh, client_id=client_id, scopes=scopes, resource=resource)
        lifetime = self.lifetimes.pop(0) if self.lifetimes else 3600
        return OAuthToken(access_token=access, expires_in=lifetime, scope=" ".join(scopes), refresh_token=refresh)

    def _secret(self, kind: str) -> str:
        secret = f"{kind}-{secrets.token_urlsafe(24)}"
        self.issued.add(secret)
        return secret


@dataclass
class Protected:
    """Where the two servers are, and what they saw."""

    url: str
    issuer: str
    server: AuthorizationServer
    bearers: list[str] = field(default_factory=list)
    moved_to: str | None = None

    async def browse(self, url: str, _callback: Any = None) -> None:
        """What a browser does whose owner consents."""
        async with httpx2.AsyncClient(follow_redirects=True) as client:
            await client.get(url)

    async def redirected(self, url: str) -> str:
        """Where the authorization server sends the browser."""
        async with httpx2.AsyncClient() as client:
            return str((await client.get(url)).headers["location"])

    def revoke_access(self) -> None:
        """Take the access tokens back; refresh tokens stay good."""
        self.server.access.clear()


async def _do(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
    return text_result(f"did {call['name']}")


@asynccontextmanager
async def protected(server: AuthorizationServer | None = None, mcp_host: str = "127.0.0.1") -> AsyncIterator[Protected]:
    """Both servers, each on a free port; the MCP server at an address of its own if need be."""
    given = server or AuthorizationServer()
    with bound() as login_socket, bound(host=mcp_host) as mcp_socket:
        issuer = f"http://127.0.0.1:{login_socket.getsockname()[1]}"
        url = f"http://{mcp_host}:{mcp_socket.getsockname()[1]}/mcp"
        stand = Protected(url, issuer, given)
        settings = AuthSettings(
            issuer_url=AnyHttpUrl(issuer),
            resource_server_url=AnyHttpUrl(url),
            required_scopes=["read"],
            validate_token_resource=True,
        )
        scripted = ScriptedServer([tool("whoami"), tool("admin")], _do, modern=None)
        inner = scripted.server().streamable_http_app(host=mcp_host, auth=settings, token_verifier=given)

        async def guarded(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await inner(scope, receive, send)
                return
            bearer = dict(scope["headers"]).get(b"authorization", b"").decode()
            stand.bearers.append(bearer)
            body = await Request(scope, receive).body() if scope["method"] == "POST" else b""
            if stand.moved_to is not None:
                await Response(status_code=307, headers={"location": stand.moved_to})(scope, receive, send)
                return
            token = given.access.get(bearer.removeprefix("Bearer "))
            message = json.loads(body) if body else {}
            wants_admin = message.get("method") == "tools/call" and message["params"]["name"] == "admin"
            if token is not None and wants_admin and "admin" not in token.scopes:
                challenge = 'Bearer error="insufficient_scope", scope="admin"'
                await Response("no", 403, {"WWW-Authenticate": challenge})(scope, receive, send)
                return
            rest = iter([{"type": "http.request", "body": body, "more_body": False}])

            async def again() -> Any:
                return next(rest, None) or await receive()

            await inner(scope, again, send)

        async with served(given.app(issuer), login_socket), served(guarded, mcp_socket):
            yield stand
