"""The optional fields of tools, prompts and resources: those of the right type, and the reasons for dropping others."""

from __future__ import annotations

from collections.abc import Mapping

from pml_gateway.catalog.hidden_characters import visible_fields
from pml_gateway.catalog.keywords import is_plain
from pml_gateway.catalog.wire import HINTS
from pml_gateway.types import JsonObject

_OPTIONAL_FIELDS: Mapping[str, type] = {
    "title": str,
    "description": str,
    "annotations": dict,
    "icons": list,
    "execution": dict,
    "_meta": dict,
}
_TYPE_NAMES: Mapping[type, str] = {str: "a string", dict: "an object", list: "a list"}
_TASK_SUPPORT = ("forbidden", "optional", "required")
_THEMES = ("dark", "light")

TEXTS = ("title", "description")
HIDDEN = "hidden characters left out"

_OFFER_TYPES: Mapping[str, type] = {
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
_OFFER_FIELDS: Mapping[str, tuple[str, ...]] = {
    "prompts": ("title", "description", "arguments", "icons", "_meta"),
    "resources": ("name", "title", "description", "mimeType", "size", "annotations", "icons", "_meta"),
    "templates": ("name", "title", "description", "mimeType", "annotations", "icons", "_meta"),
}
_SINCE: Mapping[str, str] = {"title": "2025-06-18", "_meta": "2025-06-18", "icons": "2025-11-25"}
"""Protocol version that introduced a field; all other fields always existed."""

_ARGUMENT_TYPES: Mapping[str, type] = {"name": str, "title": str, "description": str, "required": bool}
_AUDIENCE = ("user", "assistant")


def sound_fields(raw: JsonObject) -> tuple[JsonObject, list[str]]:
    """Return the optional fields that the protocol allows, in a fixed order, and the reason for each drop or change.

    One wrong type would make strict clients refuse the whole list; null means absent. Hidden characters are removed
    from texts.
    """
    fields: JsonObject = {}
    dropped: list[str] = []
    for key, kind in _OPTIONAL_FIELDS.items():
        value = raw.get(key)
        if value is None:
            continue
        if not isinstance(value, kind):
            dropped.append(f"{key}: not {_TYPE_NAMES[kind]}")
        elif not is_plain(value):
            dropped.append(f"{key}: not JSON, or nested absurdly deep")
        else:
            fields[key] = value
    shown = visible_fields(fields, TEXTS)
    dropped.extend(f"{key}: {HIDDEN}" for key in TEXTS if shown.get(key) is not fields.get(key))
    fields = shown
    if "annotations" in fields:
        fields["annotations"] = _annotations(fields["annotations"], dropped)
    if "execution" in fields:
        fields["execution"] = _execution(fields["execution"], dropped)
    if "icons" in fields:
        kept = sound_icons(fields["icons"], dropped)
        fields = {key: value for key, value in fields.items() if key != "icons" or kept}
        if kept:
            fields["icons"] = kept
    return fields, dropped


def sound_icons(icons: list[object], dropped: list[str]) -> list[JsonObject]:
    """Return the icons that have a source, without keys of the wrong type."""
    checked = [_icon(icon, f"icons/{index}", dropped) for index, icon in enumerate(icons)]
    return [icon for icon in checked if icon is not None]


def _annotations(annotations: JsonObject, dropped: list[str]) -> JsonObject:
    wrong = {key for key in HINTS if not isinstance(annotations.get(key, False), bool)}
    if not isinstance(annotations.get("title", ""), str):
        wrong.add("title")
    kept = _without(annotations, wrong, "annotations", dropped)
    shown = visible_fields(kept, ("title",))
    if shown is not kept:
        dropped.append(f"annotations/title: {HIDDEN}")
    return shown


def _execution(execution: JsonObject, dropped: list[str]) -> JsonObject:
    wrong = set() if execution.get("taskSupport", "forbidden") in _TASK_SUPPORT else {"taskSupport"}
    return _without(execution, wrong, "execution", dropped)


def _icon(icon: object, pointer: str, dropped: list[str]) -> JsonObject | None:
    if not isinstance(icon, dict) or not isinstance(icon.get("src"), str):
        dropped.append(f"{pointer}: no object with a src; dropped")
        return None
    sizes = icon.get("sizes", [])
    wrong = set() if isinstance(icon.get("mimeType", ""), str) else {"mimeType"}
    if not isinstance(sizes, list) or not all(isinstance(size, str) for size in sizes):
        wrong.add("sizes")
    if icon.get("theme", "dark") not in _THEMES:
        wrong.add("theme")
    return _without(icon, wrong, pointer, dropped)


def _without(value: JsonObject, wrong: set[str], pointer: str, dropped: list[str]) -> JsonObject:
    """Return `value` without its wrongly typed keys; the same object if there are none."""
    if not wrong:
        return value
    dropped.extend(f"{pointer}/{key}: wrong type; dropped" for key in sorted(wrong) if value[key] is not None)
    return {key: item for key, item in value.items() if key not in wrong}


def sound_offer(raw: JsonObject, kind: str) -> JsonObject:
    """Return the fields that the protocol allows: one wrong type would make strict clients refuse the whole list.

    Hidden characters are removed from texts. The field that identifies the offer is left out; a resource without a
    name gets its URI as name.
    """
    fields: JsonObject = {}
    for key in _OFFER_FIELDS[kind]:
        value = raw.get(key)
        if isinstance(value, _OFFER_TYPES[key]) and not isinstance(value, bool) and is_plain(value):
            fields[key] = value
    if "arguments" in fields:
        arguments = [_typed(each, _ARGUMENT_TYPES) for each in fields["arguments"] if _is_argument(each)]
        fields["arguments"] = [visible_fields(each, TEXTS) for each in arguments]
    if "annotations" in fields:
        fields["annotations"] = _offer_annotations(fields["annotations"])
    if "icons" in fields:
        fields["icons"] = sound_icons(fields["icons"], [])
    if "name" in _OFFER_FIELDS[kind]:
        fields.setdefault("name", str(raw.get("uri") or raw.get("uriTemplate")))
    return visible_fields(fields, ("name", *TEXTS))


def offer_for_version(definition: JsonObject, version: str) -> JsonObject:
    """Return the definition with the fields that a protocol version knows."""
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


def _offer_annotations(annotations: JsonObject) -> JsonObject:
    kept = dict(annotations)
    audience, priority = kept.get("audience"), kept.get("priority")
    if not isinstance(audience, list) or any(each not in _AUDIENCE for each in audience):
        kept.pop("audience", None)
    if isinstance(priority, bool) or not isinstance(priority, int | float) or not 0 <= priority <= 1:
        kept.pop("priority", None)
    if not isinstance(kept.get("lastModified"), str):
        kept.pop("lastModified", None)
    return {key: value for key, value in kept.items() if key in ("audience", "priority", "lastModified")}
