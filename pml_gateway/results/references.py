"""References in arguments: finding `{"$ref": handle, "path": jmespath}` and substituting the values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pml_gateway.errors import InvalidInputError
from pml_gateway.exposure.vocabulary import meaning
from pml_gateway.types import JsonObject

HANDLE_PREFIX = "ref_"
MAX_REFERENCES = 200
MAX_DEPTH = 200

_HANDLE = re.compile(r"ref_(?:[0-9a-f]{12}-)?[A-Za-z0-9_-]{22}\Z")

Reference = tuple[str, str | None]
"""A handle and the path into its value."""


def is_handle(text: str) -> bool:
    """Return True if the text has the form of a handle."""
    return _HANDLE.match(text) is not None


def find_references(arguments: JsonObject) -> list[Reference]:
    """Return every reference in the arguments, in order; JSON Schema's `$ref`, which has other values, is not one.

    Raises:
        InvalidInputError: a reference has other keys, a path is not text, a handle stands alone, or there are too many.
    """
    found: list[Reference] = []
    _collect(arguments, found, 0)
    return found


def substitute(value: Any, values: Mapping[Reference, Any]) -> Any:
    """Return `value` with references replaced by their values, which are shared, not copied, and not searched again."""
    if isinstance(value, list):
        return [substitute(item, values) for item in value]
    if not isinstance(value, dict):
        return value
    if is_reference(value):
        return values[value["$ref"], value.get("path")]
    return {key: substitute(member, values) for key, member in value.items()}


def check_no_handle(text: str, key: str = "") -> None:
    """Refuse a bare handle, which a tool would take as plain text; the key `ref`, as other gateways use it, is allowed.

    Raises:
        InvalidInputError: the text is a handle; the hint says how to pass its value.
    """
    if text.startswith(HANDLE_PREFIX) and key != "ref" and is_handle(text):
        raise InvalidInputError(
            f"{key or 'an item'}: {text} by itself is a text, and not what it stands for",
            hint=f'write {{"$ref": "{text}"}}, with "path" for a part of it',
        )


def _collect(value: Any, found: list[Reference], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InvalidInputError(f"the arguments are nested more than {MAX_DEPTH} deep")
    if isinstance(value, list):
        for item in value:
            if isinstance(item, str):
                check_no_handle(item)
            elif isinstance(item, list | dict):
                _collect(item, found, depth + 1)
    elif isinstance(value, dict):
        if is_reference(value):
            found.append(checked(value))
            if len(found) > MAX_REFERENCES:
                raise InvalidInputError(f"more than {MAX_REFERENCES} references in one call", hint="pass fewer")
            return
        for key, member in value.items():
            if isinstance(member, str):
                check_no_handle(member, key)
            elif isinstance(member, list | dict):
                _collect(member, found, depth + 1)


def is_reference(value: JsonObject) -> bool:
    """Return True if an object in arguments is a reference; JSON Schema's `$ref` has other values."""
    handle = value.get("$ref")
    return isinstance(handle, str) and handle.startswith(HANDLE_PREFIX)


def checked(value: JsonObject) -> Reference:
    """Return the handle and path of a reference object.

    Raises:
        InvalidInputError: it has other keys, or its path is not text.
    """
    handle, path = value["$ref"], value.get("path")
    others = sorted(set(value) - {"$ref", "path"})
    if others:
        meant = [key for key in others if path is None and meaning(key, ("path",)) is not None]
        hint = f'write "path" instead of "{meant[0][:64]}"; ' if len(meant) == 1 else ""
        raise InvalidInputError(
            f"the reference {handle} has other keys: {', '.join(others)[:200]}",
            hint=f'{hint}write {{"$ref": "...", "path": "<jmespath>"}}, where path is optional',
        )
    if path is not None and not isinstance(path, str):
        raise InvalidInputError(f"the path of {handle} is no text", hint='for example "path": "items[0].id"')
    return handle, path or None
