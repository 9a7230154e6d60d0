"""Settings that are valid but will not do what their author expects become warnings."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pml_gateway.config.env_file import read_env_file
from pml_gateway.config.masking import MASK, is_secret_name, mask_secret
from pml_gateway.config.secrets import resolve
from pml_gateway.config.settings import GatewaySection, NamespaceSettings, Settings
from pml_gateway.errors import SecretError
from pml_gateway.types import ExposureMode

MAX_NAMED_CLIENTS = 5

_FOREIGN = re.compile(r"(?<!\$)\$\{(?!env:|file:)[A-Za-z_][^{}]*\}")
_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "fish", "cmd", "powershell", "pwsh"})


def intent_sources(settings: Settings) -> tuple[str, ...]:
    """Where a mode selects tools by intent and nothing configured can ever supply one."""
    gateway = settings.gateway
    if gateway.intent:
        return ()
    warnings = []
    clients_with_intent = [name for name, client in settings.clients.items() if client.intent]
    if _needs_intent(gateway, gateway.tools_exposure) and not clients_with_intent:
        warnings.append(
            f"gateway.tools_exposure is {gateway.tools_exposure} and no intent is configured: a client that sends none "
            f"sees only {_without_intent(gateway, gateway.tools_exposure)}; set gateway.intent (for example in the "
            "project's .pml.yaml), clients.<name>.intent, or add ?query= to the endpoint URL"
        )
    blind = [
        name
        for name, client in settings.clients.items()
        if client.mode is not None and _needs_intent(gateway, client.mode) and not client.intent
    ]
    if blind:
        more = f" and {len(blind) - MAX_NAMED_CLIENTS} more" if len(blind) > MAX_NAMED_CLIENTS else ""
        warnings.append(
            f"clients {', '.join(blind[:MAX_NAMED_CLIENTS])}{more} pin a mode that selects tools by intent and have "
            "none; set clients.<name>.intent or gateway.intent"
        )
    return tuple(warnings)


def without_effect(settings: Settings) -> tuple[str, ...]:
    """Settings of this tree that the gateway does not act on."""
    return tuple(_without_effect(settings))


def _without_effect(settings: Settings) -> Iterator[str]:
    gateway = settings.gateway
    if gateway.legacy_tools and gateway.style != "namespaces":
        yield "gateway.legacy_tools has no effect; it belongs to gateway.style: namespaces"
    if gateway.namespaces != NamespaceSettings() and gateway.style != "namespaces":
        yield "gateway.namespaces has no effect; it belongs to gateway.style: namespaces"
    modes = {gateway.tools_exposure, *(client.mode for client in settings.clients.values())}
    if gateway.style == "namespaces" and not modes & {ExposureMode.META_ONLY, ExposureMode.HYBRID}:
        yield f"gateway.style: namespaces changes meta_only and hybrid, not {gateway.tools_exposure}"


def _needs_intent(gateway: GatewaySection, mode: ExposureMode) -> bool:
    match mode:
        case ExposureMode.SEMANTIC:
            return True
        case ExposureMode.HYBRID:
            return gateway.hybrid.expose_underlying_tools and gateway.hybrid.apply_semantic_filter
        case ExposureMode.META_ONLY | ExposureMode.FULL_PROXY:
            return False


def _without_intent(gateway: GatewaySection, mode: ExposureMode) -> str:
    if mode is ExposureMode.SEMANTIC:
        return "the meta-tools"
    parts = [
        *(["the meta-tools"] if gateway.hybrid.expose_meta_tools else []),
        *(["the whitelisted tools"] if gateway.hybrid.whitelisted_tools else []),
        *(["the most used tools"] if gateway.hybrid.fallback == "usage" else []),
    ]
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:]))) or "an empty list"


def unresolved_references(settings: Settings, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """References of enabled servers and of clients that stand for nothing right now."""
    return tuple(f"{key}: {error}" for key, error in unresolved(settings, environ))


def unresolved(settings: Settings, environ: Mapping[str, str] = os.environ) -> Iterator[tuple[str, SecretError]]:
    """The key of each reference that stands for nothing right now, and why."""
    for key, text in _reference_texts(settings):
        try:
            resolve(text, environ)
        except SecretError as exc:
            yield key, exc


def foreign_variables(settings: Settings) -> tuple[str, ...]:
    """Variables in the spelling of a client, which the gateway passes on as they are written."""
    shells = {name for name, item in settings.servers.items() if Path(item.command or "").stem in _SHELLS}
    warnings = []
    for key, text in _reference_texts(settings):
        section, server, *_ = key.split(".", 2)
        found = _FOREIGN.search(text)
        # What a shell is given, it expands itself.
        if found is not None and section == "servers" and server not in shells:
            warnings.append(
                f"{key}: {_without_default(found[0])} is passed on as it is written; the gateway fills in "
                "${env:NAME} and ${file:PATH} only"
            )
    return tuple(warnings)


def _without_default(variable: str) -> str:
    """The variable without a default, which may be a credential."""
    name, colon, _ = variable.partition(":-")
    return f"{name}:-...}}" if colon else variable


def unreadable_env_files(settings: Settings, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Files of variables (`envFile`) of enabled servers that cannot be read."""
    warnings = []
    for name, definition in settings.servers.items():
        if not definition.enabled or not definition.env_file:
            continue
        try:
            read_env_file(
                Path(resolve(definition.cwd or "", environ)) / Path(resolve(definition.env_file, environ)).expanduser()
            )
        except SecretError as exc:
            warnings.append(f"servers.{name}.env_file: {exc}")
    return tuple(warnings)


def literal_secrets(settings: Settings) -> tuple[str, ...]:
    """Variables, headers and URLs that hold a credential instead of a reference to it."""
    keys = [
        key
        for key, name, text in _server_variables(settings)
        if is_secret_name(name) and mask_secret(text) == MASK and "${" not in text
    ]
    store = settings.references.store
    if store.startswith("redis") and "@" in store and "${" not in store:
        keys.append("references.store")
    return tuple(
        f"{key} holds a literal secret; move it out of the file and write ${{env:NAME}} or ${{file:PATH}}"
        for key in keys
    )


def _server_variables(settings: Settings) -> Iterator[tuple[str, str, str]]:
    for server, definition in settings.servers.items():
        for section, values in (("env", definition.env), ("headers", definition.headers)):
            for name, text in values.items():
                yield f"servers.{server}.{section}.{name}", name, text
        if definition.auth is not None and definition.auth.client_secret is not None:
            yield f"servers.{server}.auth.client_secret", "client_secret", definition.auth.client_secret


def _reference_texts(settings: Settings) -> Iterator[tuple[str, str]]:
    enabled = {name: definition for name, definition in settings.servers.items() if definition.enabled}
    for key, _, text in _server_variables(settings.model_copy(update={"servers": enabled})):
        yield key, text
    for server, definition in enabled.items():
        for field, value in (("command", definition.command), ("url", definition.url), ("cwd", definition.cwd)):
            if value is not None:
                yield f"servers.{server}.{field}", value
        for position, text in enumerate(definition.args):
            yield f"servers.{server}.args[{position}]", text
    for client, section in settings.clients.items():
        yield f"clients.{client}.key", section.key
    yield "references.store", settings.references.store
