"""The content of a tool's result: the one value that references, paths and pages are about."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pml_gateway.types import JsonObject

Kind = Literal["json", "text", "binary"]


@dataclass(frozen=True, slots=True)
class Content:
    """A value with how it is paged: JSON by items, text by characters, binary by bytes.

    `value` is what a reference without a path stands for: any JSON, the text, or base64 text of the bytes.
    """

    kind: Kind
    value: Any
    mime: str | None = None


def content_of(result: JsonObject) -> Content:
    """The data of a `tools/call` result: its structured content, else its only block, else the list of its blocks.

    Text stays text even where it is JSON, so that it arrives elsewhere byte by byte; `addressed` reads it as JSON.
    """
    blocks = result.get("content") or []
    structured = result.get("structuredContent")
    if structured is not None:
        if all(isinstance(block, dict) and block.get("type") in ("text", "resource_link") for block in blocks):
            return Content("json", structured)
        return Content("json", {"content": blocks, "structuredContent": structured})
    return _of_block(blocks[0]) if len(blocks) == 1 and isinstance(blocks[0], dict) else Content("json", blocks)


def data_result(data: JsonObject, *, is_error: bool = False) -> JsonObject:
    """An answer of the gateway itself: the same object as text and as structured content."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str)
    return {"content": [{"type": "text", "text": text}], "structuredContent": data, "isError": is_error}


IGNORED_KEYS = "pml-gateway/ignored_keys"
COERCED = "pml-gateway/coerced"
"""In `_meta`: JSON pointers to keys that clients add, which were left out; and to values that were read as others."""


def noted(result: JsonObject, *, ignored: Iterable[str] = (), coerced: Mapping[str, str] | None = None) -> JsonObject:
    """The result with what was not taken as it was sent, in its `_meta`."""
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
    """What a path selects from: JSON text counts as the JSON it holds. Takes time with the size."""
    if content.kind == "text" and content.value[:64].lstrip()[:1] in ("{", "["):
        try:
            return json.loads(content.value)
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
            text = json.dumps(content.value, ensure_ascii=False, separators=(",", ":"))
            return text.encode("utf-8", "surrogatepass")
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


def exceeds(value: Any, limit: int) -> bool:
    """Whether JSON holds more than `limit` characters; looks no further than that."""
    return measure(value, limit) > limit


def measure(value: Any, limit: int) -> int:
    """About how many characters of JSON a value takes; counting ends once it is more than `limit`."""
    size = 0
    pending = [value]
    while pending and size <= limit:
        item = pending.pop()
        if isinstance(item, str):
            size += len(item) + 2
        elif isinstance(item, dict):
            size += 2 + sum(len(str(key)) + 4 for key in item)
            pending.extend(item.values())
        elif isinstance(item, list | tuple):
            size += 2 + len(item)
            if size <= limit:
                pending.extend(item)
        else:
            size += 4
    return size


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
        return base64.b64encode(base64.b64decode(data, validate=True)).decode() == data
    except (binascii.Error, ValueError):
        return False
