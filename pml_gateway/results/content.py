"""The content of a tool's result: the single value that references, paths and pages work on."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pml_gateway.json_text.pieces import LARGE, pieces_of
from pml_gateway.json_text.reading import read_large
from pml_gateway.text import shortened
from pml_gateway.types import JsonObject

MAX_MIME = 60
PART = 64 * 1024
"""Number of base64 characters checked at a time: whole groups of four."""

Kind = Literal["json", "text", "binary"]

WRAPPED = "result"
"""The only field of the object in which Python servers wrap results that are not objects."""

IGNORED_KEYS = "pml-gateway/ignored_keys"
COERCED = "pml-gateway/coerced"
"""Keys in `_meta`: JSON pointers to ignored keys that clients add, and to values that were coerced to another type."""

MEDIA = ("image", "audio")
MAX_MEDIA_DEPTH = 100
"""Maximum depth at which a value is searched for media; deeper ones are left in place."""


@dataclass(frozen=True, slots=True)
class Content:
    """A value and the way it is paged: JSON by items, text by characters, binary by bytes.

    `value` is what a reference without a path resolves to: any JSON, the text, or the bytes as base64 text.
    `is_unwrapped` is True if the tool answered `{"result": value}`.
    """

    kind: Kind
    value: Any
    mime: str | None = None
    is_unwrapped: bool = False


def content_of(result: JsonObject, *, wraps: bool = False) -> Content:
    """Return the data of a `tools/call` result: its structured content, its only block, or the list of its blocks.

    Text stays text even if it holds JSON, so that it is passed on byte for byte; `addressed` parses it. With `wraps`,
    or if the result says so, the data is the value inside a Python server's `{"result": value}`.
    """
    blocks = result.get("content") or []
    structured = result.get("structuredContent")
    if structured is not None:
        if all(isinstance(block, dict) and block.get("type") in ("text", "resource_link") for block in blocks):
            if (wraps or _says_it_wraps(result)) and _is_wrapper(structured):
                inner = structured[WRAPPED]
                return Content("text" if isinstance(inner, str) else "json", inner, is_unwrapped=True)
            return Content("json", structured)
        return Content("json", _with_its_media(structured, blocks))
    return _of_block(blocks[0]) if len(blocks) == 1 and isinstance(blocks[0], dict) else Content("json", blocks)


def data_result(data: JsonObject, *, is_error: bool = False) -> JsonObject:
    """Return a result of the gateway's own, with the same object as text and as structured content."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str)
    return {"content": [{"type": "text", "text": text}], "structuredContent": data, "isError": is_error}


def noted(result: JsonObject, *, ignored: Iterable[str] = (), coerced: Mapping[str, str] | None = None) -> JsonObject:
    """Return the result with a note in its `_meta` of every argument that was ignored or coerced."""
    paths, changes = list(ignored), dict(coerced or {})
    if not paths and not changes:
        return result
    meta = result.get("_meta")
    known = dict(meta) if isinstance(meta, dict) else {}
    if paths:
        known[IGNORED_KEYS] = [*known.get(IGNORED_KEYS, ()), *paths]
    if changes:
        known[COERCED] = {**known.get(COERCED, {}), **changes}
    return {**result, "_meta": known}


def addressed(content: Content) -> Any:
    """Return the value that paths select from; JSON text is parsed. Takes time proportional to the size."""
    if content.kind == "text" and content.value[:64].lstrip()[:1] in ("{", "["):
        try:
            return read_large(content.value) if len(content.value) >= LARGE else json.loads(content.value)
        except (ValueError, RecursionError):
            return content.value
    return content.value


def to_bytes(content: Content) -> bytes:
    """Return the content as it is stored, measured and hashed: compact JSON, UTF-8 text, or the bytes themselves.

    Raises:
        ValueError, RecursionError, TypeError: the value is not JSON.
    """
    match content.kind:
        case "json":
            return b"".join(pieces_of(content.value, "surrogatepass"))
        case "text":
            return str(content.value).encode("utf-8", "surrogatepass")
        case "binary":
            return base64.b64decode(content.value)


def from_bytes(kind: Kind, raw: bytes, mime: str | None) -> Content:
    """Return the content that `to_bytes` turned into `raw`."""
    match kind:
        case "json":
            return Content(kind, json.loads(raw.decode("utf-8", "surrogatepass")), mime)
        case "text":
            return Content(kind, raw.decode("utf-8", "surrogatepass"), mime)
        case "binary":
            return Content(kind, base64.b64encode(raw).decode(), mime)


