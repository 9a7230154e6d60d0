"""A JSON text and a change of one object's members become the same text with only those members changed.

Order, indentation, comments, line endings and trailing commas of everything else stay byte for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Any

from pml_gateway.config.clients.jsonc import BOM, Member, Span, locate, members, trivia_end

DEFAULT_INDENT = "  "

_SAME_LINE = re.compile(r"[ \t]*(?:/\*(?:[^*\r\n]|\*(?!/))*\*/[ \t]*)*(?://[^\r\n]*)?")
"""White space and comments up to the end of a line."""


def set_member(text: str, path: Sequence[str], name: str, value: Any) -> str:
    """`text` with `value` under `name` in the object at `path`; missing objects on the way are made."""
    if not text.removeprefix(BOM).strip():
        bom = BOM if text.startswith(BOM) else ""
        return f"{bom}{json.dumps(_nested([*path, name], value), indent=DEFAULT_INDENT, ensure_ascii=False)}\n"
    for length in range(len(path)):
        step = locate(text, path[: length + 1])
        if step is None or text[step.start] != "{":
            return set_member(text, path[:length], path[length], _nested([*path[length + 1 :], name], value))
    parent = locate(text, path)
    assert parent is not None
    present = [member for member in members(text, parent.start) if member.name == name]
    if present:
        span = present[-1].value
        written = _written(text, value, _indent_at(text, present[-1].start), _is_compact(text, parent))
        return text[: span.start] + written + text[span.end :]
    return _inserted(text, parent, name, value)


def remove_members(text: str, path: Sequence[str], names: Collection[str]) -> str:
    """`text` without the members `names` of the object at `path`; comments around them stay."""
    parent = locate(text, path)
    if parent is None or text[parent.start] != "{":
        return text
    while True:
        found = members(text, parent.start)
        position = next((at for at in reversed(range(len(found))) if found[at].name in names), None)
        if position is None:
            return text
        text = _removed(text, found, position)


def _removed(text: str, found: list[Member], position: int) -> str:
    member = found[position]
    end = member.comma + 1 if member.comma is not None else member.value.end
    start = member.start
    line_start = max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) + 1
    if not text[line_start:start].strip() and re.match(r"[ \t]*(?:\r\n|\r|\n)", text[end:]):
        # The line holds nothing else.
        start, end = line_start, end + len(re.match(r"[ \t]*(?:\r\n|\r|\n)", text[end:])[0])  # type: ignore[index]
    elif position + 1 < len(found):
        end += len(text[end:]) - len(text[end:].lstrip(" \t"))
    else:
        start = len(text[:start].rstrip(" \t"))
    text = text[:start] + text[end:]
    before = found[position - 1] if position else None
    if position == len(found) - 1 and before is not None and before.comma is not None and member.comma is None:
        # What is last now had a comma for the sake of what was last before.
        text = text[: before.comma] + text[before.comma + 1 :]
    return text


def _inserted(text: str, parent: Span, name: str, value: Any) -> str:
    found = members(text, parent.start)
    eol = _eol(text)
    is_compact = _is_compact(text, parent)
    key = json.dumps(name, ensure_ascii=False)
    if not found:
        outer = _indent_at(text, parent.start)
        inner = outer + _unit(text)
        inside = text[parent.start + 1 : parent.end - 1]
        written = f"{key}:{_space(text)}{_written(text, value, inner, is_compact)}"
        if is_compact:
            return f"{text[: parent.start + 1]}{written}{inside}{text[parent.end - 1 :]}"
        rest = "" if not inside.strip() else inside.rstrip(" \t\r\n")
        # A comment on the bracket's own line stays there.
        own_line = _SAME_LINE.match(rest)
        head, rest = (own_line[0].rstrip(), rest[own_line.end() :]) if own_line else ("", rest)
        return f"{text[: parent.start + 1]}{head}{eol}{inner}{written}{rest}{eol}{outer}{text[parent.end - 1 :]}"
    last = found[-1]
    if is_compact:
        gap = " " if _space(text) else ""
        comma = "," if last.comma is None else ""
        at = last.value.end if last.comma is None else last.comma + 1
        written = f"{key}:{_space(text)}{_written(text, value, '', True)}"
        return f"{text[:at]}{comma}{gap}{written}{',' if last.comma is not None else ''}{text[at:]}"
    indent = _indent_at(text, last.start)
    written = f"{key}:{_space(text)}{_written(text, value, indent, False)}"
    at = last.value.end if last.comma is None else last.comma + 1
    behind = _SAME_LINE.match(text, at)
    line_end = behind.end() if behind is not None else at
    if text[line_end : line_end + 1] not in ("\r", "\n"):
        # The bracket, or a comment of several lines, follows on this line.
        line_end = at
    comma, tail = (",", "") if last.comma is None else ("", ",")
    return f"{text[:at]}{comma}{text[at:line_end]}{eol}{indent}{written}{tail}{text[line_end:]}"


def _written(text: str, value: Any, indent: str, is_compact: bool) -> str:
    if is_compact:
        separators = (", ", ": ") if _space(text) else (",", ":")
        return json.dumps(value, ensure_ascii=False, separators=separators)
    lines = json.dumps(value, ensure_ascii=False, indent=_unit(text)).splitlines()
    return f"{_eol(text)}{indent}".join(lines)


def _is_compact(text: str, parent: Span) -> bool:
    """Whether the object is written on one line, and a new member belongs there."""
    found = members(text, parent.start)
    if found:
        return "\n" not in text[parent.start : found[-1].start] and "\r" not in text[parent.start : found[-1].start]
    root = locate(text, ())
    assert root is not None
    return parent != root and _is_compact(text, root)


def _unit(text: str) -> str:
    """The white space of one level, as the root's first member shows it."""
    root = locate(text, ())
    assert root is not None
    start = trivia_end(text, root.start + 1)
    line_start = max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) + 1
    lead = text[line_start:start]
    return lead if lead and line_start > root.start and not lead.strip(" \t") else DEFAULT_INDENT


def _indent_at(text: str, position: int) -> str:
    line_start = max(text.rfind("\n", 0, position), text.rfind("\r", 0, position)) + 1
    line = text[line_start:].removeprefix(BOM) if not line_start else text[line_start:]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _eol(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _space(text: str) -> str:
    """What follows a colon: nothing in minified text."""
    root = locate(text, ())
    assert root is not None
    first = next(iter(members(text, root.start)), None) if text[root.start] == "{" else None
    return "" if first is not None and text[first.value.start - 1] == ":" else " "


def _nested(path: Sequence[str], value: Any) -> Any:
    for step in reversed(path):
        value = {step: value}
    return value
