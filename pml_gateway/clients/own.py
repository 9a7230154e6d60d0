"""The gateway's own entry in a client's file: how it is written and recognized."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Literal
from urllib.parse import urlsplit

from pml_gateway.clients.model import FileFormat, KnownClient, Variables
from pml_gateway.config.settings import CALLS_BY_EFFECT, HttpSettings, Settings
from pml_gateway.errors import ConfigurationError, UsageError
from pml_gateway.secrets.references import SecretReference, references, resolve
from pml_gateway.text import suggestion

ENTRY_NAME = "pml"

ConnectionKind = Literal["stdio", "http"]

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_ENDPOINT = re.compile(r"/mcp(?:/[a-z_]+)?/?\Z")
_PLACES = ("PML_HOME", "PML_CONFIG")
SET_OPTION = "--set"

META_TOOLS_VARIABLE = "PML_GATEWAY__META_TOOLS"
"""Names the meta-tools of one client, whatever `gateway.meta_tools` of the configuration says."""

OWN_VARIABLES = frozenset({*_PLACES, META_TOOLS_VARIABLE})
"""The variables that `pml connect` writes; their values are no secrets."""


def own_kind(raw: object, http: HttpSettings) -> ConnectionKind | None:
    """Return how a client's entry connects to this gateway; None if it does not."""
    if not isinstance(raw, dict):
        return None
    command, words = _command_line(raw)
    if command is not None:
        return "stdio" if _is_pml(command, words) and "serve" in words else None
    url = next((raw[key] for key in ("url", "httpUrl", "serverUrl") if isinstance(raw.get(key), str)), None)
    return "http" if url is not None and _is_endpoint(url, http) else None


def serves_alone(raw: Any) -> bool:
    """Return True if a client's entry starts a gateway for this client alone."""
    return "--alone" in _command_line(raw)[1]


def own_words(raw: Any) -> list[str]:
    """Return the options that the user gave `pml serve` in an entry that starts it."""
    words = _command_line(raw)[1]
    return words[words.index("serve") + 1 :]


def _command_line(raw: Any) -> tuple[str | None, list[str]]:
    """Return the command of an entry and its arguments, in any client's form."""
    command, args = raw.get("command"), raw.get("args") or ()
    match command:
        case dict(nested):
            command, args = nested.get("path"), nested.get("args") or ()
        case [first, *rest]:
            command, args = first, rest
    if isinstance(command, str) and isinstance(args, list | tuple):
        return command, [str(item) for item in args]
    return None, []


def _is_pml(command: str, words: list[str]) -> bool:
    name = PureWindowsPath(PurePosixPath(command).name).name.lower().removesuffix(".exe")
    return name == "pml" or "pml_gateway" in words or "pml" in words or "pml-gateway" in words


def _is_endpoint(url: str, http: HttpSettings) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    hosts = _LOOPBACK | {http.host}
    return parts.hostname in hosts and port == http.port and _ENDPOINT.search(parts.path) is not None


def places_of(raw: object) -> dict[str, str]:
    """Return the home and configuration of an entry's gateway, if the entry specifies them."""
    variables = raw.get("env") if isinstance(raw, Mapping) else None
    return _places(variables) if isinstance(variables, Mapping) else {}


def own_places(environ: Mapping[str, str]) -> dict[str, str]:
    """Return this gateway's home and configuration: clients do not start servers with this shell's variables."""
    return {name: str(Path(text).expanduser().absolute()) for name, text in _places(environ).items()}


def _places(variables: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(variables[name]) for name in _PLACES if variables.get(name)}


def pml_command(executable: Path | None = None) -> list[str]:
    """Return the command that starts this `pml`, whatever the working directory."""
    python = executable or Path(sys.executable)
    for name in ("pml", "pml.exe"):
        script = python.parent / name
        if script.is_file():
            return [str(script)]
    # Without -P, modules in the client's working directory would be imported.
    return [str(python), "-P", "-m", "pml_gateway"]


@dataclass(frozen=True, slots=True)
class OwnEntry:
    """The entry to write; `secret` is the key in plain text, if the user chose that.

    `dropped` are the variables that do not stay from the entry that it replaces.
    """

    kind: ConnectionKind
    values: dict[str, Any] = field(repr=False)
    secret: str = field(default="", repr=False)
    dropped: frozenset[str] = frozenset(_PLACES)

    def keeping(self, before: Any) -> OwnEntry:
        """Return the entry with the options and variables of the entry it replaces, if both start the gateway."""
        if self.kind != "stdio" or before is None or "serve" not in _command_line(before)[1]:
            return self
        there = before.get("env") if isinstance(before.get("env"), Mapping) else {}
        own = self.values.get("env", {})
        variables = {name: text for name, text in there.items() if name in own or name not in self.dropped} | own
        values: dict[str, Any] = {}
        for name, value in self.values.items():
            if name == "args":
                # The same members in the same order, or connecting again would change the file each time.
                kept = own_words(before)
                if SET_OPTION in value:
                    kept = _without_sets(kept)
                values |= {name: [*value, *kept]} | ({"env": variables} if variables else {})
            elif name != "env":
                values[name] = value
        return replace(self, values=values)


