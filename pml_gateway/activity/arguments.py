"""Arguments of a call as records keep them: nothing, keys with sizes, or values without secrets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from pml_gateway.config.settings import KeptArguments
from pml_gateway.json_text.pieces import measure
from pml_gateway.secrets.judgement import KNOWN_CREDENTIAL, MASK, Keys
from pml_gateway.secrets.known import KNOWN_SECRETS, without_secrets
from pml_gateway.secrets.masking import mask_text, mask_tree
from pml_gateway.secrets.names import is_secret_name
from pml_gateway.types import JsonObject

MAX_TEXT = 500
"""Characters of a query, an intent or a name that are kept."""

MAX_NAME = 100
"""Characters of a text whose masked form is remembered."""

MAX_MASKED = 2000
MAX_WHOLE = 64 * 1024
"""Characters of arguments as JSON; of larger ones, keys and sizes are kept."""

MAX_KEYS = 100
"""A call has fewer; a client may send any number."""

MAX_MEASURED = 1 << 40


def masked(text: str) -> str:
    """Return a text of a client without secrets, cut to MAX_TEXT characters."""
    shown = text[:MAX_TEXT].encode(errors="replace").decode()
    return _mask_name(shown, KNOWN_SECRETS.version) if len(shown) <= MAX_NAME else without_secrets(shown)


@lru_cache(4096)
def _mask_name(text: str, _version: int) -> str:
    # The names of tools and arguments come again and again.
    return without_secrets(text)


def size_of(value: object) -> int:
    """Return the approximate characters of a value as JSON."""
    return measure(value, MAX_MEASURED)


def kept_arguments(arguments: JsonObject, wanted: KeptArguments) -> tuple[KeptArguments, JsonObject | None]:
    """Return arguments as they are kept, and how that is: too large ones as their keys and sizes."""
    if wanted == "off":
        return "off", None
    limit = MAX_MASKED if wanted == "masked" else MAX_WHOLE
    if wanted != "keys" and measure(arguments, limit) <= limit:
        judge = _masked_value if wanted == "masked" else _whole_value
        text = json.dumps(mask_tree(arguments, judge), ensure_ascii=False, default=str)
        # A secret that is a number leaves no JSON behind.
        with suppress(ValueError):
            shown: JsonObject = json.loads(KNOWN_SECRETS.masked(text.encode(errors="replace").decode(), MASK))
            return wanted, shown
    keys = list(arguments)[:MAX_KEYS]
    return "keys", {masked(str(key)): size_of(arguments[key]) for key in keys}


def _masked_value(value: Any, at: Keys) -> Any:
    """Mask a value under the name of a secret, and whatever looks like one in any other text."""
    match value:
        case _ if at and is_secret_name(at[-1]):
            return MASK
        case str():
            return mask_text(value)
        case list() | tuple():
            return [mask_text(item) if isinstance(item, str) else item for item in value]
        case _:
            return value


def _whole_value(value: Any, at: Keys) -> Any:
    """Mask a value under the name of a secret, and credentials of a known form; random-looking texts stay."""
    match value:
        case _ if at and is_secret_name(at[-1]):
            return MASK
        case str():
            return KNOWN_CREDENTIAL.sub(MASK, value)
        case list() | tuple():
            return [KNOWN_CREDENTIAL.sub(MASK, item) if isinstance(item, str) else item for item in value]
        case _:
            return value


def as_text(arguments: Mapping[str, Any] | None) -> str | None:
    """Return kept arguments as compact JSON."""
    return None if arguments is None else json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
