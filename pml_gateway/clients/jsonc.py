"""JSON with comments: parsing, the positions of members, and edits that leave the rest of the text unchanged.

Order, indentation, comments, line endings and trailing commas of everything else stay byte for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

BOM = "\ufeff"
MAX_DEPTH = 200

_TRIVIA = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_WORD = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_SKIPPED = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\r\n]*|/\*.*?\*/|[{}\[\]]', re.DOTALL)
_WORDS = {"true": True, "false": False, "null": None}

DEFAULT_INDENT = "  "

_SAME_LINE = re.compile(r"[ \t]*(?:/\*(?:[^*\r\n]|\*(?!/))*\*/[ \t]*)*(?://[^\r\n]*)?")
"""White space and comments up to the end of a line."""

Write = Callable[[str, bool], str]
"""Writes a member, given its indentation and whether the object is on one line."""


class JsonTextError(ValueError):
    """Text that is not JSON, with the position of the error."""

    def __init__(self, message: str, text: str, position: int) -> None:
        self.line = text.count("\n", 0, position) + 1
        self.column = position - (text.rfind("\n", 0, position) + 1) + 1
        super().__init__(f"line {self.line}, column {self.column}: {message}")


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A part of the text."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class JsonMember:
    """One member of an object: its start, its value, and the position of the comma after it."""

    name: str
    start: int
    value: TextSpan
    comma: int | None


def parse(text: str) -> Any:
    """Parse `text`; if an object has two members of one name, the last counts, as in every client.

    Raises:
        JsonTextError: the text is broken; has line and column.
    """
    try:
        # Files without comments, by far the most, are parsed in C: those of Claude Code can have megabytes.
        return json.loads(text.removeprefix(BOM), parse_constant=_refuse)
    except RecursionError:
        raise JsonTextError("is nested too deeply", text, 0) from None
    except ValueError:
        return _Parser(text).document()


def is_strict(text: str) -> bool:
    """Return True if the text is JSON without comments and trailing commas, which not every parser accepts."""
    try:
        json.loads(text.removeprefix(BOM))
    except ValueError:
        return False
    return True


def members(text: str, position: int) -> list[JsonMember]:
    """Return the members of the object that starts at `position` of a text that `parse` accepts."""
    return list(_members(text, position))


def locate(text: str, path: Sequence[str]) -> TextSpan | None:
    """Return the span of the value at `path` in a text that `parse` accepts; None if it does not exist."""
    start = _after(text, len(BOM) if text.startswith(BOM) else 0)
    span = TextSpan(start, _end(text, start)) if start < len(text) else None
    for step in path:
        if span is None or text[span.start] != "{":
            return None
        span = next((member.value for member in reversed(members(text, span.start)) if member.name == step), None)
    return span


def trivia_end(text: str, position: int) -> int:
    """Return the position after white space and comments."""
    return _after(text, position)


def _members(text: str, position: int) -> Iterator[JsonMember]:
    position = _after(text, position + 1)
    while text[position] != "}":
        start = position
        name = _STRING.match(text, position)
        assert name is not None, "the text was parsed before"
        position = _after(text, _after(text, name.end()) + 1)
        end = _end(text, position)
        behind = _after(text, end)
        has_comma = text[behind] == ","
        yield JsonMember(json.loads(name[0]), start, TextSpan(position, end), behind if has_comma else None)
        position = _after(text, behind + 1) if has_comma else behind


def _end(text: str, position: int) -> int:
    """Return the end of the value that starts at `position`."""
    if text[position] not in "{[":
        match = _STRING.match(text, position) or _WORD.match(text, position)
        assert match is not None, "the text was parsed before"
        return match.end()
    depth = 0
    for match in _SKIPPED.finditer(text, position):
        if match[0] in "{[":
            depth += 1
        elif match[0] in "}]":
            depth -= 1
            if not depth:
                return match.end()
    raise AssertionError("the text was parsed before")


def _after(text: str, position: int) -> int:
    match = _TRIVIA.match(text, position)
    return match.end() if match else position


def _refuse(word: str) -> Any:
    raise ValueError(word)


class _Parser:
    """A parser of one text, strict except for comments, trailing commas and a byte order mark."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = len(BOM) if text.startswith(BOM) else 0

    def document(self) -> Any:
        self._skip()
        if self._at == len(self._text):
            raise self._error("the file is empty")
        value = self._value(0)
        self._skip()
        if self._at < len(self._text):
            raise self._error("there is more behind the last bracket")
        return value

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise self._error(f"is nested more than {MAX_DEPTH} levels deep")
        if self._peek() in ("{", "["):
            return self._object(depth) if self._peek() == "{" else self._array(depth)
        if self._peek() == '"':
            return self._string()
        match = _WORD.match(self._text, self._at)
        if match is None:
            raise self._error(f"{self._peek()!r} starts no value" if self._peek() else "the file ends too early")
        self._at = match.end()
        return _WORDS[match[0]] if match[0] in _WORDS else json.loads(match[0])

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self._step()
        while self._peek() != "}":
            if self._peek() != '"':
                raise self._error("a member's name in double quotes should stand here")
            name = self._string()
            self._skip()
            self._expect(":")
            found[name] = self._value(depth + 1)
            self._skip()
            if self._peek() != "}":
                self._expect(",")
        self._at += 1
        return found

    def _array(self, depth: int) -> list[Any]:
        found: list[Any] = []
        self._step()
        while self._peek() != "]":
            found.append(self._value(depth + 1))
            self._skip()
            if self._peek() != "]":
                self._expect(",")
        self._at += 1
        return found

    def _string(self) -> str:
        match = _STRING.match(self._text, self._at)
        if match is None:
            raise self._error("a text is not closed on its line")
        try:
            value: str = json.loads(match[0])
        except ValueError:
            raise self._error("a text has an escape that JSON does not know") from None
        self._at = match.end()
        return value

    def _expect(self, character: str) -> None:
        if self._peek() != character:
            found = repr(self._peek()) if self._peek() else "the end of the file"
            raise self._error(f"{character!r} should stand here, not {found}")
        self._step()

    def _step(self) -> None:
        self._at += 1
        self._skip()

    def _skip(self) -> None:
        self._at = _after(self._text, self._at)
        if self._text.startswith("/*", self._at):
            raise self._error("a comment is not closed")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _error(self, message: str) -> JsonTextError:
        return JsonTextError(message, self._text, self._at)


