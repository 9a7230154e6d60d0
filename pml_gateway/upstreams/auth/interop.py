"""Normalization of authorization servers' spellings and omissions, before the SDK's flow reads their responses."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import AuthorizationCodeResult
from pydantic import AnyUrl

from pml_gateway.mcp.sdk import OpenOAuthFlow
from pml_gateway.types import JsonObject

DEFAULT_METHOD = "client_secret_basic"
"""Default authentication method at the token endpoint (RFC 7591)."""

OTHER_METHODS = ("client_secret_post", "none")
"""Other methods that need no key, in order of preference."""

_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]")


def same_issuer(one: str, other: str) -> bool:
    """Return True if two issuers are the same URL, spelled differently (RFC 3986, 6.2.2 and 6.2.3)."""
    return one == other or _normal(one) == _normal(other)


def _normal(url: str) -> str:
    try:
        return str(AnyUrl(_ESCAPED.sub(_unescaped, url)))
    except ValueError:
        return url


def _unescaped(found: re.Match[str]) -> str:
    character = chr(int(found[1], 16))
    return character if _UNRESERVED.fullmatch(character) else found[0].upper()


def method_for(supported: object) -> str | None:
    """Return the method to register with at a server that supports these; None for the default, or if none fits."""
    if not isinstance(supported, list) or DEFAULT_METHOD in supported:
        return None
    return next((method for method in OTHER_METHODS if method in supported), None)


class NormalizedProvider(OpenOAuthFlow):
    """A provider whose flow gets normalized responses; `issuer` is the configured one, if any."""

    issuer: str | None = None

    def answered(self: Any, response: httpx2.Response) -> httpx2.Response:
        """Return a response in the form that the flow expects."""
        if response.status_code not in (200, 201):
            return response
        try:
            document = json.loads(response.content)
        except ValueError:
            return response
        evened = self._evened(document) if isinstance(document, dict) else document
        if evened == document:
            return response
        return httpx2.Response(response.status_code, json=evened, request=response.request)

    def _evened(self: Any, document: JsonObject) -> JsonObject:
        context = self.context
        match document:
            case {"authorization_servers": list(servers)} if self.issuer is not None:
                named = [
                    self.issuer if isinstance(each, str) and same_issuer(each, self.issuer) else each
                    for each in servers
                ]
                return document | {"authorization_servers": named}
            case {"issuer": str(issuer), "token_endpoint": str()}:
                supported = document.get("token_endpoint_auth_methods_supported")
                self.use_methods(supported)
                expected = self.expected_issuer
                return document | {"issuer": expected} if same_issuer(issuer, expected) else document
            case {"client_id": str(), "client_secret": str(secret)} if secret:
                asked = context.client_metadata.token_endpoint_auth_method
                assigned = document.get("token_endpoint_auth_method")
                return document if assigned else document | {"token_endpoint_auth_method": asked or DEFAULT_METHOD}
        return document

    def use_methods(self: Any, supported: object) -> None:
        """Request one of these methods in the registration; a client that is already registered keeps its own."""
        if self.context.client_info is None:
            self.context.client_metadata.token_endpoint_auth_method = method_for(supported)


class ConsentProvider(NormalizedProvider, OAuthClientProvider):
    """The provider for a login by consent.

    `may_choose_method` is set if the client was registered by hand with a secret and no method.
    """

    def __init__(self, *args: Any, may_choose_method: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        self._may_choose_method = may_choose_method

    def use_methods(self, supported: object) -> None:
        """Request one of these methods in the registration, or choose one for a client registered by hand."""
        super().use_methods(supported)
        client = self.context.client_info
        if self._may_choose_method and client is not None and isinstance(supported, list):
            secret = [method for method in (client.token_endpoint_auth_method, DEFAULT_METHOD) if method in supported]
            client.token_endpoint_auth_method = next(iter(secret), client.token_endpoint_auth_method)

    def named(self, result: AuthorizationCodeResult) -> AuthorizationCodeResult:
        """Return the browser's response with its issuer spelled as in the server's metadata."""
        metadata = self.context.oauth_metadata
        if metadata is None or result.iss is None or not same_issuer(result.iss, str(metadata.issuer)):
            return result
        return result.model_copy(update={"iss": str(metadata.issuer)})
