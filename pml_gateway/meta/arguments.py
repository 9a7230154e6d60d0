"""Arguments of meta-tools as checked values; models send numbers and objects as text as well."""

from __future__ import annotations

import json
from typing import Any

from pml_gateway.errors import InvalidInputError
from pml_gateway.types import JsonObject


def string(arguments: JsonObject, key: str, *, default: str) -> str:
    """The text under `key`, or the default.

    Raises:
        InvalidInputError: it is no text.
    """
    value = arguments.get(key, default)
    if not isinstance(value, str):
        raise InvalidInputError(f"{key}: {value!r} is no string")
    return value


def integer(arguments: JsonObject, key: str, *, default: int, minimum: int, maximum: int) -> int:
    """An integer of at least `minimum`; a larger one than `maximum` means `maximum`.

    Raises:
        InvalidInputError: it is none.
    """
    value: Any = arguments.get(key, default)
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InvalidInputError(f"{key}: {value!r} is no integer of at least {minimum}")
    return min(value, maximum)


def boolean(arguments: JsonObject, key: str) -> bool:
    """A truth value; false where none is given.

    Raises:
        InvalidInputError: it is none.
    """
    value = arguments.get(key)
    if value in (None, "", "false", "False"):
        return False
    if value in ("true", "True"):
        return True
    if not isinstance(value, bool):
        raise InvalidInputError(f"{key}: {value!r} is neither true nor false")
    return value


def choice(arguments: JsonObject, key: str, choices: tuple[str, ...]) -> str:
    """One of the choices; the first where none is given.

    Raises:
        InvalidInputError: it is another.
    """
    value = arguments.get(key, choices[0])
    if value not in choices:
        raise InvalidInputError(f"{key}: {value!r} is none of {', '.join(choices)}")
    return str(value)


def json_object(value: object) -> JsonObject:
    """Arguments as an object; models also send them as JSON text.

    Raises:
        InvalidInputError: they are no object.
    """
    if value is None:
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise InvalidInputError("arguments: the text is no JSON object", hint="send an object") from None
    if not isinstance(value, dict):
        raise InvalidInputError(f"arguments: a JSON object is needed, not {type(value).__name__}")
    return value
