"""JSON text, with comments and trailing commas, becomes values and the positions of its members."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

BOM = "\ufeff"
MAX_DEPTH = 200

_TRIVIA = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_WORD = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_SKIPPED = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\r\n]*|/\*.*?\*/|[{}\[\]]', re.DOTALL)
_WORDS = {"true": True, "false": False, "null": None}


class JsonTextError(ValueError):
    """Text that is no JSON, with the position where that shows."""

    def __init__(self, message: str, text: str, position: int) -> None:
        self.line = text.count("\n", 0, position) + 1
        self.column = position - (text.rfind("\n", 0, position) + 1) + 1
        super().__init__(f"line {self.line}, column {self.column}: {message}")


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the text."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Member:
    """One member of an object: where it starts and ends, its value, and the position of the comma behind it."""

    name: str
    start: int
    value: Span
    comma: int | None


def parse(text: str) -> Any:
    """The value that `text` stands for; the last of two members with one name counts, as in every client.

    Raises:
        JsonTextError: with line and column.
    """
    try:
        # Files without comments, by far the most, in C: those of Claude Code can hold megabytes.
        return json.loads(text.removeprefix(BOM), parse_constant=_refuse)
    except RecursionError:
        raise JsonTextError("is nested too deeply", text, 0) from None
    except ValueError:
        return _Parser(text).document()


def members(text: str, position: int) -> list[Member]:
    """The members of the object that starts at `position` of a text that `parse` accepts."""
    return list(_members(text, position))


def locate(text: str, path: Sequence[str]) -> Span | None:
    """Where the value at `path` stands in a text that `parse` accepts, if it is there."""
    start = _after(text, len(BOM) if text.startswith(BOM) else 0)
    span = Span(start, _end(text, start)) if start < len(text) else None
    for step in path:
        if span is None or text[span.start] != "{":
            return None
        span = next((member.value for member in reversed(members(text, span.start)) if member.name == step), None)
    return span


def trivia_end(text: str, position: int) -> int:
    """The position behind white space and comments."""
    return _after(text, position)


def _members(text: str, position: int) -> Iterator[Member]:
    position = _after(text, position + 1)
    while text[position] != "}":
        start = position
        name = _STRING.match(text, position)
        assert name is not None, "the text was parsed before"
        position = _after(text, _after(text, name.end()) + 1)
        end = _end(text, position)
        behind = _after(text, end)
        has_comma = text[behind] == ","
        yield Member(json.loads(name[0]), start, Span(position, end), behind if has_comma else None)
        position = _after(text, behind + 1) if has_comma else behind


def _end(text: str, position: int) -> int:
    """The end of the value that starts at `position`."""
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
    """Reads one text, strictly but for comments, trailing commas and a byte order mark."""

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
