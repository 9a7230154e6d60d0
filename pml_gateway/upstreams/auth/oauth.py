"""The SDK's OAuth client with persistence: logins are stored, renewed and revoked."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError

from pml_gateway.config.servers import AuthDefinition, Transport, UpstreamDefinition
from pml_gateway.errors import GatewayError, UpstreamAuthError, UpstreamUnavailableError
from pml_gateway.mcp.http import plain
from pml_gateway.mcp.network import Network
from pml_gateway.mcp.sdk import refresh_request, stream_within_origin
from pml_gateway.mcp.transport import resolved_headers
from pml_gateway.secrets.references import resolve_in
from pml_gateway.upstreams.auth.addresses import LoginAddresses, login_client
from pml_gateway.upstreams.auth.logins import StoredLogin, login_command
from pml_gateway.working_directory import WorkingDirectory

REVOKE_SECONDS = 5.0

_REFUSED = frozenset({400, 401, 403})
_PROBE = "pml_gateway.probe"
_ERROR_CODE = re.compile(r'"error"\s*:\s*"([A-Za-z0-9_.\- ]{1,60})"')


class GrantRefusedError(Exception):
    """The authorization server no longer accepts the refresh token; a person has to log in again."""


class MemoryTokenStorage:
    """The SDK's token storage, in memory: a login is only stored as a whole, after it has succeeded."""

    def __init__(self, client: OAuthClientInformationFull | None = None) -> None:
        self.tokens: OAuthToken | None = None
        self._client = client

    async def get_tokens(self) -> OAuthToken | None:
        """Return None: a login starts without tokens."""
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info


class _Restored(OAuthClientProvider):
    """The provider in its state after the login.

    The SDK stores neither endpoints nor expiry, and would send the refresh token to the MCP server after a restart.
    """

    def __init__(self, login: StoredLogin) -> None:
        metadata = OAuthClientMetadata(redirect_uris=None, scope=login.scope)
        super().__init__(login.server_url, metadata, MemoryTokenStorage(login.client))
        self.context.client_info = login.client
        self.context.current_tokens = login.tokens
        self.context.oauth_metadata = login.metadata
        self.context.protected_resource_metadata = login.resource
        self.context.protocol_version = HANDSHAKE_PROTOCOL_VERSIONS[-1]


def stored_login(context: OAuthContext, tokens: OAuthToken, addresses: LoginAddresses) -> StoredLogin:
    """Return the login that results from a finished flow."""
    assert context.client_info is not None
    login = StoredLogin(
        server_url=context.server_url,
        tokens=None,
        client=context.client_info,
        metadata=context.oauth_metadata,
        resource=context.protected_resource_metadata,
        obtained_at=0.0,
        allowed=addresses.allowed,
        zone=addresses.zone,
    )
    return login.with_tokens(tokens)


def oauth_client(
    addresses: LoginAddresses, working_directory: WorkingDirectory, headers: dict[str, str] | None = None
) -> httpx2.AsyncClient:
    """Create a client for one exchange with a server and its authorization server."""
    # The SDK logs whole responses of authorization servers, which contain tokens.
    logging.getLogger("mcp.client.auth").setLevel(logging.CRITICAL + 1)
    return login_client(addresses, Network.of(working_directory), headers)


def addresses_of(upstream_id: str, login: StoredLogin) -> LoginAddresses:
    """Return the addresses that a login may use."""
    return LoginAddresses(upstream_id, login.server_url, allowed=login.allowed, zone=login.zone)


async def refreshed(upstream_id: str, login: StoredLogin, working_directory: WorkingDirectory) -> StoredLogin:
    """Return the login with new tokens.

    Raises:
        GrantRefusedError: the refresh token is expired, revoked or unknown.
        UpstreamAuthError: the owner has not allowed the login to use an address.
        UpstreamUnavailableError: the authorization server gave no usable response; the refresh token may be valid.
    """
    try:
        request = await refresh_request(_Restored(login))
        async with oauth_client(addresses_of(upstream_id, login), working_directory) as client:
            response = await client.send(request)
    except OAuthFlowError:
        raise GrantRefusedError from None
    except (httpx2.HTTPError, httpx2.StreamError, OSError) as exc:
        raise _unreachable(upstream_id, type(exc).__name__) from None
    if response.status_code in _REFUSED:
        raise GrantRefusedError
    if response.status_code != 200:
        raise _unreachable(upstream_id, f"HTTP {response.status_code}")
    try:
        return login.with_tokens(OAuthToken.model_validate_json(response.content))
    except ValidationError:
        raise _unreachable(upstream_id, "it answered without a token") from None


async def revoked(upstream_id: str, login: StoredLogin, working_directory: WorkingDirectory) -> bool:
    """Revoke the tokens; return True if the authorization server did."""
    endpoint = login.metadata.revocation_endpoint if login.metadata else None
    if login.tokens is None or endpoint is None:
        return False
    token, kind = login.tokens.refresh_token, "refresh_token"
    if token is None:
        token, kind = login.tokens.access_token, "access_token"
    form = {"token": token, "token_type_hint": kind, "client_id": login.client.client_id}
    try:
        form, headers = _Restored(login).context.prepare_token_auth(form, {})
        async with oauth_client(addresses_of(upstream_id, login), working_directory) as client:
            answer = await client.post(str(endpoint), data=form, headers=headers, timeout=REVOKE_SECONDS)
    except (OAuthFlowError, UpstreamAuthError, httpx2.HTTPError, httpx2.StreamError, OSError):
        return False
    return answer.status_code == 200


