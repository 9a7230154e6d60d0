"""Arguments are searched for `{"$ref": handle, "path": jmespath}`, and values are put in their place."""

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

_HANDLE = re.compile(r"ref_[A-Za-z0-9_-]{22}\Z")

Reference = tuple[str, str | None]
"""A handle and the path into what it stands for."""


def is_handle(text: str) -> bool:
    """Whether the text has the form of a handle."""
    return _HANDLE.match(text) is not None


def find_references(arguments: JsonObject) -> list[Reference]:
    """Every reference in the arguments, in order; `$ref` of JSON Schema, which has other values, is none.

    Raises:
        InvalidInputError: a reference with other keys, a path that is no text, a handle alone, or too many references.
    """
    found: list[Reference] = []
    _collect(arguments, found, 0)
    return found


def substitute(value: Any, values: Mapping[Reference, Any]) -> Any:
    """`value` with values for its references; they are shared, not copied, and not searched again."""
    if isinstance(value, list):
        return [substitute(item, values) for item in value]
    if not isinstance(value, dict):
        return value
    if is_reference(value):
        return values[value["$ref"], value.get("path")]
    return {key: substitute(member, values) for key, member in value.items()}


def check_no_handle(text: str, key: str = "") -> None:
    """Refuse a handle by itself, which a tool would take for the text that it is; `ref` is what other gateways call it.

    Raises:
        InvalidInputError: says how its value is passed.
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
    """Whether an object in arguments stands for a stored result; `$ref` of JSON Schema has other values."""
    handle = value.get("$ref")
    return isinstance(handle, str) and handle.startswith(HANDLE_PREFIX)


def checked(value: JsonObject) -> Reference:
    """The handle and path of an object that is a reference.

    Raises:
        InvalidInputError: it has other keys, or a path that is no text.
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
