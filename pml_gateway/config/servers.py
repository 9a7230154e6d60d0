"""One entry of `servers:`, in the shape of any known client's `mcpServers`: its start, address and login."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from pml_gateway.config.commands.packages import kept_state
from pml_gateway.config.foreign_entries import in_one_shape
from pml_gateway.config.limits import Limits
from pml_gateway.types import EFFECT_HINTS, Effect, JsonObject, effect_of

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
    """Source of the gateway's access token for an upstream."""

    OAUTH = "oauth"
    CLIENT_CREDENTIALS = "client_credentials"
    NONE = "none"


def _scopes(value: object) -> object:
    return tuple(value.split()) if isinstance(value, str) else value


class AuthDefinition(BaseModel):
    """Login settings of one upstream. Secrets stay references until they are sent."""

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
    """Return other clients' `oauth:` settings as `auth:`, without keys unknown here."""
    if value is False:
        return {"type": AuthKind.NONE}
    if not isinstance(value, dict):
        return None
    known = {"client_id", "client_secret", "scopes", "callbackPort"}
    return {_spelling(key): item for key, item in value.items() if _spelling(key) in known} or None


class Transport(StrEnum):
    """Transport between the gateway and an upstream."""

    STDIO = "stdio"
    HTTP = "http"
    SSE = "sse"
    SKILLS = "skills"
    """No server: the gateway itself serves the skills in folders."""


_NamedTransport = Literal[Transport.STDIO, Transport.HTTP, Transport.SSE]

_TRANSPORT_SPELLINGS = {
    "stdio": Transport.STDIO,
    "local": Transport.STDIO,
    "http": Transport.HTTP,
    "streamable-http": Transport.HTTP,
    "streamablehttp": Transport.HTTP,
    "http-stream": Transport.HTTP,
    "remote": Transport.HTTP,
    "sse": Transport.SSE,
}


def _transport(value: object) -> object:
    if value is None or isinstance(value, Transport):
        return value
    known = _TRANSPORT_SPELLINGS.get(str(value).strip().lower().replace("_", "-"))
    if known is None:
        given = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
        raise ValueError(f"unknown transport {given}; use one of stdio, http, sse")
    return known


