"""A prompt, resource or template as an upstream sent it becomes the fields of the right type that a version knows."""

from __future__ import annotations

from collections.abc import Mapping

from pml_gateway.catalog.fields import sound_icons
from pml_gateway.catalog.keywords import is_plain
from pml_gateway.types import JsonObject

_TYPES: Mapping[str, type] = {
    "name": str,
    "title": str,
    "description": str,
    "mimeType": str,
    "size": int,
    "arguments": list,
    "annotations": dict,
    "icons": list,
    "_meta": dict,
}
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "prompts": ("title", "description", "arguments", "icons", "_meta"),
    "resources": ("name", "title", "description", "mimeType", "size", "annotations", "icons", "_meta"),
    "templates": ("name", "title", "description", "mimeType", "annotations", "icons", "_meta"),
}
_SINCE: Mapping[str, str] = {"title": "2025-06-18", "_meta": "2025-06-18", "icons": "2025-11-25"}
"""The protocol version that brought a field; the others were always there."""

_ARGUMENT_TYPES: Mapping[str, type] = {"name": str, "title": str, "description": str, "required": bool}
_AUDIENCE = ("user", "assistant")


def sound_offer(raw: JsonObject, kind: str) -> JsonObject:
    """The fields that the protocol allows as they are: one wrong type would make strict clients refuse the whole list.

    What names the offer is not among them; a resource without a name is called by its URI.
    """
    fields: JsonObject = {}
    for key in _FIELDS[kind]:
        value = raw.get(key)
        if isinstance(value, _TYPES[key]) and not isinstance(value, bool) and is_plain(value):
            fields[key] = value
    if "arguments" in fields:
        fields["arguments"] = [_typed(each, _ARGUMENT_TYPES) for each in fields["arguments"] if _is_argument(each)]
    if "annotations" in fields:
        fields["annotations"] = _annotations(fields["annotations"])
    if "icons" in fields:
        fields["icons"] = sound_icons(fields["icons"], [])
    if "name" in _FIELDS[kind]:
        fields.setdefault("name", str(raw.get("uri") or raw.get("uriTemplate")))
    return fields


def offer_for_version(definition: JsonObject, version: str) -> JsonObject:
    """The definition with the fields that a protocol version knows."""
    known = {key: value for key, value in definition.items() if _SINCE.get(key, "") <= version}
    if "arguments" in known and version < _SINCE["title"]:
        known["arguments"] = [
            {key: argument[key] for key in argument if key != "title"} for argument in known["arguments"]
        ]
    return known


def _is_argument(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str)


def _typed(value: JsonObject, types: Mapping[str, type]) -> JsonObject:
    return {key: item for key, item in value.items() if isinstance(item, types.get(key, ()))}


def _annotations(annotations: JsonObject) -> JsonObject:
    kept = dict(annotations)
    audience, priority = kept.get("audience"), kept.get("priority")
    if not isinstance(audience, list) or any(each not in _AUDIENCE for each in audience):
        kept.pop("audience", None)
    if isinstance(priority, bool) or not isinstance(priority, int | float) or not 0 <= priority <= 1:
        kept.pop("priority", None)
    if not isinstance(kept.get("lastModified"), str):
        kept.pop("lastModified", None)
    return {key: value for key, value in kept.items() if key in ("audience", "priority", "lastModified")}
