"""The optional fields of a tool as an upstream sent them become those of the right type, with what was dropped."""

from __future__ import annotations

from collections.abc import Mapping

from pml_gateway.catalog.keywords import is_plain
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
_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_TASK_SUPPORT = ("forbidden", "optional", "required")
_THEMES = ("dark", "light")


def sound_fields(raw: JsonObject) -> tuple[JsonObject, list[str]]:
    """The optional fields that the protocol allows as they are, in a fixed order, and the reason for each one left out.

    One wrong type would make strict clients refuse the whole list; null means absent.
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
    """The icons that have a source, without keys of the wrong type."""
    checked = [_icon(icon, f"icons/{index}", dropped) for index, icon in enumerate(icons)]
    return [icon for icon in checked if icon is not None]


def _annotations(annotations: JsonObject, dropped: list[str]) -> JsonObject:
    wrong = {key for key in _HINTS if not isinstance(annotations.get(key, False), bool)}
    if not isinstance(annotations.get("title", ""), str):
        wrong.add("title")
    return _without(annotations, wrong, "annotations", dropped)


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
    """`value` without its wrongly typed keys; the same object when there are none."""
    if not wrong:
        return value
    dropped.extend(f"{pointer}/{key}: wrong type; dropped" for key in sorted(wrong) if value[key] is not None)
    return {key: item for key, item in value.items() if key not in wrong}