def set_member(text: str, path: Sequence[str], name: str, value: Any) -> str:
    """Return `text` with `value` under `name` in the object at `path`; missing objects on the way are created."""
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
    key = f"{json.dumps(name, ensure_ascii=False)}:{_space(text)}"
    behind = next(reversed(members(text, parent.start)), None)
    return _inserted(text, parent, lambda indent, compact: key + _written(text, value, indent, compact), behind)


def put_back(text: str, path: Sequence[str], name: str, original: str) -> str:
    """Return `text` with the member `name` at `path` as `original` writes it, after the same neighbour as there."""
    if locate(text, path) is None:
        text = set_member(text, path[:-1], path[-1], {})
    before, parent = locate(original, path), locate(text, path)
    assert before is not None and parent is not None, "both have the object"
    there = members(original, before.start)
    at = max(position for position, member in enumerate(there) if member.name == name)
    raw = original[there[at].start : there[at].value.end].replace("\r\n", "\n").replace("\n", _eol(text))
    found = {member.name: member for member in members(text, parent.start)}
    behind = next((found[member.name] for member in reversed(there[:at]) if member.name in found), None)
    return _inserted(text, parent, lambda indent, is_compact: raw, behind)


def remove_members(text: str, path: Sequence[str], names: Collection[str]) -> str:
    """Return `text` without the members `names` of the object at `path`; comments around them stay."""
    parent = locate(text, path)
    if parent is None or text[parent.start] != "{":
        return text
    while True:
        found = members(text, parent.start)
        position = next((at for at in reversed(range(len(found))) if found[at].name in names), None)
        if position is None:
            return text
        text = _removed(text, found, position)