def _strings(value: object) -> object:
    """Let YAML numbers and booleans stand for their text in `env`, `headers` and `args`."""
    if isinstance(value, dict):
        return {key: _string(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_string(item) for item in value]
    return value


def _string(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def one_or_more(value: object) -> object:
    """Let one text stand for a list of it."""
    return (value,) if isinstance(value, str) else value


def _has_authorization(headers: object) -> bool:
    return isinstance(headers, dict) and any(str(name).lower() == "authorization" for name in headers)


class ToolSettings(BaseModel):
    """One tool of a server."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    enabled: bool = Field(
        default=True, description="false: the tool does not exist for any client; `pml disable SERVER:TOOL`"
    )
    effect: Literal["read", "write", "destructive"] | None = Field(
        default=None, description="what its calls do; replaces the server's own hints"
    )
    title: str | None = Field(default=None, min_length=1, description="replaces the server's title")
    description: str | None = Field(default=None, min_length=1, description="replaces the server's description")
    limits: Limits = Limits()


class ExtensionSettings(BaseModel):
    """Extensions of the protocol between clients and servers."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    deny: tuple[str, ...] = Field(
        default=(), description="identifiers that neither side is told of, such as `io.modelcontextprotocol/ui`"
    )


class UpstreamDefinition(BaseModel):
    """One MCP server behind the gateway. Secrets stay references (`${env:}`, `${file:}`) until it is started."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, hide_input_in_errors=True)

    command: str | None = Field(default=None, description="the program of a stdio server")
    args: Annotated[tuple[str, ...], BeforeValidator(_strings)] = Field(
        default=(), description="the program's arguments"
    )
    env: Annotated[dict[str, str], BeforeValidator(_strings)] = Field(
        default_factory=dict, description="its variables; secrets as `${env:NAME}` or `${file:PATH}`"
    )
    env_file: str | None = Field(default=None, description="NAME=value lines, read when the server starts; env wins")
    cwd: str | None = Field(
        default=None,
        description="the folder it runs in; without it, the client's, which `${cwd}` stands for, or the home directory "
        "where all clients share it",
    )
    url: str | None = Field(default=None, description="the address of an HTTP or SSE server")
    headers: Annotated[dict[str, str], BeforeValidator(_strings)] = Field(
        default_factory=dict,
        description="sent with every request; secrets as references",
    )
    skills: Annotated[tuple[str, ...], BeforeValidator(one_or_more)] = Field(
        default=(), description="folders of skills, which the gateway serves itself; instead of `command` and `url`"
    )
    auth: AuthDefinition | None = Field(default=None, description="how to log in; without it, the server says how")
    transport: Annotated[_NamedTransport | None, BeforeValidator(_transport)] = Field(
        default=None,
        validation_alias=AliasChoices("transport", "type"),
        description="how it is reached; follows from `command` and `url`",
    )
    enabled: bool = Field(default=True, description="false: it is not started, and its tools are gone")
    tools: dict[str, ToolSettings] = Field(default_factory=dict, description="by the tool's own name")
    effect_default: Literal["read", "write"] | None = Field(
        default=None, description="what calls of tools without hints do; without it, anything, as MCP has it"
    )
    extensions: ExtensionSettings = Field(
        default=ExtensionSettings(), description="in addition to upstreams.extensions"
    )
    limits: Limits = Limits()
    sessions: Literal["shared", "per_folder", "per_client"] | None = Field(
        default=None,
        description="shared: of all clients; per_folder: of those of one folder; per_client: one for each of them; "
        "without it, as suits what is known of the server",
    )
    call_timeout: float | None = Field(default=None, gt=0, description="seconds; default upstreams.call_timeout")
    call_timeout_total: float | None = Field(
        default=None, gt=0, description="seconds; default upstreams.call_timeout_total"
    )
    connect_timeout: float | None = Field(default=None, gt=0, description="seconds; default upstreams.connect_timeout")
    max_concurrent: int | None = Field(default=None, ge=1, description="default upstreams.max_concurrent")
    max_queue: int | None = Field(default=None, ge=0, description="default upstreams.max_queue")
    max_sessions: int | None = Field(
        default=None, ge=1, description="sessions of single clients, in addition to the shared one"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_client_shapes(cls, raw: object) -> object:
        if not isinstance(raw, dict):
            return raw
        entry = in_one_shape(raw)
        foreign = foreign_auth(entry.pop("oauth", None))
        if foreign is not None and "url" in entry and not _has_authorization(entry.get("headers")):
            entry.setdefault("auth", foreign)
        return entry

    @model_validator(mode="after")
    def _names_one_transport(self) -> UpstreamDefinition:
        if self.skills:
            if self.command is not None or self.url is not None or self.transport is not None:
                raise ValueError("give either `skills` or a server's `command`, `url` and `transport`, not both")
            return self
        if self.command is None and self.url is None:
            raise ValueError("give `command` (stdio) or `url` (HTTP, SSE)")
        if self.command is not None and self.url is not None:
            raise ValueError("give either `command` (stdio) or `url` (HTTP, SSE), not both")
        if self.command is not None and self.transport not in (None, Transport.STDIO):
            raise ValueError(f"`command` starts a stdio server, but the transport is {self.transport}")
        if self.url is not None:
            if self.transport is Transport.STDIO:
                raise ValueError("`url` needs transport http or sse")
            if not self.url.startswith(("http://", "https://", "${")):
                raise ValueError("`url` must start with http:// or https://")
        if self.auth is not None and self.auth.type is not AuthKind.NONE:
            if self.url is None:
                raise ValueError("`auth` belongs to a server with a `url`; give a stdio server its secrets in `env`")
            if self.has_authorization_header:
                raise ValueError("give either `auth` or `headers.Authorization`, not both")
        return self

    @property
    def has_authorization_header(self) -> bool:
        """Return True if the operator wrote credentials into the headers, which no login replaces."""
        return _has_authorization(self.headers)

    @property
    def resolved_transport(self) -> Transport:
        """The transport named, or the one the other keys imply (a URL that ends in `/sse` is SSE)."""
        if self.transport is not None:
            return self.transport
        if self.skills:
            return Transport.SKILLS
        if self.command is not None:
            return Transport.STDIO
        return Transport.SSE if (self.url or "").rstrip("/").endswith("/sse") else Transport.HTTP

    @property
    def keeps(self) -> str:
        """Return the state that a server is known to keep between calls, which clients must not share."""
        return kept_state(self.command, self.args) if self.command is not None else ""

    @property
    def resolved_sessions(self) -> Literal["shared", "per_folder", "per_client"]:
        """The sessions named, or those that suit what is known of the server."""
        return self.sessions or ("per_client" if self.keeps else "shared")

    @property
    def disabled_tools(self) -> frozenset[str]:
        """The names of the tools that are switched off."""
        return frozenset(name for name, tool in self.tools.items() if not tool.enabled)

    @property
    def changes_tools(self) -> bool:
        """Return True if its owner switches tools off, or replaces a part of their definitions."""
        return bool(self.tools) or self.effect_default is not None

    def as_configured(self, tool: JsonObject) -> JsonObject | None:
        """Return the definition of a tool with what its owner replaces; None if it is switched off."""
        settings = self.tools.get(str(tool.get("name")), ToolSettings())
        if not settings.enabled:
            return None
        effect = settings.effect
        if effect is None and effect_of(tool.get("annotations")) is Effect.UNKNOWN:
            effect = self.effect_default
        changed: JsonObject = {
            key: text for key in ("title", "description") if (text := getattr(settings, key)) is not None
        }
        if effect is not None:
            given = tool.get("annotations")
            hints = given.items() if isinstance(given, dict) else ()
            replaced = EFFECT_HINTS if settings.effect is None else (*EFFECT_HINTS, "idempotentHint")
            kept = {key: hint for key, hint in hints if key not in replaced}
            changed["annotations"] = {**kept, **Effect(effect).hints}
        return {**tool, **changed} if changed else tool

    def fingerprint(self) -> str:
        """Return a hash of what decides which tools this upstream has; secrets enter as references only."""
        identity = self.model_dump(
            mode="json", include={"command", "args", "env", "cwd", "url", "headers", "transport"}
        )
        if self.env_file:
            identity["env_file"] = self.env_file
        if self.skills:
            identity["skills"] = self.skills
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def disabled_tools(servers: Mapping[str, UpstreamDefinition]) -> list[tuple[str, str]]:
    """Server and name of each tool that is switched off."""
    return [(server, name) for server, definition in servers.items() for name in sorted(definition.disabled_tools)]
