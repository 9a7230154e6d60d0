"""The encoding of stored values (compressed parts, sizes, hash, shape, preview, next call) and its reverse."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pml_gateway.exposure.token_count import count_tokens
from pml_gateway.json_text.pieces import measure
from pml_gateway.results.content import Content, Kind, addressed, from_bytes, media_note, to_bytes
from pml_gateway.results.paging import member_path
from pml_gateway.results.shapes import MAX_FIELDS, sketch
from pml_gateway.text import shortened
from pml_gateway.types import JsonObject

PART_CHARACTERS = 256 * 1024
"""Size of one part of a value; a store writes it in about a millisecond, and other tasks run between parts."""

COUNTED_CHARACTERS = 256 * 1024
"""Maximum number of characters that are tokenized; the count for a longer text is extrapolated."""

FIRST_SHOWN = 2
LAST_SHOWN = 1
"""Number of items or fields that a preview shows from the beginning and the end of a value."""

SHOWN_CHARACTERS = 160
"""Characters shown of each item or field, and of the end of a text; twice as many of its beginning."""

SEARCHED_DEPTH = 4
MAX_PATH = 60
MAX_MEASURED = 2_000_000
"""Limits of the search for the largest part of an object: depth, characters of its path, and characters measured."""

LINES_READ = 100


@dataclass(frozen=True, slots=True)
class EncodedResult:
    """A value ready to be stored. `bytes` and `sha256` describe the value, `packed_bytes` its compressed parts."""

    kind: Kind
    mime: str | None
    parts: tuple[str, ...]
    bytes: int
    packed_bytes: int
    sha256: str
    tokens: int
    shape: str
    preview: JsonObject
    reads_on: JsonObject


def encode(content: Content) -> EncodedResult:
    """Compress, hash, count and preview a value; call it in a thread, since it takes time proportional to the size.

    Raises:
        ValueError, RecursionError, TypeError: the value is not JSON.
    """
    raw = to_bytes(content)
    packed = base64.b64encode(zlib.compress(raw, 1)).decode()
    text = content.value if content.kind == "binary" else raw.decode("utf-8", "replace")
    value = None if content.kind == "binary" else addressed(content)
    preview, reads_on = ({}, {}) if content.kind == "binary" else _preview(value)
    if content.kind == "text" and not isinstance(value, str):
        # Without a path, JSON text is read as plain text.
        reads_on = {"path": "@", **reads_on}
    return EncodedResult(
        kind=content.kind,
        mime=content.mime,
        parts=tuple(packed[start : start + PART_CHARACTERS] for start in range(0, len(packed), PART_CHARACTERS)),
        bytes=len(raw),
        packed_bytes=len(packed),
        sha256=hashlib.sha256(raw).hexdigest(),
        tokens=tokens_of(text),
        shape=_shape(content, value, len(raw)),
        preview=preview,
        reads_on=reads_on,
    )


def decode(kind: Kind, parts: Sequence[str], mime: str | None) -> Content:
    """Return the value that `encode` turned into parts. Takes time proportional to the size: call it in a thread."""
    return from_bytes(kind, zlib.decompress(base64.b64decode("".join(parts))), mime)


def tokens_of(text: str) -> int:
    """Count the tokens of a text in o200k_base; above `COUNTED_CHARACTERS`, estimate from its two ends."""
    if len(text) <= COUNTED_CHARACTERS:
        return count_tokens(text)
    half = COUNTED_CHARACTERS // 2
    counted = count_tokens(text[:half]) + count_tokens(text[-half:])
    return round(counted * len(text) / COUNTED_CHARACTERS)


def tokens_of_json(value: Any) -> int:
    """Count the tokens of a value in the compact JSON that the gateway's answers use."""
    return tokens_of(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))


def shown_at_most(value: Any, characters: int) -> Any:
    """Return the value, or the beginning of its text if it is larger than the limit."""
    if measure(value, characters) <= characters:
        return value
    note = media_note(value)
    if note is not None:
        return note
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return shortened(text, characters)


def _preview(value: Any) -> tuple[JsonObject, JsonObject]:
    """Return the beginning and end of the value's largest part, and the `read_result` arguments that read it."""
    part, path = _largest_part(value)
    at: JsonObject = {"path": path} if path else {}
    note = media_note(part)
    if note is not None:
        return {"first": note}, at
    if isinstance(part, str):
        lines = part.count("\n") + 1
        first, last = part[: 2 * SHOWN_CHARACTERS], part[-SHOWN_CHARACTERS:]
        reads: JsonObject = {"lines": f"1-{min(lines, LINES_READ)}"} if lines > 1 else {"offset": 0}
        return {"first": first, "last": last}, {**at, **reads}
    if isinstance(part, list):
        end = max(len(part) - LAST_SHOWN, FIRST_SHOWN)
        first_items, last_items = ([_shown(item) for item in each] for each in (part[:FIRST_SHOWN], part[end:]))
        is_read = first_items == part[:FIRST_SHOWN] and len(part) > FIRST_SHOWN
        media = next((place for place, item in enumerate(part[:MAX_FIELDS]) if media_note(item)), None)
        # In a list with media blocks, the first of them is what a model cannot see in the preview.
        reads = {"offset": FIRST_SHOWN if is_read else 0} if media is None else {"path": f"{path or ''}[{media}]"}
        return {"first": first_items, "last": last_items}, {**at, **reads}
    if isinstance(part, dict):
        end = max(len(part) - LAST_SHOWN, FIRST_SHOWN)
        first_fields, last_fields = (
            {shortened(key, MAX_PATH): _shown(member) for key, member in islice(part.items(), *span)}
            for span in ((FIRST_SHOWN,), (end, None))
        )
        return {"first": first_fields, "last": last_fields}, {**at, "offset": 0}
    return {"first": part}, at


def _shown(value: Any) -> Any:
    return shown_at_most(value, SHOWN_CHARACTERS)


def _largest_part(value: Any) -> tuple[Any, str | None]:
    """Return the nested part that makes the value large, and its path; the value itself if no single part does."""
    path: str | None = None
    for _ in range(SEARCHED_DEPTH):
        if not isinstance(value, dict) or not 0 < len(value) <= MAX_FIELDS or media_note(value) is not None:
            break
        sizes = {key: measure(member, MAX_MEASURED) for key, member in value.items()}
        key = max(sizes, key=sizes.__getitem__)
        inner = member_path(path, key)
        if (
            2 * sizes[key] < sum(sizes.values())
            or len(inner) > MAX_PATH
            or not isinstance(value[key], list | dict | str)
        ):
            break
        value, path = value[key], inner
    return value, path


def _shape(content: Content, value: Any, size: int) -> str:
    if content.kind == "binary":
        return f"{content.mime or 'bytes'}({size})"
    if isinstance(value, str):
        return f"text({len(value)} characters, {value.count(chr(10)) + 1} lines)"
    return f"JSON text of {sketch(value)}" if content.kind == "text" else sketch(value)
