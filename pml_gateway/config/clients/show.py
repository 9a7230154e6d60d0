"""A client's file becomes text that is safe to show: every credential masked where it stands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pml_gateway.config.clients.block import Block, ClientFileError
from pml_gateway.config.masking import MASK, is_secret_name, mask_arguments, mask_secret, mask_text

_CLIENT_VARIABLE = re.compile(r"(?:(?:Bearer|Basic|Token)\s+)?\$\{?[A-Za-z_][\w:-]*\}?\Z")
_VALUES = frozenset({"env", "environment", "headers", "http_headers"})


def masked_text(text: str, block: Block, secrets: Iterable[str] = ()) -> str:
    """`text`, laid out as before; of `secrets` nothing is shown wherever it stands."""
    try:
        values = block.values(text)
    except ClientFileError:
        return "".join(mask_text(line) for line in text.splitlines(keepends=True))
    pairs = dict(_pairs(values, ()))
    for original in sorted(pairs, key=len, reverse=True):
        masked = pairs[original]
        for written in {json.dumps(original, ensure_ascii=False), json.dumps(original), f"'{original}'"}:
            text = text.replace(written, written[0] + masked + written[-1])
    for secret in secrets:
        text = text.replace(json.dumps(secret)[1:-1], MASK).replace(secret, MASK)
    return text


def _pairs(value: Any, at: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Every text that is a credential or holds one, and how it is shown."""
    match value:
        case Mapping():
            for key, item in value.items():
                yield from _pairs(item, (*at, str(key)))
        case list():
            texts = [item if isinstance(item, str) else "" for item in value]
            for item, masked in zip(value, mask_arguments(texts), strict=True):
                if isinstance(item, str):
                    yield from _different(item, masked)
                else:
                    yield from _pairs(item, at)
        case str() if _CLIENT_VARIABLE.match(value):
            return
        case str():
            is_secret = not _VALUES.isdisjoint(at[-2:-1]) or is_secret_name(at[-1] if at else "")
            yield from _different(value, mask_secret(value) if is_secret else mask_text(value))


def _different(original: str, masked: str) -> Iterator[tuple[str, str]]:
    if original and masked != original:
        yield original, masked