async def client_credentials(
    upstream_id: str,
    definition: UpstreamDefinition,
    auth: AuthDefinition,
    working_directory: WorkingDirectory,
    *,
    allowed: Collection[str] = (),
) -> StoredLogin:
    """Log in with the client's own id and secret, without a person.

    The login may use the configured issuer, and the `allowed` origins.

    Raises:
        UpstreamAuthError: the id or secret was refused, or the server names another issuer than the configured one.
        UpstreamUnavailableError: a server cannot be reached.
    """
    # Importing it loads a JWT library, which only this kind of login needs.
    from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider

    from pml_gateway.upstreams.auth.interop import NormalizedProvider

    class Provider(NormalizedProvider, ClientCredentialsOAuthProvider):
        """The SDK's provider with normalized responses."""

        issuer = auth.issuer

    url = resolve_in(definition.url or "", working_directory)
    storage = MemoryTokenStorage()
    provider = Provider(
        url,
        storage,
        client_id=resolve_in(auth.client_id or "", working_directory),
        client_secret=resolve_in(auth.client_secret or "", working_directory),
        token_endpoint_auth_method="client_secret_post" if auth.method == "post" else "client_secret_basic",
        scope=auth.scope,
        issuer=auth.issuer,
    )
    addresses = LoginAddresses(upstream_id, url, allowed=[*allowed, *([auth.issuer] if auth.issuer else [])])
    async with flow_errors(upstream_id, hint=f"check servers.{upstream_id}.auth"):
        await probe(definition, url, provider, working_directory, scope=auth.scope, addresses=addresses)
    if storage.tokens is None:
        raise UpstreamAuthError(
            f"{upstream_id}: the authorization server gave no token", hint=f"check servers.{upstream_id}.auth"
        )
    return stored_login(provider.context, storage.tokens, addresses)


async def probe(
    definition: UpstreamDefinition,
    url: str,
    provider: OAuthClientProvider,
    working_directory: WorkingDirectory,
    *,
    scope: str | None,
    addresses: LoginAddresses,
) -> int:
    """Run the provider's flow with a harmless request to the server; return the status of the last response.

    The flow starts even if the server answers without a token: some require one only for tool calls.
    """

    async def challenge(response: httpx2.Response) -> None:
        request = response.request
        if _PROBE not in request.extensions or "authorization" in request.headers:
            return
        if response.status_code < 300 or response.status_code in (400, 405, 406, 415):
            response.status_code = 401
        if response.status_code == 401 and scope:
            asked = response.headers.get("www-authenticate", "")
            response.headers["www-authenticate"] = f'Bearer scope="{scope}", {asked}'

    method = "GET" if definition.resolved_transport is Transport.SSE else "POST"
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": HANDSHAKE_PROTOCOL_VERSIONS[-1],
    }
    body: Any = {"jsonrpc": "2.0", "id": 1, "method": "ping"} if method == "POST" else None
    async with oauth_client(addresses, working_directory, resolved_headers(definition, working_directory)) as client:
        client.auth = provider
        client.event_hooks["response"].append(challenge)
        async with stream_within_origin(
            client, method, url, headers=headers, json=body, extensions={_PROBE: True}
        ) as response:
            return response.status_code


async def check_endpoints(context: OAuthContext, addresses: LoginAddresses) -> None:
    """Check that a login may use all endpoints, and that the server supports PKCE.

    Raises:
        UpstreamAuthError: the login may not use an endpoint.
        OAuthFlowError: the server does not support the only safe challenge method.
    """
    metadata = context.oauth_metadata
    if metadata is None:
        return
    for endpoint in (
        metadata.authorization_endpoint,
        metadata.token_endpoint,
        metadata.registration_endpoint,
        metadata.revocation_endpoint,
    ):
        if endpoint is not None:
            await addresses.check(str(endpoint))
    methods = metadata.code_challenge_methods_supported
    if methods is not None and "S256" not in methods:
        raise OAuthFlowError("the authorization server does not support PKCE with S256")


@asynccontextmanager
async def flow_errors(upstream_id: str, *, hint: str) -> AsyncIterator[None]:
    """Translate the SDK's errors in a flow, without the responses that they quote (codes, tokens and secrets)."""
    try:
        yield
    except GatewayError:
        raise
    except OAuthRegistrationError:
        raise UpstreamAuthError(
            f"{upstream_id}: the server offers no login that needs no preparation (it registers no clients by itself)",
            hint=f"register a client there and set servers.{upstream_id}.auth.client_id, or set servers.{upstream_id}"
            ".headers if it wants a key",
        ) from None
    except OAuthTokenError as exc:
        code = _ERROR_CODE.search(str(exc))
        why = f": {code[1]}" if code else ""
        raise UpstreamAuthError(f"{upstream_id}: the authorization server gave no token{why}", hint=hint) from None
    except OAuthFlowError as exc:
        raise UpstreamAuthError(f"{upstream_id}: {plain(str(exc))}", hint=hint) from None
    except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError) as exc:
        raise UpstreamUnavailableError(
            f"{upstream_id}: the server or its authorization server cannot be reached ({type(exc).__name__})",
            hint="is it running?",
        ) from None
    except ValueError:
        # pydantic's errors quote the invalid input.
        raise UpstreamAuthError(
            f"{upstream_id}: the authorization server answered outside the protocol", hint=hint
        ) from None


def _unreachable(upstream_id: str, reason: str) -> UpstreamUnavailableError:
    return UpstreamUnavailableError(
        f"{upstream_id}: the access token ended, and the authorization server does not renew it ({reason})",
        hint=f"call again later, or: {login_command(upstream_id)}",
    )
