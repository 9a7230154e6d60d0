"""The content of a tool's result: the one value that references, paths and pages are about."""

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
"""Characters of base64 text that are looked at in one go: whole groups of four."""

Kind = Literal["json", "text", "binary"]


@dataclass(frozen=True, slots=True)
class Content:
    """A value with how it is paged: JSON by items, text by characters, binary by bytes.

    `value` is what a reference without a path stands for: any JSON, the text, or base64 text of the bytes.
    `is_unwrapped` says that the tool answered `{"result": value}`.
    """

    kind: Kind
    value: Any
    mime: str | None = None
    is_unwrapped: bool = False


WRAPPED = "result"
"""The only field of what Python servers make of results that are no objects."""


def content_of(result: JsonObject, *, wraps: bool = False) -> Content:
    """The data of a `tools/call` result: its structured content, else its only block, else the list of its blocks.

    Text stays text even where it is JSON, so that it arrives elsewhere byte by byte; `addressed` reads it as JSON.
    With `wraps`, or where the result says so, it is the value inside a Python server's `{"result": value}`.
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
    """An answer of the gateway itself: the same object as text and as structured content."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str)
    return {"content": [{"type": "text", "text": text}], "structuredContent": data, "isError": is_error}


IGNORED_KEYS = "pml-gateway/ignored_keys"
COERCED = "pml-gateway/coerced"
"""In `_meta`: JSON pointers to keys that clients add, which were left out; and to values that were read as others."""

RENAMED = "pml-gateway/renamed"
"""In `_meta`: names of tools in the call that begin with what their server was called before, each with that of now."""


def noted(
    result: JsonObject,
    *,
    ignored: Iterable[str] = (),
    coerced: Mapping[str, str] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> JsonObject:
    """The result with what was not taken as it was sent, in its `_meta`."""
    paths, changes = list(ignored), dict(coerced or {})
    if not paths and not changes and not renamed:
        return result
    meta = result.get("_meta")
    known = dict(meta) if isinstance(meta, dict) else {}
    if paths:
        known[IGNORED_KEYS] = [*known.get(IGNORED_KEYS, ()), *paths]
    if changes:
        known[COERCED] = {**known.get(COERCED, {}), **changes}
    if renamed:
        known[RENAMED] = {**known.get(RENAMED, {}), **renamed}
    return {**result, "_meta": known}


def addressed(content: Content) -> Any:
    """What a path selects from: JSON text counts as the JSON it holds. Takes time with the size."""
    if content.kind == "text" and content.value[:64].lstrip()[:1] in ("{", "["):
        try:
            return read_large(content.value) if len(content.value) >= LARGE else json.loads(content.value)
        except (ValueError, RecursionError):
            return content.value
    return content.value


def to_bytes(content: Content) -> bytes:
    """The content as it is kept, measured and hashed: compact JSON, UTF-8 text, or the bytes themselves.

    Raises:
        ValueError, RecursionError, TypeError: the value is no JSON.
    """
    match content.kind:
        case "json":
            return b"".join(pieces_of(content.value, "surrogatepass"))
        case "text":
            return str(content.value).encode("utf-8", "surrogatepass")
        case "binary":
            return base64.b64decode(content.value)


def from_bytes(kind: Kind, raw: bytes, mime: str | None) -> Content:
    """The content that `to_bytes` turned into `raw`."""
    match kind:
        case "json":
            return Content(kind, json.loads(raw.decode("utf-8", "surrogatepass")), mime)
        case "text":
            return Content(kind, raw.decode("utf-8", "surrogatepass"), mime)
        case "binary":
            return Content(kind, base64.b64encode(raw).decode(), mime)


MEDIA = ("image", "audio")
MAX_MEDIA_DEPTH = 100
"""How deep a value is searched for media; deeper ones stay in it as they are."""


def media_block(mime: str | None, data: str) -> JsonObject | None:
    """The block of content that bytes of a type are; None where no block is for that type."""
    kind = str(mime).partition("/")[0]
    return {"type": kind, "data": data, "mimeType": mime} if kind in MEDIA else None


def media_data(value: Any) -> str | None:
    """The base64 text of a block of bytes; None where the value is no such block."""
    if not isinstance(value, dict):
        return None
    if value.get("type") == "resource" and isinstance(value.get("resource"), dict):
        data = value["resource"].get("blob")
    else:
        data = value.get("data") if value.get("type") in MEDIA else None
    return data if isinstance(data, str) else None


def media_of(result: JsonObject) -> list[JsonObject]:
    """The images and audio of a result, which clients show to models as what they are."""
    blocks = result.get("content")
    return [block for block in blocks if is_seen(block)] if isinstance(blocks, list) else []


def is_seen(block: Any) -> bool:
    """Whether this is a block of an image or audio; other bytes are none that a model sees."""
    return isinstance(block, dict) and block.get("type") in MEDIA and isinstance(block.get("data"), str)


def replace_media(value: Any, substitutes: Callable[[str], Any], depth: int = 0) -> Any:
    """`value` with something else for the base64 text of media, or for its whole block; None leaves a text as it is."""
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
    """What stands in a value for media that follow it in the content of an answer; the answer itself is block 1."""
    return f"content block {position}: {note}"


def with_media(result: JsonObject, blocks: Sequence[JsonObject]) -> JsonObject:
    """The result with blocks behind its own content."""
    return {**result, "content": [*result["content"], *blocks]} if blocks else result


def media_note(value: Any) -> str | None:
    """What a block of bytes is, for models: `image/png, 1,234 bytes`; None where the value is no such block."""
    data = media_data(value)
    if data is None:
        return None
    mime = _mime(value["resource"] if value["type"] == "resource" else value)
    return f"{shortened(mime or 'bytes', MAX_MIME)}, {len(data) * 3 // 4 - data[-2:].count('='):,} bytes"


def _with_its_media(structured: Any, blocks: list[Any]) -> Any:
    """Structured content beside media: as one value where it names their places, as answers of the gateway do."""
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
    """Whether this is `{"result": value}`; a value that has a `result` of its own stays in it, or both would be one."""
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
    """Whether the text is exactly what encoding its bytes gives, so that nothing is lost by keeping the bytes."""
    try:
        return all(
            # Padding ends the last part only.
            base64.b64encode(base64.b64decode(part, validate=True)).decode() == part
            and (at + len(part) == len(data) or not part.endswith("="))
            for at, part in ((at, data[at : at + PART]) for at in range(0, len(data), PART))
        )
    except (binascii.Error, ValueError):
        return False
