"""User interfaces of servers (MCP Apps): the tools that belong to them, and the clients that show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pml_gateway.mcp.capabilities import APP_TYPE, APPS
from pml_gateway.types import JsonObject

PAGE_SCHEME = "ui://"
"""The beginning of the URI of each page of a user interface."""

UI_KEYS = ("ui", "ui/resourceUri", "openai/outputTemplate")
"""The keys in a tool's `_meta` by which it belongs to a user interface."""


def is_app_only(definition: Mapping[str, Any]) -> bool:
    """Return True if a tool is for the server's user interface alone, and not for the model."""
    ui = _ui(definition)
    visibility = ui.get("visibility")
    return isinstance(visibility, list) and bool(visibility) and "model" not in visibility


def opens_page(definition: Mapping[str, Any]) -> bool:
    """Return True if a page of the server shows the results of a tool that the model calls."""
    meta = definition.get("_meta")
    if not isinstance(meta, dict) or is_app_only(definition):
        return False
    return "resourceUri" in _ui(definition) or not meta.keys().isdisjoint(UI_KEYS[1:])


def without_apps(definition: JsonObject) -> JsonObject | None:
    """Return a tool without its user interface; None if it is for that alone."""
    if is_app_only(definition):
        return None
    meta = definition.get("_meta")
    if not isinstance(meta, dict) or meta.keys().isdisjoint(UI_KEYS):
        return definition
    kept = {key: value for key, value in meta.items() if key not in UI_KEYS}
    rest = {key: value for key, value in definition.items() if key != "_meta"}
    return {**rest, "_meta": kept} if kept else rest


def shows_apps(extensions: Mapping[str, Any] | None) -> bool:
    """Return True if a client with these extensions shows user interfaces."""
    settings = (extensions or {}).get(APPS)
    types = settings.get("mimeTypes") if isinstance(settings, dict) else None
    return isinstance(types, list) and APP_TYPE in types


def _ui(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    meta = definition.get("_meta")
    ui = meta.get("ui") if isinstance(meta, dict) else None
    return ui if isinstance(ui, dict) else {}