def media_block(mime: str | None, data: str) -> JsonObject | None:
    """Return the content block for data of this type; None if no kind of block fits the type."""
    kind = str(mime).partition("/")[0]
    return {"type": kind, "data": data, "mimeType": mime} if kind in MEDIA else None


def media_data(value: Any) -> str | None:
    """Return the base64 text of a block of bytes; None if the value is not such a block."""
    if not isinstance(value, dict):
        return None
    if value.get("type") == "resource" and isinstance(value.get("resource"), dict):
        data = value["resource"].get("blob")
    else:
        data = value.get("data") if value.get("type") in MEDIA else None
    return data if isinstance(data, str) else None


def media_of(result: JsonObject) -> list[JsonObject]:
    """Return the images and audio blocks of a result, which clients show to models natively."""
    blocks = result.get("content")
    return [block for block in blocks if is_seen(block)] if isinstance(blocks, list) else []


def is_seen(block: Any) -> bool:
    """Return True if this is an image or audio block; models cannot see other binary data."""
    return isinstance(block, dict) and block.get("type") in MEDIA and isinstance(block.get("data"), str)


def replace_media(value: Any, substitutes: Callable[[str], Any], depth: int = 0) -> Any:
    """Return `value` with media blocks or their base64 text substituted; None from `substitutes` keeps a text."""
    if depth > MAX_MEDIA_DEPTH:
        return value
    if isinstance(value, list):
        return [replace_media(item, substitutes, depth + 1) for item in value]
    data = value if isinstance(value, str) else media_data(value)
    substitute = None if data is None else substitutes(data)
    if substitute is not None:
        return substitute
    if isinstance(value, dict):
        return {key: replace_media(member, substitutes, depth + 1) for key, member in value.items()}
    return value


def note_in_content(position: int, note: str) -> str:
    """Return the placeholder for media that follow as a content block of an answer; the answer itself is block 1."""
    return f"content block {position}: {note}"


def with_media(result: JsonObject, blocks: Sequence[JsonObject]) -> JsonObject:
    """Return the result with these blocks appended to its content."""
    return {**result, "content": [*result["content"], *blocks]} if blocks else result


def media_note(value: Any) -> str | None:
    """Describe a block of bytes for models (`image/png, 1,234 bytes`); None if the value is not such a block."""
    data = media_data(value)
    if data is None:
        return None
    mime = _mime(value["resource"] if value["type"] == "resource" else value)
    return f"{shortened(mime or 'bytes', MAX_MIME)}, {len(data) * 3 // 4 - data[-2:].count('='):,} bytes"


def _with_its_media(structured: Any, blocks: list[Any]) -> Any:
    """Merge media into structured content that has placeholders for them; otherwise return both."""
    notes = {
        note_in_content(position, note): media_data(block)
        for position, block in enumerate(blocks, 1)
        if (note := media_note(block)) is not None
    }
    whole = replace_media(structured, notes.get)
    return {"content": blocks, "structuredContent": structured} if whole == structured else whole


def _says_it_wraps(result: JsonObject) -> bool:
    meta = result.get("_meta")
    said = meta.get("fastmcp") if isinstance(meta, dict) else None
    return isinstance(said, dict) and said.get("wrap_result") is True


def _is_wrapper(structured: Any) -> bool:
    """Return True for `{"result": value}`, unless the value has a `result` of its own, which would be ambiguous."""
    if not isinstance(structured, dict) or set(structured) != {WRAPPED}:
        return False
    inner = structured[WRAPPED]
    return not (isinstance(inner, dict) and WRAPPED in inner)


def _of_block(block: JsonObject) -> Content:
    if block.get("type") == "text" and isinstance(block.get("text"), str):
        return Content("text", block["text"])
    if block.get("type") == "resource" and isinstance(block.get("resource"), dict):
        resource = block["resource"]
        if isinstance(resource.get("text"), str):
            return Content("text", resource["text"], _mime(resource))
        data = resource.get("blob")
        holder = resource
    else:
        data, holder = block.get("data"), block
    if isinstance(data, str) and _is_base64(data):
        return Content("binary", data, _mime(holder))
    return Content("json", block)


def _mime(holder: JsonObject) -> str | None:
    mime = holder.get("mimeType")
    return mime if isinstance(mime, str) else None


def _is_base64(data: str) -> bool:
    """Return True if re-encoding the decoded bytes gives exactly this text, so that storing the bytes loses nothing."""
    try:
        return all(
            # Padding ends the last part only.
            base64.b64encode(base64.b64decode(part, validate=True)).decode() == part
            and (at + len(part) == len(data) or not part.endswith("="))
            for at, part in ((at, data[at : at + PART]) for at in range(0, len(data), PART))
        )
    except (binascii.Error, ValueError):
        return False
