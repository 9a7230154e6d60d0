"""The settings as they may be shown, without credentials, and the credentials that are written into them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from urllib.parse import parse_qsl, unquote, urlsplit

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import Settings
from pml_gateway.secrets.judgement import MASK, Keys, Secret, mapped, masked
from pml_gateway.secrets.masking import mask_tree
from pml_gateway.types import JsonObject

_USER = re.compile(r"(://).*@")


def masked_settings(settings: Settings) -> JsonObject:
    """Return the whole tree as JSON values, without anything that may be a credential."""
    tree = settings.model_dump(mode="json")
    # A wrong URL, of which no password can be told apart, is masked up to its host.
    tree["storage"]["url"] = _USER.sub(rf"\1{MASK}@", tree["storage"]["url"] or "") or None
    shown: JsonObject = {key: mask_tree(value) for key, value in tree.items() if key not in ("servers", "clients")}
    shown["servers"] = {server: masked_server(definition) for server, definition in settings.servers.items()}
    shown["clients"] = {client: mask_tree(section) for client, section in tree["clients"].items()}
    return shown


def masked_server(definition: UpstreamDefinition) -> JsonObject:
    """One server without its defaults and without its credentials."""
    shown: JsonObject = masked(definition.model_dump(mode="json", exclude_defaults=True))
    return shown


def masked_start(definition: UpstreamDefinition) -> str:
    """Return the masked URL or command line of a server."""
    shown = masked_server(definition)
    return str(shown["url"]) if "url" in shown else " ".join([str(shown.get("command")), *shown.get("args", ())])


def literal_credentials(settings: Settings) -> Iterator[str]:
    """Values that are written into the file and may be secret; references are known once they are resolved."""
    for definition in settings.servers.values():
        yield from (text for text in _of_server(definition) if "${" not in text)
    for url in (settings.storage.url or "", settings.telemetry.otlp_endpoint or ""):
        yield from (text for text in _of_url(url) if "${" not in text)


def _of_server(definition: UpstreamDefinition) -> Iterator[str]:
    found: list[str] = []

    def note(text: str, find: Callable[[], tuple[Secret, ...]], at: Keys) -> str:
        secrets = find()
        found.extend(secret.value for secret in secrets)
        # Of a line for logs more may be missing than what is secret in it.
        found.extend([text, text.partition("=")[2], text.partition(":")[2]] if secrets and at[0] == "args" else [])
        found.extend(_of_url(text) if at[0] in ("args", "url") else [])
        return text

    mapped(definition.model_dump(mode="json", exclude_defaults=True), note)
    for name, text in definition.headers.items():
        if name.lower().startswith("x-"):
            found += [text, text.partition(" ")[2]]
    yield from found


def _of_url(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
        yield from (unquote(text) for text in (parts.password, parts.username) if text)
        yield from (value for _, value in parse_qsl(parts.query))
    except ValueError:
        return
