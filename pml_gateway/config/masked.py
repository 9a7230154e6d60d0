"""The settings as they may be shown, without credentials, and the credentials that are written into them."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import parse_qsl, unquote, urlsplit

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import Settings
from pml_gateway.secrets.masking import as_of_a_server, is_secret_name, mask_arguments, mask_tree
from pml_gateway.types import JsonObject


def masked_settings(settings: Settings) -> JsonObject:
    """The whole tree as JSON values, without anything that may be a credential."""
    tree = settings.model_dump(mode="json")
    shown: JsonObject = {key: mask_tree(value) for key, value in tree.items() if key not in ("servers", "clients")}
    shown["servers"] = {server: masked_server(definition) for server, definition in settings.servers.items()}
    shown["clients"] = {client: mask_tree(section) for client, section in tree["clients"].items()}
    return shown


def masked_server(definition: UpstreamDefinition) -> JsonObject:
    """One server without its defaults and without its credentials."""
    shown: JsonObject = {}
    for key, value in definition.model_dump(mode="json", exclude_defaults=True).items():
        is_launch = key in ("env", "headers", "args")
        shown[key] = mask_tree(value, as_of_a_server, (key,)) if is_launch else mask_tree(value)
    return shown


def masked_start(definition: UpstreamDefinition) -> str:
    """How a server is reached: its URL, or its command line."""
    shown = masked_server(definition)
    return str(shown["url"]) if "url" in shown else " ".join([str(shown.get("command")), *shown.get("args", ())])


def literal_credentials(settings: Settings) -> Iterator[str]:
    """Values that are written into the file and may be secret; references are known once they are resolved."""
    for definition in settings.servers.values():
        yield from (text for text in _of_server(definition) if "${" not in text)
    for url in (settings.references.store, settings.telemetry.otlp_endpoint or ""):
        yield from (text for text in _of_url(url) if "${" not in text)


def _of_server(definition: UpstreamDefinition) -> Iterator[str]:
    for name, text in definition.headers.items():
        if is_secret_name(name) or name.lower().startswith("x-"):
            yield text
            yield text.partition(" ")[2]
    yield from (text for name, text in definition.env.items() if is_secret_name(name))
    for argument, shown in zip(definition.args, mask_arguments(definition.args), strict=True):
        if shown != argument:
            yield argument
            yield argument.partition("=")[2]
            yield argument.partition(":")[2]
            yield from _of_url(argument)
    yield from _of_url(definition.url or "")


def _of_url(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
        yield from (unquote(text) for text in (parts.password, parts.username) if text)
        yield from (value for _, value in parse_qsl(parts.query))
    except ValueError:
        return
