"""`auth:` of a server entry, in the spellings of any known client, becomes an `AuthDefinition`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})

_SPELLINGS = {
    # Cursor writes CLIENT_ID, Claude Code and Gemini write clientId; without case and underscores they are one.
    "clientid": "client_id",
    "clientsecret": "client_secret",
    "scope": "scopes",
    "redirecturi": "redirect_uri",
    "clientmetadataurl": "client_metadata_url",
}


class AuthKind(StrEnum):
    """Where the gateway's access token for an upstream comes from."""

    OAUTH = "oauth"
    CLIENT_CREDENTIALS = "client_credentials"
    NONE = "none"


def _scopes(value: object) -> object:
    return tuple(value.split()) if isinstance(value, str) else value


class AuthDefinition(BaseModel):
    """How to log in to one upstream. Secrets stay references until they are sent."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    type: AuthKind = Field(
        default=AuthKind.OAUTH, description="oauth logs a person in; client_credentials needs none; none never logs in"
    )
    client_id: str | None = Field(default=None, description="of a client registered by hand")
    client_secret: str | None = Field(default=None, description="its secret, as a reference")
    scopes: Annotated[tuple[str, ...], BeforeValidator(_scopes)] = Field(default=(), description="asked for at login")
    redirect_uri: str | None = Field(default=None, description="where the browser returns to; a loopback address")
    client_metadata_url: str | None = Field(default=None, description="a client described by a document at this URL")
    issuer: str | None = Field(
        default=None, description="the authorization server, the only place the secret is sent to"
    )
    method: Literal["basic", "post"] | None = Field(default=None, description="how the secret is sent")

    @model_validator(mode="before")
    @classmethod
    def _from_client_shapes(cls, raw: object) -> object:
        if isinstance(raw, str):
            return {"type": raw}
        if raw is False:
            return {"type": AuthKind.NONE}
        if not isinstance(raw, dict):
            return raw
        entry = {_spelling(key): value for key, value in raw.items() if value is not None}
        port = entry.pop("callbackPort", None)
        if isinstance(port, int):
            entry.setdefault("redirect_uri", f"http://localhost:{port}/callback")
        return entry

    @model_validator(mode="after")
    def _is_complete(self) -> AuthDefinition:
        match self.type:
            case AuthKind.NONE:
                self._allows("type none")
            case AuthKind.OAUTH:
                self._allows(
                    "type oauth",
                    "client_id",
                    "client_secret",
                    "scopes",
                    "redirect_uri",
                    "client_metadata_url",
                    "method",
                )
                if self.client_secret and not self.client_id:
                    raise ValueError("`client_secret` needs a `client_id`")
                if self.client_metadata_url and self.client_id:
                    raise ValueError("give either `client_id` or `client_metadata_url`, not both")
            case AuthKind.CLIENT_CREDENTIALS:
                self._allows("type client_credentials", "client_id", "client_secret", "scopes", "issuer", "method")
                missing = [name for name in ("client_id", "client_secret", "issuer") if not getattr(self, name)]
                if missing:
                    raise ValueError(
                        f"type client_credentials also needs {', '.join(missing)}; `issuer` is the authorization "
                        "server's URL, the only place the secret is sent to"
                    )
        _check_urls(self)
        return self

    def _allows(self, name: str, *allowed: str) -> None:
        given = {"type", *allowed}
        extra = [key for key in type(self).model_fields if getattr(self, key) and key not in given]
        if extra:
            raise ValueError(f"{name} takes no {', '.join(extra)}")

    @property
    def scope(self) -> str | None:
        """The configured scopes as OAuth writes them."""
        return " ".join(self.scopes) or None


def _spelling(key: Any) -> Any:
    return _SPELLINGS.get(key.lower().replace("_", ""), key) if isinstance(key, str) else key


def _check_urls(auth: AuthDefinition) -> None:
    if auth.redirect_uri is not None:
        parts = urlsplit(auth.redirect_uri)
        if parts.scheme != "http" or parts.hostname not in LOOPBACK_HOSTS or not _port(auth.redirect_uri):
            raise ValueError("`redirect_uri` must be on this machine, with a port: http://127.0.0.1:<port>/<path>")
    if auth.client_metadata_url is not None:
        parts = urlsplit(auth.client_metadata_url)
        if parts.scheme != "https" or parts.path in ("", "/"):
            raise ValueError("`client_metadata_url` must be an https URL with a path")
    if auth.issuer is not None and not auth.issuer.startswith(("https://", "http://")):
        raise ValueError("`issuer` must be the http(s) URL of the authorization server")


def _port(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError:
        return None


def foreign_auth(value: object) -> object:
    """What other clients write under `oauth:`, as `auth:`; keys that mean nothing here are left out."""
    if value is False:
        return {"type": AuthKind.NONE}
    if not isinstance(value, dict):
        return None
    known = {"client_id", "client_secret", "scopes", "callbackPort"}
    return {_spelling(key): item for key, item in value.items() if _spelling(key) in known} or None
