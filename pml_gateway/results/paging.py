"""Pages of a stored value: text by characters, JSON by items or fields, binary by bytes."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from itertools import islice
from typing import Any

import anyio.to_thread

from pml_gateway.errors import InvalidInputError
from pml_gateway.json_text.pieces import measure
from pml_gateway.results.content import Content
from pml_gateway.results.paths import value_at
from pml_gateway.results.shapes import sketch
from pml_gateway.text import as_field, shortened
from pml_gateway.types import JsonObject

DEFAULT_ITEMS = 50

_LINES = re.compile(r"\s*(\d{1,9})?\s*(-)?\s*(\d{1,9})?\s*\Z")


async def page_of(content: Content, path: str | None, offset: int, limit: int | None, budget: int) -> JsonObject:
    """Return one page of a value, with `total` and, if more follows, `next_offset`.

    Args:
        content: the whole value.
        path: JMESPath to the part to page through.
        offset: characters, items, fields or bytes to skip.
        limit: maximum number to return; fewer if the budget runs out first.
        budget: characters of JSON that one page may take.

    Raises:
        InvalidInputError: the path finds nothing, or the offset is past the end.
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
    # An object that fits is returned whole, so that only large ones are split into pages of fields.
    for key, member in islice(fields.items(), offset, offset + limit if limit else None):
        size = measure(key, budget) + measure(member, budget)
        if size > budget and not page:
            page[key] = _too_large(member, f"{path} | {as_field(key)}" if path else as_field(key))
            break
        budget -= size
        if budget < 0:
            break
        page[key] = member
    return {"kind": "json", "value": page, **_position(offset, len(page), len(fields))}


def _too_large(value: Any, path: str) -> JsonObject:
    """Return a placeholder for a part that exceeds one page, with the path to read it separately."""
    return {"$omitted": "larger than one page", "path": path, "shape": sketch(value)}


@dataclass(frozen=True, slots=True)
class LineRange:
    """A range of lines, counted from 1 and inclusive; a negative `first` counts from the end."""

    first: int
    last: int | None

    def fault(self, value: Any, path: str | None) -> InvalidInputError:
        """Return the error for a value that is not text, with the path to a text in it."""
        texts = [key for key, held in value.items() if isinstance(held, str)] if isinstance(value, dict) else []
        longest = max(texts, key=lambda key: len(value[key]), default=None)
        leads = "path leads to a text" if longest is None else f'add "path": {json.dumps(member_path(path, longest))}'
        return InvalidInputError("lines: only text has lines", hint=f"{leads}; offset and limit count items and fields")

    def of(self, total: int) -> tuple[int, int]:
        """Return the first and the last line of the range in a text of `total` lines.

        Raises:
            InvalidInputError: the range begins past the end.
        """
        if self.first > total:
            raise InvalidInputError(f"lines: {self.first} is behind the end; there are {total} lines")
        first = max(total + self.first + 1, 1) if self.first < 0 else self.first
        return first, total if self.last is None else min(self.last, total)


def line_range(text: str) -> LineRange:
    """Parse `a-b`, `a-`, `a` or `-n` (the last n).

    Raises:
        InvalidInputError: the text has none of these forms.
    """
    found = _LINES.match(text)
    first, last = (int(found[1] or 0), int(found[3] or 0)) if found is not None else (0, 0)
    if found is not None and first and not found[2]:
        return LineRange(first, first)
    if found is not None and not found[1] and last:
        return LineRange(-last, None)
    if found is not None and first and (not found[3] or last >= first):
        return LineRange(first, last or None)
    raise InvalidInputError(
        f"lines: {shortened(text, 60)!r} is no range of lines",
        hint="write 10-20, 10- to the end, or -20 for the last 20",
    )


async def lines_of(content: Content, path: str | None, lines: LineRange, budget: int) -> JsonObject:
    """Return the requested lines of a text, with `next_lines` if they do not all fit.

    Raises:
        InvalidInputError: the path finds nothing or something that is not text, or the text is shorter.
    """
    value = None if content.kind == "binary" else await value_at(content, path)
    if not isinstance(value, str):
        raise lines.fault(value, path)
    return await anyio.to_thread.run_sync(_line_page, value, lines, budget)


def _line_page(text: str, lines: LineRange, budget: int) -> JsonObject:
    every = text.split("\n")
    first, last = lines.of(len(every))
    given, left = 0, budget
    for line in every[first - 1 : last]:
        left -= len(line) + 1
        if left < 0 and given:
            break
        given += 1
    until = first + given - 1
    page = "\n".join(every[first - 1 : until])
    answer: JsonObject = {"kind": "text", "text": page[:budget], "lines": f"{first}-{until}", "total_lines": len(every)}
    if len(page) > budget:
        # A line longer than a page continues by characters.
        answer["next_offset"] = sum(len(line) + 1 for line in every[: first - 1]) + budget
    return {**answer, "next_lines": f"{until + 1}-{last}"} if until < last else answer


def member_path(path: str | None, key: str) -> str:
    """Return the path of a member of the object at `path`."""
    return as_field(key) if path is None else f"{path}.{as_field(key)}"


def _position(offset: int, given: int, total: int) -> JsonObject:
    following = {"next_offset": offset + given} if offset + given < total else {}
    return {"offset": offset, "total": total, **following}


def _check_offset(offset: int, total: int, unit: str) -> None:
    if offset > total:
        raise InvalidInputError(f"offset: {offset} is behind the end; there are {total} {unit}")
