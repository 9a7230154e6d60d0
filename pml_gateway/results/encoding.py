"""How a value is stored: compressed parts, sizes, hash, shape and preview; and back."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from pml_gateway.exposure.token_count import count_tokens
from pml_gateway.results.content import Content, Kind, addressed, from_bytes, to_bytes
from pml_gateway.results.shapes import sketch

PART_CHARACTERS = 256 * 1024
"""One part of a value; a store writes it in about a millisecond, between which others get their turn."""

COUNTED_CHARACTERS = 256 * 1024
"""Characters whose tokens are counted; of a longer text, the rest is taken to be like them."""

PREVIEW_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Encoded:
    """A value ready to be stored. `bytes` and `sha256` are those of the value, `packed_bytes` of its parts."""

    kind: Kind
    mime: str | None
    parts: tuple[str, ...]
    bytes: int
    packed_bytes: int
    sha256: str
    tokens: int
    shape: str
    preview: str


def encode(content: Content) -> Encoded:
    """Everything that takes time with the size of a value: call it in a thread.

    Raises:
        ValueError, RecursionError, TypeError: the value is no JSON.
    """
    raw = to_bytes(content)
    packed = base64.b64encode(zlib.compress(raw, 1)).decode()
    text = content.value if content.kind == "binary" else raw.decode("utf-8", "replace")
    return Encoded(
        kind=content.kind,
        mime=content.mime,
        parts=tuple(packed[start : start + PART_CHARACTERS] for start in range(0, len(packed), PART_CHARACTERS)),
        bytes=len(raw),
        packed_bytes=len(packed),
        sha256=hashlib.sha256(raw).hexdigest(),
        tokens=tokens_of(text),
        shape=_shape(content, raw),
        preview="" if content.kind == "binary" else text[:PREVIEW_CHARACTERS],
    )


def decode(kind: Kind, parts: Sequence[str], mime: str | None) -> Content:
    """The value that `encode` turned into parts. Takes time with the size: call it in a thread."""
    return from_bytes(kind, zlib.decompress(base64.b64decode("".join(parts))), mime)


def tokens_of(text: str) -> int:
    """Tokens of a text in o200k_base; beyond `COUNTED_CHARACTERS` an estimate from its beginning and end."""
    if len(text) <= COUNTED_CHARACTERS:
        return count_tokens(text)
    half = COUNTED_CHARACTERS // 2
    counted = count_tokens(text[:half]) + count_tokens(text[-half:])
    return round(counted * len(text) / COUNTED_CHARACTERS)


def _shape(content: Content, raw: bytes) -> str:
    if content.kind == "binary":
        return f"{content.mime or 'bytes'}({len(raw)})"
    value = addressed(content)
    if isinstance(value, str):
        return f"text({len(value)} characters, {value.count(chr(10)) + 1} lines)"
    return f"JSON text of {sketch(value)}" if content.kind == "text" else sketch(value)
