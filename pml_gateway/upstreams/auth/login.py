"""A login at an upstream: a person's consent in a browser, stored for all gateways with the same home folder."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

import anyio
import anyio.to_thread
from mcp.client.auth.utils import union_scopes
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata
from pydantic import AnyUrl

from pml_gateway.config.servers import AuthDefinition, AuthKind, UpstreamDefinition
from pml_gateway.errors import ConfigurationError, UpstreamAuthError
from pml_gateway.secrets.references import resolve_in
from pml_gateway.storage.places import obstacle
from pml_gateway.upstreams.auth.addresses import LoginAddresses
from pml_gateway.upstreams.auth.callback import Callback, listening
from pml_gateway.upstreams.auth.interop import ConsentProvider
from pml_gateway.upstreams.auth.logins import LoginStore, StoredLogin, login_command
from pml_gateway.upstreams.auth.oauth import (
    MemoryTokenStorage,
    check_endpoints,
    client_credentials,
    flow_errors,
    probe,
    revoked,
    stored_login,
)
from pml_gateway.working_directory import WorkingDirectory

Show = Callable[[str, Callback], Awaitable[None]]
"""Shows a person an authorization URL; may pass the address that the person was sent back to to the callback."""


async def log_in(
    upstream_id: str,
    definition: UpstreamDefinition,
    store: LoginStore,
    show: Show,
    *,
    timeout: float,
    allowed: Collection[str] = (),
) -> StoredLogin:
    """Log in and store the result; the previous login is kept until this has succeeded.

    Raises:
        ConfigurationError: this server does not support a login.
        UpstreamAuthError: consent was denied, the time ran out, the server refused, or it sends the login to an origin
            that is not `allowed`.
    """
    auth = checked_auth(upstream_id, definition)
    here = WorkingDirectory.here()
    url = resolve_in(definition.url or "", here)
    path = store.path(upstream_id, url, auth)
    if reason := obstacle(path.parent):
        raise ConfigurationError(
            f"{upstream_id}: a login cannot be stored: {path.parent} cannot be written ({reason})",
            hint="set PML_HOME to a folder of your own",
        )
    if auth.type is AuthKind.CLIENT_CREDENTIALS:
        login = await client_credentials(upstream_id, definition, auth, here, allowed=allowed)
    else:
        scope = await anyio.to_thread.run_sync(_wanted_scope, upstream_id, auth, store, url)
        with anyio.move_on_after(timeout) as limit:
            addresses = LoginAddresses(upstream_id, url, allowed=allowed)
            login = await _by_consent(upstream_id, definition, auth, url, scope, show, addresses)
        if limit.cancelled_caught:
            raise UpstreamAuthError(
                f"{upstream_id}: no login within {timeout:g} s; nothing was stored",
                hint=login_command(upstream_id),
            )
    async with store.locked(upstream_id, path):
        await anyio.to_thread.run_sync(store.save, path, login)
    return login


async def log_out(upstream_id: str, definition: UpstreamDefinition, store: LoginStore) -> tuple[bool, bool]:
    """Delete a login; return if there was one, and if the authorization server revoked its tokens."""
    auth = checked_auth(upstream_id, definition)
    here = WorkingDirectory.here()
    path = store.path(upstream_id, resolve_in(definition.url or "", here), auth)
    try:
        login = await anyio.to_thread.run_sync(store.load, upstream_id, path)
    except UpstreamAuthError:
        login = None
    async with store.locked(upstream_id, path):
        was_there = store.delete(path)
    return was_there, login is not None and await revoked(upstream_id, login, here)


def checked_auth(upstream_id: str, definition: UpstreamDefinition) -> AuthDefinition:
    """Return the login settings of this server.

    Raises:
        ConfigurationError: it does not support a login.
    """
    where = f"servers.{upstream_id}"
    if definition.url is None:
        raise ConfigurationError(
            f"{upstream_id} is a stdio server, which takes no login", hint=f"give it its secrets in {where}.env"
        )
    if definition.has_authorization_header:
        raise ConfigurationError(
            f"{upstream_id} has its credentials in {where}.headers.Authorization",
            hint="remove that header to log in instead",
        )
    if definition.auth is not None and definition.auth.type is AuthKind.NONE:
        raise ConfigurationError(f"{where}.auth is none", hint="remove it to log in")
    return definition.auth or AuthDefinition()


def _wanted_scope(upstream_id: str, auth: AuthDefinition, store: LoginStore, url: str) -> str | None:
    """Return the configured scopes, and those that calls have lacked since the last login."""
    try:
        login = store.load(upstream_id, store.path(upstream_id, url, auth))
    except UpstreamAuthError:
        login = None
    if login is None or login.wanted_scope is None:
        return auth.scope
    return union_scopes(auth.scope or login.scope, login.wanted_scope)


async def _by_consent(
    upstream_id: str,
    definition: UpstreamDefinition,
    auth: AuthDefinition,
    url: str,
    scope: str | None,
    show: Show,
    addresses: LoginAddresses,
) -> StoredLogin:
    async with (
        listening(upstream_id, auth.redirect_uri) as callback,
        flow_errors(upstream_id, hint=login_command(upstream_id)),
    ):
        storage = MemoryTokenStorage(_registered(auth, callback.redirect_uri))

        async def redirect(authorization_url: str) -> None:
            await addresses.check(authorization_url)
            await check_endpoints(provider.context, addresses)
            callback.expect(authorization_url)
            await show(authorization_url, callback)

        async def answer() -> AuthorizationCodeResult:
            return provider.named(await callback.result())

        provider = ConsentProvider(
            url,
            OAuthClientMetadata(redirect_uris=[AnyUrl(callback.redirect_uri)], client_name="pml-gateway", scope=scope),
            storage,
            redirect,
            answer,
            client_metadata_url=auth.client_metadata_url,
            may_choose_method=auth.method is None and auth.client_secret is not None,
        )
        status = await probe(definition, url, provider, WorkingDirectory.here(), scope=scope, addresses=addresses)
        if storage.tokens is None:
            raise UpstreamAuthError(
                f"{upstream_id}: the server answered HTTP {status} and asked for no login",
                hint=f"check servers.{upstream_id}.url",
            )
        if status == 401:
            raise UpstreamAuthError(
                f"{upstream_id}: the server refuses the token of its own authorization server; nothing was stored",
                hint=f"check servers.{upstream_id}.url and auth",
            )
        return stored_login(provider.context, storage.tokens, addresses)


def _registered(auth: AuthDefinition, redirect_uri: str) -> OAuthClientInformationFull | None:
    """Return the client registered by hand; None to register anew with each login, as the callback's port changes."""
    if auth.client_id is None:
        return None
    secret = resolve_in(auth.client_secret, WorkingDirectory.here()) if auth.client_secret else None
    method = "none" if secret is None else f"client_secret_{auth.method or 'post'}"
    return OAuthClientInformationFull(
        client_id=resolve_in(auth.client_id, WorkingDirectory.here()),
        client_secret=secret,
        redirect_uris=[AnyUrl(redirect_uri)],
        token_endpoint_auth_method=method,
    )