def _without_sets(words: Sequence[str]) -> list[str]:
    """Return options of `pml serve` without those that name sets."""
    follows = [False, *(word == SET_OPTION for word in words)]
    return [
        word
        for word, is_name in zip(words, follows, strict=False)
        if not is_name and word != SET_OPTION and not word.startswith(f"{SET_OPTION}=")
    ]


def calls_by_effect_in(entry: Mapping[str, Any]) -> bool:
    """Return True if our entry names meta-tools that call tools up to an effect."""
    text = entry.get("env", {}).get(META_TOOLS_VARIABLE)
    return isinstance(text, str) and not CALLS_BY_EFFECT.keys().isdisjoint(text.split(","))


def stdio_entry(
    client: KnownClient,
    environ: Mapping[str, str] = os.environ,
    *,
    pin: bool,
    meta_tools: Sequence[str] | None = None,
    sets: Sequence[str] = (),
) -> OwnEntry:
    """Return an entry that starts the gateway for the client.

    Args:
        client: the client.
        environ: the variables that say where the gateway's files are.
        pin: keep the client from deferring the gateway's tools.
        meta_tools: the meta-tools of this client alone; empty: those of the configuration, None: as it is.
        sets: the sets that it is started with; none: as it is.
    """
    command, *rest = pml_command()
    values: dict[str, Any] = {}
    if client.shape.stdio_type:
        values["type"] = client.shape.stdio_type
    values |= {"command": command, "args": [*rest, "serve", *(word for name in sets for word in (SET_OPTION, name))]}
    variables = own_places(environ)
    if meta_tools:
        variables[META_TOOLS_VARIABLE] = ",".join(meta_tools)
    if variables:
        values["env"] = variables
    dropped = frozenset(_PLACES) if meta_tools is None else OWN_VARIABLES
    return OwnEntry("stdio", _finished(values, client, pin), dropped=dropped)


def http_entry(
    client: KnownClient, settings: Settings, *, client_key: str | None, write_key: bool, pin: bool
) -> OwnEntry:
    """Return an entry with the URL of the gateway's HTTP server, and a key if one is required.

    Raises:
        ConfigurationError: the client supports only stdio, or its key or the way to pass it is ambiguous.
    """
    if not client.shape.speaks_http:
        raise ConfigurationError(
            f"{client.title} starts its servers itself and takes no URL in its file",
            hint=f"run `pml connect {client.name}` without --http",
        )
    host = settings.http.host if settings.http.host not in ("0.0.0.0", "::", "") else "127.0.0.1"
    shown = f"[{host}]" if ":" in host else host
    values: dict[str, Any] = {}
    if client.shape.http_type:
        values["type"] = client.shape.http_type
    values[client.shape.http_url] = f"http://{shown}:{settings.http.port}/mcp"
    secret = ""
    key = _key(settings, client_key)
    if key is not None:
        secret = _put_key(values, client, key, write_key)
    return OwnEntry("http", _finished(values, client, pin), secret)


def _key(settings: Settings, name: str | None) -> str | None:
    names = list(settings.clients)
    if name is None and not names:
        return None
    if name is None and len(names) == 1:
        name = names[0]
    if name is None:
        raise ConfigurationError("the gateway has several clients", hint=f"add --as NAME: {', '.join(names)}")
    if name not in settings.clients:
        raise UsageError(
            f"no client {name!r} in clients:{suggestion(name, names)}", hint=f"known: {', '.join(names) or 'none'}"
        )
    return settings.clients[name].key


def _put_key(values: dict[str, Any], client: KnownClient, key: str, write_key: bool) -> str:
    """Add the key to `values`; return it if it had to be written in plain text."""
    (reference,) = references(key)
    if write_key:
        secret = resolve(key)
        values[client.shape.headers] = {"Authorization": f"Bearer {secret}"}
        return secret
    if client.file_format is FileFormat.TOML and reference.kind == "env":
        values["bearer_token_env_var"] = reference.name
        return ""
    variable = _variable(client, reference)
    if variable is None:
        raise ConfigurationError(
            f"{client.title} cannot read {reference.label} from its file",
            hint="add --write-key to write the key itself there, or connect without --http",
        )
    values[client.shape.headers] = {"Authorization": f"Bearer {variable}"}
    return ""


def _variable(client: KnownClient, reference: SecretReference) -> str | None:
    if reference.kind != "env":
        return None
    match client.variables:
        case Variables.BRACED | Variables.DOLLAR:
            return f"${{{reference.name}}}"
        case Variables.PREFIXED | Variables.ANY:
            return f"${{env:{reference.name}}}"
        case Variables.NONE:
            return None


def _finished(values: dict[str, Any], client: KnownClient, pin: bool) -> dict[str, Any]:
    values |= dict(client.shape.extra)
    if pin and client.pin_key:
        values[client.pin_key] = True
    return values
