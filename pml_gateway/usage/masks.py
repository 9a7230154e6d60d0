"""What clients wrote becomes text that may be kept: without known secrets and what looks like one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pml_gateway.config.known_secrets import KNOWN_SECRETS
from pml_gateway.config.masking import MASK, is_secret_name, mask_text
from pml_gateway.types import JsonObject

MAX_TEXT = 500
"""Characters of a query or an intent that are kept."""

MAX_ARGUMENTS = 2000


def masked(text: str | None) -> str | None:
    """A query or an intent as it is kept."""
    if text is None:
        return None
    return KNOWN_SECRETS.masked(mask_text(text[:MAX_TEXT].encode(errors="replace").decode()), MASK)


def shown_arguments(arguments: JsonObject | None) -> str | None:
    """The arguments of a call as they are kept, where the configuration asks for them."""
    if arguments is None:
        return None
    text = json.dumps(_tree(arguments), ensure_ascii=False, separators=(",", ":"), default=str)
    return KNOWN_SECRETS.masked(text[:MAX_ARGUMENTS].encode(errors="replace").decode(), MASK)


def _tree(value: Any) -> Any:
    match value:
        case Mapping():
            return {key: MASK if is_secret_name(str(key)) else _tree(item) for key, item in value.items()}
        case list():
            return [_tree(item) for item in value]
        case str():
            return mask_text(value[:MAX_ARGUMENTS])
        case _:
            return value
