"""Pages of a stored value: text by characters, JSON by items or fields, binary by bytes."""

from __future__ import annotations

import base64
from itertools import islice
from typing import Any

import anyio.to_thread

from pml_gateway.errors import InvalidInputError
from pml_gateway.results.content import Content, measure
from pml_gateway.results.paths import value_at
from pml_gateway.results.shapes import sketch
from pml_gateway.types import JsonObject

DEFAULT_ITEMS = 50


async def page_of(content: Content, path: str | None, offset: int, limit: int | None, budget: int) -> JsonObject:
    """One page of a value, with `total` and, where more follows, `next_offset`.

    Args:
        content: the whole value.
        path: JMESPath to the part that is paged.
        offset: characters, items, fields or bytes to skip.
        limit: how many to give; less where the budget ends first.
        budget: characters of JSON that one page may take.

    Raises:
        InvalidInputError: the path finds nothing, or the offset lies behind the end.
    """
    if content.kind == "binary":
        if path is not None:
            raise InvalidInputError("path: bytes have no parts", hint="leave path out; offset and limit count bytes")
        return await anyio.to_thread.run_sync(_bytes, content, offset, limit, budget)
    value = await value_at(content, path)
    return await anyio.to_thread.run_sync(_page, value, path, offset, limit, budget)


def _page(value: Any, path: str | None, offset: int, limit: int | None, budget: int) -> JsonObject:
    if isinstance(value, str):
        return _text(value, offset, limit, budget)
    if isinstance(value, list):
        return _items(value, offset, limit, budget, path)
    if isinstance(value, dict):
        return _fields(value, offset, limit, budget, path)
    return {"kind": "json", "value": value}


def _text(text: str, offset: int, limit: int | None, budget: int) -> JsonObject:
    _check_offset(offset, len(text), "characters")
    page = text[offset : offset + min(limit or budget, budget)]
    return {"kind": "text", "text": page, **_position(offset, len(page), len(text))}


def _bytes(content: Content, offset: int, limit: int | None, budget: int) -> JsonObject:
    raw = base64.b64decode(content.value)
    _check_offset(offset, len(raw), "bytes")
    page = raw[offset : offset + min(limit or budget, budget * 3 // 4)]
    mime = {"mime": content.mime} if content.mime else {}
    return {
        "kind": "binary",
        **mime,
        "base64": base64.b64encode(page).decode(),
        **_position(offset, len(page), len(raw)),
    }


def _items(items: list[Any], offset: int, limit: int | None, budget: int, path: str | None) -> JsonObject:
    _check_offset(offset, len(items), "items")
    page: list[Any] = []
    for position, item in enumerate(items[offset : offset + (limit or DEFAULT_ITEMS)], offset):
        size = measure(item, budget)
        if size > budget and not page:
            page.append(_too_large(item, f"{path} | [{position}]" if path else f"[{position}]"))
            break
        budget -= size
        if budget < 0:
            break
        page.append(item)
    return {"kind": "json", "items": page, **_position(offset, len(page), len(items))}


def _fields(fields: JsonObject, offset: int, limit: int | None, budget: int, path: str | None) -> JsonObject:
    _check_offset(offset, len(fields), "fields")
    page: JsonObject = {}
    # An object is read whole where it fits, so that only large ones are cut into pages of fields.
    for key, member in islice(fields.items(), offset, offset + limit if limit else None):
        size = measure(key, budget) + measure(member, budget)
        if size > budget and not page:
            page[key] = _too_large(member, f"{path} | {_quoted(key)}" if path else _quoted(key))
            break
        budget -= size
        if budget < 0:
            break
        page[key] = member
    return {"kind": "json", "value": page, **_position(offset, len(page), len(fields))}


def _too_large(value: Any, path: str) -> JsonObject:
    """What stands for a part that no page holds: how to read it by itself."""
    return {"$omitted": "larger than one page", "path": path, "shape": sketch(value)}


def member_path(path: str | None, key: str) -> str:
    """The path of a member of the object at `path`."""
    return _quoted(key) if path is None else f"{path}.{_quoted(key)}"


def _quoted(key: str) -> str:
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return key if key.isidentifier() and key.isascii() else f'"{escaped}"'


def _position(offset: int, given: int, total: int) -> JsonObject:
    following = {"next_offset": offset + given} if offset + given < total else {}
    return {"offset": offset, "total": total, **following}


def _check_offset(offset: int, total: int, unit: str) -> None:
    if offset > total:
        raise InvalidInputError(f"offset: {offset} is behind the end; there are {total} {unit}")
