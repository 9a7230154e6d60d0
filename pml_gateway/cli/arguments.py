"""JSON and NAME=VALUE pairs of a command line become the arguments of a tool."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pml_gateway.cli.flags import converted_value, flags_of
from pml_gateway.errors import InvalidInputError

if TYPE_CHECKING:
    from pml_gateway.types import JsonObject


def given_arguments(text: str | None, pairs: list[str], schema: JsonObject | None = None) -> JsonObject:
    """Arguments from a JSON object and NAME=VALUE pairs; a schema says which type a value has, else JSON does.

    Raises:
        InvalidInputError: one of them is neither, or of a type the schema does not allow.
    """
    given: Any = {}
    if text:
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(
                f"the arguments are no JSON: {error}", hint='for example \'{"path": "a.txt"}\''
            ) from None
    if not isinstance(given, dict):
        raise InvalidInputError("the arguments are no JSON object", hint='for example \'{"path": "a.txt"}\'')
    flags = {flag.path: flag for flag in flags_of(schema or {})}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise InvalidInputError(f"--arg {pair!r} is not NAME=VALUE")
        flag = flags.get((key,))
        given[key] = converted_value(flag, value) if flag is not None else _json_or_text(value)
    return given


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