def _removed(text: str, found: list[JsonMember], position: int) -> str:
    member = found[position]
    end = member.comma + 1 if member.comma is not None else member.value.end
    start = member.start
    line_start = max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) + 1
    if not text[line_start:start].strip() and re.match(r"[ \t]*(?:\r\n|\r|\n)", text[end:]):
        # The line contains nothing else.
        start, end = line_start, end + len(re.match(r"[ \t]*(?:\r\n|\r|\n)", text[end:])[0])  # type: ignore[index]
    elif position + 1 < len(found):
        end += len(text[end:]) - len(text[end:].lstrip(" \t"))
    else:
        start = len(text[:start].rstrip(" \t"))
    text = text[:start] + text[end:]
    before = found[position - 1] if position else None
    if position == len(found) - 1 and before is not None and before.comma is not None and member.comma is None:
        # The new last member has a comma, which the former last one did not have.
        text = text[: before.comma] + text[before.comma + 1 :]
    return text


def _inserted(text: str, parent: TextSpan, write: Write, behind: JsonMember | None) -> str:
    """Return `text` with one more member in the object `parent`: at its beginning, or after the member `behind`."""
    found = members(text, parent.start)
    eol = _eol(text)
    is_compact = _is_compact(text, parent)
    if not found:
        outer = _indent_at(text, parent.start)
        inner = outer + _unit(text)
        inside = text[parent.start + 1 : parent.end - 1]
        written = write(inner, is_compact)
        if is_compact:
            return f"{text[: parent.start + 1]}{written}{inside}{text[parent.end - 1 :]}"
        rest = "" if not inside.strip() else inside.rstrip(" \t\r\n")
        # A comment on the line of the opening bracket stays there.
        own_line = _SAME_LINE.match(rest)
        head, rest = (own_line[0].rstrip(), rest[own_line.end() :]) if own_line else ("", rest)
        return f"{text[: parent.start + 1]}{head}{eol}{inner}{written}{rest}{eol}{outer}{text[parent.end - 1 :]}"
    gap = " " if _space(text) else ""
    indent = "" if is_compact else _indent_at(text, (behind or found[0]).start)
    written = write(indent, is_compact)
    if behind is None:
        at = found[0].start
        return f"{text[:at]}{written},{gap if is_compact else eol + indent}{text[at:]}"
    at = behind.value.end if behind.comma is None else behind.comma + 1
    comma, tail = (",", "") if behind.comma is None else ("", ",")
    if is_compact:
        return f"{text[:at]}{comma}{gap}{written}{tail}{text[at:]}"
    same_line = _SAME_LINE.match(text, at)
    line_end = same_line.end() if same_line is not None else at
    if text[line_end : line_end + 1] not in ("\r", "\n"):
        # The closing bracket, a member or a multi-line comment follows on this line.
        line_end = at
    return f"{text[:at]}{comma}{text[at:line_end]}{eol}{indent}{written}{tail}{text[line_end:]}"


def _written(text: str, value: Any, indent: str, is_compact: bool) -> str:
    if is_compact:
        separators = (", ", ": ") if _space(text) else (",", ":")
        return json.dumps(value, ensure_ascii=False, separators=separators)
    lines = json.dumps(value, ensure_ascii=False, indent=_unit(text)).splitlines()
    return f"{_eol(text)}{indent}".join(lines)


def _is_compact(text: str, parent: TextSpan) -> bool:
    """Return True if the object is written on one line, so that a new member belongs there."""
    found = members(text, parent.start)
    if found:
        return "\n" not in text[parent.start : found[-1].start] and "\r" not in text[parent.start : found[-1].start]
    root = locate(text, ())
    assert root is not None
    return parent != root and _is_compact(text, root)


def _unit(text: str) -> str:
    """Return one level of indentation, taken from the root's first member."""
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
    """Return the white space after a colon: none in minified text."""
    root = locate(text, ())
    assert root is not None
    first = next(iter(members(text, root.start)), None) if text[root.start] == "{" else None
    return "" if first is not None and text[first.value.start - 1] == ":" else " "


def _nested(path: Sequence[str], value: Any) -> Any:
    for step in reversed(path):
        value = {step: value}
    return value
