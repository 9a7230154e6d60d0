"""Tool definitions as the JSON that each protocol version allows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pml_gateway.types import JsonObject

LATEST_VERSION = "2026-07-28"

_FIELDS_SINCE: Mapping[str, tuple[str, ...]] = {
    "2024-11-05": ("name", "description", "inputSchema"),
    "2025-03-26": ("annotations",),
    "2025-06-18": ("title", "outputSchema", "_meta"),
    "2025-11-25": ("icons", "execution"),
}
HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
"""Boolean annotations of a tool."""

_NESTED_FIELDS: Mapping[str, frozenset[str]] = {
    "annotations": frozenset({"title", *HINTS}),
    "execution": frozenset({"taskSupport"}),
    "icons": frozenset({"src", "mimeType", "sizes", "theme"}),
}
_DECODER = json.JSONDecoder()
_REMOVED_IN: Mapping[str, tuple[str, ...]] = {LATEST_VERSION: ("execution",)}

_written = json.JSONEncoder(separators=(",", ":")).encode
"""A shared encoder: making one takes a third of the time of encoding most definitions."""


@cache
def allowed_fields(version: str) -> frozenset[str]:
    """Return the tool fields that exist in a protocol version."""
    fields = {name for since, names in _FIELDS_SINCE.items() if since <= version for name in names}
    removed = {name for since, names in _REMOVED_IN.items() if since <= version for name in names}
    return frozenset(fields - removed)


def tool_for_version(definition: JsonObject, version: str) -> JsonObject:
    """Return the definition with the fields and the schema shapes that this version knows."""
    allowed = allowed_fields(version)
    tool = {key: _known_fields(key, value) for key, value in definition.items() if key in allowed}
    if version < LATEST_VERSION and "outputSchema" in tool and tool["outputSchema"].get("type") != "object":
        # Array and primitive outputs are legal from 2026 on; older clients reject the whole list for one.
        del tool["outputSchema"]
    if tool.get("execution") == {"taskSupport": "required"}:
        # The gateway waits for the task. Clients would refuse to call such a tool without one.
        tool["execution"] = {"taskSupport": "optional"}
    return tool


def _known_fields(key: str, value: Any) -> Any:
    """Return a field without the keys that no version defines, which the SDK would leave out as well."""
    known = _NESTED_FIELDS.get(key)
    if known is None:
        return value
    if isinstance(value, list):
        return [_known_fields(key, item) for item in value]
    return {name: item for name, item in value.items() if name in known}


def decoded_items(array: bytes) -> Iterator[JsonObject]:
    """Yield the objects of a JSON array written by `encode`: reading a long list at once would block every thread."""
    text, at = array.decode(), 1
    while at < len(text) and text[at] != "]":
        item, end = _DECODER.raw_decode(text, at)
        yield item
        at = end + 1 if text[end] == "," else end


def encode(value: object) -> bytes:
    """Return a value as compact JSON for the wire, with the SDK's escaping."""
    return _written(value).encode()
