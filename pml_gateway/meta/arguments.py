"""Checked access to the arguments of meta-tools; models send numbers and objects as text as well."""

from __future__ import annotations

from typing import Any

from pml_gateway.errors import InvalidInputError
from pml_gateway.exposure.vocabulary import from_text, kind_of, object_in
from pml_gateway.text import nearest, shortened
from pml_gateway.types import JsonObject


def string(arguments: JsonObject, key: str, *, default: str) -> str:
    """Return the text under `key`, or the default.

    Raises:
        InvalidInputError: it is not a text.
    """
    value = arguments.get(key, default)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str):
        raise _refused(key, f"{key}: {shown(value)} is no string", f'write "{key}": "<text>"')
    return value


def integer(arguments: JsonObject, key: str, *, default: int, minimum: int, maximum: int) -> int:
    """Return an integer of at least `minimum`; a value above `maximum` is lowered to it.

    Raises:
        InvalidInputError: it is not such an integer.
    """
    value: Any = arguments.get(key, default)
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise _refused(key, f"{key}: {shown(value)} is no integer of at least {minimum}", f'write "{key}": {default}')
    return min(value, maximum)


def choice(arguments: JsonObject, key: str, choices: tuple[str, ...]) -> str:
    """Return one of the choices; the first if none is given.

    Raises:
        InvalidInputError: it is not among the choices.
    """
    value = arguments.get(key, choices[0])
    chosen = value.lower() if isinstance(value, str) else value
    if chosen not in choices:
        meant = nearest(value, choices)
        hint = f'write "{key}": "{meant[0] if meant else choices[0]}"'
        raise _refused(key, f"{key}: {shown(value)} is none of {', '.join(choices)}", hint, closest=meant)
    return str(chosen)


def boolean(arguments: JsonObject, key: str) -> bool:
    """Return a boolean, also from text; False if none is given.

    Raises:
        InvalidInputError: it is not a boolean.
    """
    value = arguments.get(key) or False
    truth = {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value
    if not isinstance(truth, bool):
        hint = f'write "{key}": true or "{key}": false'
        raise _refused(key, f"{key}: {shown(value)} is neither true nor false", hint)
    return truth


def strings(arguments: JsonObject, key: str, example: str) -> list[str]:
    """Return a list of texts, also from JSON text, from one text, or from several separated by commas.

    Raises:
        InvalidInputError: it is not a list of texts, or it is empty.
    """
    value = from_text(arguments.get(key))
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
        raise _refused(key, f"{key}: a list of texts is needed", f'write "{key}": {example}')
    return value


def json_object(value: object) -> JsonObject:
    """Return arguments as an object; models also send them as JSON text.

    Raises:
        InvalidInputError: they are not an object.
    """
    if value is None:
        return {}
    found = object_in(value)
    if found is None:
        what = "a text that is no JSON object" if isinstance(value, str) else kind_of(value)
        hint = 'write "arguments": {"<parameter>": <value>}'
        raise _refused("arguments", f"arguments: a JSON object is needed, not {what}", hint)
    return found


def shown(value: object) -> str:
    """Return a value for a message, shortened."""
    return shortened(repr(value), 80)


def _refused(key: str, message: str, hint: str, **details: Any) -> InvalidInputError:
    """Return the error for one argument, with its path."""
    errors = [{"path": f"/{key}", "message": message, "hint": hint}]
    return InvalidInputError(message, hint=hint, details={"errors": errors, **details})
