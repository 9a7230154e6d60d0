"""JSON of other programs: lone surrogates are repaired, and a large message is read in turns, for it holds nobody up.

A surrogate is half of a character. Alone it is no text, JSON readers refuse all that surrounds it, and no message can
carry it on; U+FFFD takes its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Any

import anyio.lowlevel
from pydantic_core import from_json

_HEX = rb"[0-9a-fA-F]{2}"
_SURROGATE = re.compile(
    rb"(?P<run>\\+)u(?:(?P<high>[dD][89abAB]"
    + _HEX
    + rb")(?P<low>\\u[dD][c-fC-F]"
    + _HEX
    + rb")?|[dD][c-fC-F]"
    + _HEX
    + rb")"
    rb"|\xed[\xa0-\xbf][\x80-\xbf]"
)
_AS_BYTES = re.compile(rb"\xed[\xa0-\xbf]")
_UNFINISHED = re.compile(
    rb"(?:\\u[dD][89abAB][0-9a-fA-F]{2})?\\(?:u[0-9a-fA-F]{0,3})?\Z|\\u[dD][89abAB][0-9a-fA-F]{2}\Z|\xed[\xa0-\xbf]?\Z"
)
_LONGEST = 11
"""Bytes of the longest unfinished part: one escape, and another but for its last digit."""


def repaired(content: bytes) -> bytes:
    """The JSON without lone surrogates; the same object where it has none."""
    is_escaped = b"\\ud" in content or b"\\uD" in content
    if not is_escaped and not (b"\xed" in content and _AS_BYTES.search(content)):
        return content
    fixed = _SURROGATE.sub(_replacement, content)
    return content if fixed == content else fixed


def _replacement(found: re.Match[bytes]) -> bytes:
    run, low = found["run"], found["low"]
    if run is None:
        return "\ufffd".encode()
    # Backslashes that stand for themselves come in pairs; what follows them is plain text.
    if len(run) % 2 == 0:
        return found[0] if low is None else found[0].removesuffix(low) + rb"\ufffd"
    return found[0] if low is not None else run + rb"ufffd"


class SurrogateRepair:
    """`repaired` for JSON that arrives in pieces."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """What can be handed on once `piece` is here; the start of an escape waits for its end."""
        content = self._held + piece if self._held else piece
        self._held = b""
        tail = content[-_LONGEST:]
        if b"\\" in tail or b"\xed" in tail:
            for at in range(len(content) - len(tail), len(content)):
                if _UNFINISHED.match(content, at) and not _is_escaped(content, at):
                    self._held = content[at:]
                    return repaired(content[:at])
        return repaired(content)

    def rest(self) -> bytes:
        """What still waits when nothing follows."""
        held, self._held = self._held, b""
        return repaired(held)


def _is_escaped(content: bytes, at: int) -> bool:
    before = content[:at]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 1


LARGE = 256 * 1024
"""Length from which a message is read in turns; a smaller one takes a few milliseconds at most."""

TURN = 32 * 1024
"""Length after which everybody else has a turn, about 0.3 ms."""

MAX_LISTED = 100_000
"""More than the largest known server lists by an order of magnitude; beyond, a list is taken for a fault."""

MAX_DEPTH = 200
"""Nesting that pydantic reads, and a little less than it writes: what is deeper cannot be passed on."""

RELEASED = 200
"""Entries of a refused list that are let go of between two turns."""

_LISTS = ("tools", "prompts", "resources", "resourceTemplates")
_RESULT = 1
_OUTER = 3
"""Levels whose members are read one by one: a message, its result, and the list in it."""

_SPACES = " \t\n\r"
_SPACE = re.compile(f"[{_SPACES}]*")
_DECODER = json.JSONDecoder()


class TooDeepError(ValueError):
    """A value is nested deeper than a message may be."""


class TooManyListedError(ValueError):
    """A list has more entries than any server has."""


async def read_json(content: bytes | str) -> Any:
    """The value of a JSON text.

    Raises:
        TooManyListedError: it is the answer to a list request, and the list has no end in sight.
        TooDeepError: it is nested deeper than a message may be.
        ValueError: it is no JSON.
    """
    text = content if isinstance(content, str) else str(content, json.detect_encoding(content))
    if len(text) < LARGE:
        value, end = _part(text, len(text) - len(text.lstrip(_SPACES)))
        if text[end:].strip(_SPACES):
            raise ValueError("something follows the value")
        return value
    reading = _Reading(text)
    turns = reading.document()
    while True:
        try:
            next(turns)
        except StopIteration as end:
            return end.value
        await anyio.lowlevel.checkpoint()


class _Reading:
    """Reads one text; its generators pause after every turn, and return what they read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._pause_at = TURN

    def document(self) -> Generator[None, None, Any]:
        value = yield from self._value(0, "")
        if self._next():
            raise ValueError("something follows the value")
        return value

    def _value(self, level: int, key: str) -> Generator[None, None, Any]:
        opening = self._next()
        if level < _OUTER and opening == "{":
            return (yield from self._object(level))
        if level < _OUTER and opening == "[":
            return (yield from self._list(level, key))
        value, self._at = _part(self._text, self._at)
        if self._at >= self._pause_at:
            self._pause_at = self._at + TURN
            yield
        return value

    def _object(self, level: int) -> Generator[None, None, dict[str, Any]]:
        members: dict[str, Any] = {}
        self._at += 1
        if self._next() == "}":
            self._at += 1
            return members
        while True:
            if self._next() != '"':
                raise ValueError("a key is no text")
            key, self._at = _DECODER.raw_decode(self._text, self._at)
            if self._next() != ":":
                raise ValueError("a key has no value")
            self._at += 1
            members[key] = yield from self._value(level + 1, key)
            if self._ends("}"):
                return members

    def _list(self, level: int, key: str) -> Generator[None, None, list[Any]]:
        items: list[Any] = []
        is_counted = level == _RESULT + 1 and key in _LISTS
        self._at += 1
        if self._next() == "]":
            self._at += 1
            return items
        while True:
            if is_counted and len(items) == MAX_LISTED:
                while items:
                    # Let go of in turns as well: all at once takes half as long as reading them.
                    del items[-RELEASED:]
                    yield
                raise TooManyListedError(f"more than {MAX_LISTED} {key} listed")
            items.append((yield from self._value(level + 1, "")))
            if self._ends("]"):
                return items

    def _next(self) -> str:
        """The next character that means something, where the reading is then; empty at the end."""
        found = _SPACE.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return self._text[self._at : self._at + 1]

    def _ends(self, closing: str) -> bool:
        """Whether the object or list is over, rather than another member follows."""
        found = self._next()
        if found not in (closing, ",") or not found:
            raise ValueError(f"neither a comma nor {closing} follows a value")
        self._at += 1
        return found == closing


def _part(text: str, start: int) -> tuple[Any, int]:
    """The value that begins at `start`, and where it ends."""
    try:
        value, end = _DECODER.raw_decode(text, start)
        is_deep = text.count("{", start, end) + text.count("[", start, end) > MAX_DEPTH and _is_deep(text[start:end])
    except RecursionError:
        is_deep = True
    if is_deep:
        raise TooDeepError(f"nested deeper than {MAX_DEPTH} levels")
    return value, end


def _is_deep(text: str) -> bool:
    try:
        from_json(text)
    except ValueError as error:
        return "recursion limit" in str(error)
    return False
