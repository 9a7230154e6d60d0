"""Large JSON, parsed in turns with the event loop.

A C function that parses 30 MB holds the interpreter for a third of a second, even in a thread. Here no step handles
more than about `TURN` characters, and other tasks run in between. Members of results keep their source, so that they
are passed on unchanged.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import re
from collections.abc import Generator, Iterable
from contextlib import suppress
from typing import Any
from weakref import ref

import anyio.lowlevel
from pydantic_core import from_json

from pml_gateway.foreign_json import SurrogateRepair, repaired
from pml_gateway.gc_pause import GcPause
from pml_gateway.json_text.pieces import LARGE, PIECE, JsonSource, SourcedList, SourcedObject

TURN = 32 * 1024
"""Number of bytes after which other tasks get a turn, about 0.3 ms."""

PUT_OFF_SECONDS = 5.0
"""Maximum time without garbage collection for parsed values: most are passed on and freed within one second."""

MAX_LISTED = 100_000
"""Maximum length of a list; ten times more than the largest known server lists, so a longer one is a fault."""

MAX_DEPTH = 200
"""Maximum nesting, as pydantic parses it and slightly less than it writes: deeper values cannot be passed on."""

RELEASED = 200
"""Entries of a refused list that are freed between two turns."""

_LISTS = {
    "tools": b"name",
    "prompts": b"name",
    "resources": b"uri",
    "resourceTemplates": b"uriTemplate",
    "skills": b"uri",
}
"""The lists of servers, and the member that identifies their entries."""

MAX_NAME = 200
"""Maximum characters of the name of an entry that is left out."""

_PASSED_ON = ("content", "structuredContent", "contents", "messages")
"""Members of results that keep their source: they are short-lived, and the source with them."""

_MEMBER = 2
"""The level of the members of a result; a message is level 0."""

_DEEP_FROM = 3
"""The level from which nesting is counted."""

CUTS_TRIED = 4
"""Positions tried as the end of a batch of members; most commas of a value are not inside its members."""

_ENDS = b'}]"'
_SPACES = " \t\n\r"
_SPACE = re.compile(rb"[ \t\n\r]*")
_MARK = re.compile(rb'"(?:[^"\\]|\\.)*+"|[][{}]', re.DOTALL)
"""A text, or the beginning or end of an object or list."""
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_UTF8 = ("utf-8", "utf-8-sig")
_LONGEST_ESCAPE = 6
_EXPONENT = 3
"""Characters, as in `e+1`, that must follow a number for it to be known to end there."""
_DECODER = json.JSONDecoder()


class TooDeepError(ValueError):
    """A value is nested more deeply than a message may be."""


class ShortList(list[Any]):
    """A server's list without the entries that are nested too deeply; `left_out` has their names."""

    def __init__(self, items: Iterable[Any], left_out: Iterable[str]) -> None:
        super().__init__(items)
        self.left_out = tuple(left_out)


class TooManyListedError(ValueError):
    """A list has more entries than any real server's."""


async def read_json(content: bytes | str, decoder: json.JSONDecoder = _DECODER, errors: str = "strict") -> Any:
    """Parse a JSON text; `errors` handles bytes that are not valid characters.

    Raises:
        TooManyListedError: it is the answer to a list request, and the list is too long.
        TooDeepError: it is nested more deeply than a message may be.
        ValueError: it is not JSON.
    """
    if len(content) < LARGE:
        text = content if isinstance(content, str) else str(content, json.detect_encoding(content), errors)
        with suppress(TooDeepError):
            value, end = _part(text, len(text) - len(text.lstrip(_SPACES)), decoder)
            if text[end:].strip(_SPACES):
                raise ValueError("something follows the value")
            return value
        content = text
    # Garbage collection of the values would take as long as parsing them.
    put_off = GcPause()
    turns = _read(content, decoder, errors, put_off)
    while True:
        try:
            next(turns)
        except StopIteration as end_of_it:
            asyncio.get_running_loop().call_later(PUT_OFF_SECONDS, _end, ref(put_off))
            return end_of_it.value
        await anyio.lowlevel.checkpoint()


async def repaired_in_turns(content: bytes) -> bytes:
    """Return the same as `repaired`; a large message is checked in turns with other tasks."""
    if len(content) < LARGE:
        return repaired(content)
    repair, pieces, is_same = SurrogateRepair(), list[bytes](), True
    for start in range(0, len(content), PIECE):
        piece = content[start : start + PIECE]
        fixed = repair.feed(piece)
        # Bytes that are held back come with the next piece.
        is_same = is_same and fixed is piece
        pieces.append(fixed)
        await anyio.lowlevel.checkpoint()
    return content if is_same else b"".join([*pieces, repair.rest()])


def read_large(content: str) -> Any:
    """Parse a JSON text in a thread, letting other threads run in between.

    Raises:
        ValueError: it is not JSON, or nested more deeply than a message may be.
    """
    turns = _read(content, _DECODER, "replace", None)
    while True:
        try:
            next(turns)
        except StopIteration as end:
            return end.value


def _end(put_off: ref[GcPause]) -> None:
    if (still := put_off()) is not None:
        still.end()


def _read(
    content: bytes | str, decoder: json.JSONDecoder, errors: str, put_off: GcPause | None
) -> Generator[None, None, Any]:
    sound = yield from _in_utf8(content, errors)
    return (yield from _Reading(sound, decoder, put_off).document())


def _in_utf8(content: bytes | str, errors: str) -> Generator[None, None, bytes]:
    """Return the content in UTF-8, without a byte order mark and invalid bytes; usually the same object."""
    encoding = "utf-8" if isinstance(content, str) else json.detect_encoding(content)
    if isinstance(content, bytes) and encoding in _UTF8:
        content = content.removeprefix(codecs.BOM_UTF8)
        if content.isascii() or (yield from _is_utf8(content)):
            return content
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    parts: list[bytes] = []
    for start in range(0, len(content), PIECE):
        part = content[start : start + PIECE]
        parts.append((part if isinstance(part, str) else decoder.decode(part)).encode("utf-8", "replace"))
        yield
    return b"".join([*parts, decoder.decode(b"", final=True).encode()])


def _is_utf8(content: bytes) -> Generator[None, None, bool]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(content), PIECE):
            decoder.decode(content[start : start + PIECE])
            yield
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


class _Reading:
    """A parser of one message; its generators pause after every turn, and return the parsed value."""

    def __init__(self, content: bytes, decoder: json.JSONDecoder, put_off: GcPause | None) -> None:
        self._content = content
        self._put_off = put_off
        self._decoder = decoder
        self._at = 0
        self._pause_at = TURN
        self._batch_at = 0
        self._small: Any = None
        # A part of the content as text; the character at `_window_at` is the byte at `_window_byte`.
        self._window = ""
        self._window_at = self._window_byte = 0
        self._is_last_window = False

    def document(self) -> Generator[None, None, Any]:
        value = yield from self._value(0, "")
        if self._next():
            raise ValueError("something follows the value")
        return value

    def _value(self, level: int, key: str) -> Generator[None, None, Any]:
        opening = self._next()
        is_outer = level <= _MEMBER and opening in (b"{", b"[")
        value: Any
        if not is_outer and self._read_small(level):
            value = self._small
        elif opening == b"{":
            value = yield from self._object(level, key)
        elif opening == b"[":
            value = yield from self._list(level, key)
        elif opening == b'"':
            value = yield from self._string()
        else:
            raise ValueError("this is no value")
        if self._at >= self._pause_at:
            self._pause_at = self._at + TURN
            yield
        return value

    def _read_small(self, level: int) -> bool:
        """Parse a value of at most `TURN` bytes into `_small`; return False if it is longer, or invalid."""
        for is_new in (False, True):
            if is_new:
                # A character that is cut off at the end is dropped.
                self._window = self._content[self._at : self._at + 2 * TURN].decode("utf-8", "ignore")
                self._window_at, self._window_byte = 0, self._at
                self._is_last_window = self._at + 2 * TURN >= len(self._content)
            passed = self._content[self._window_byte : min(self._at, self._window_byte + 2 * TURN)]
            start = self._window_at + len(passed.decode("utf-8", "ignore"))
            if start >= len(self._window):
                continue
            try:
                value, end = _part(self._window, start, self._decoder, level - _DEEP_FROM)
            except TooDeepError:
                raise
            except ValueError:
                continue
            size = end - start if self._window.isascii() else len(self._window[start:end].encode())
            # A number may continue after the window.
            if end + _EXPONENT <= len(self._window) or self._is_last_window:
                self._small = value
                self._at += size
                self._window_at, self._window_byte = end, self._at
                return True
        return False

    def _string(self) -> Generator[None, None, str]:
        """Parse a long text in pieces; no piece ends within an escape or a character."""
        parts: list[str] = []
        at = self._at + 1
        while at < len(self._content):
            end = min(at + PIECE, len(self._content))
            if end < len(self._content):
                end = _uncut(self._content, at, end)
            window = self._content[at:end].decode()
            # With a closing quote added, a window in the middle of the text is parsed as a whole.
            part, length = _DECODER.raw_decode(f'"{window}"')
            parts.append(part)
            if length < len(window) + 2:
                self._at = at + len(window[: length - 1].encode())
                return "".join(parts)
            at = end
            yield
        raise ValueError("a text does not end")

    def _object(self, level: int, key: str) -> Generator[None, None, dict[str, Any]]:
        members: dict[str, Any] = SourcedObject() if level == _MEMBER and key in _PASSED_ON else {}
        begins = self._begin(level)
        if self._next() == b"}":
            self._at += 1
            return members
        while True:
            if self._next() != b'"':
                raise ValueError("a key is no text")
            name = yield from self._value(level + 1, "")
            if self._next() != b":":
                raise ValueError("a key has no value")
            self._at += 1
            members[name] = yield from self._value(level + 1, name)
            last = self._content[self._at - 1 : self._at]
            if self._ends(b"}"):
                break
            while level >= _MEMBER and (batch := self._batch(b"{", b"}", last, level)) is not None:
                members.update(batch)
                yield
        if isinstance(members, SourcedObject):
            members.source, members.put_off = self._source(begins), self._put_off
        return members

    def _list(self, level: int, key: str) -> Generator[None, None, list[Any]]:
        items: list[Any] = SourcedList() if level == _MEMBER and key in _PASSED_ON else []
        left_out: list[str] = []
        is_counted = level == _MEMBER and key in _LISTS
        begins = self._begin(level)
        if self._next() == b"]":
            self._at += 1
            return items
        while True:
            if is_counted and len(items) == MAX_LISTED:
                while items:
                    # Freed in turns as well: freeing all at once takes half as long as parsing.
                    del items[-RELEASED:]
                    yield
                raise TooManyListedError(f"more than {MAX_LISTED} {key} listed")
            item_at = self._at
            try:
                items.append((yield from self._value(level + 1, "")))
            except TooDeepError:
                if not is_counted:
                    raise
                self._at = item_at
                self._next()
                left_out.append(self._skip(_LISTS[key]))
            last = self._content[self._at - 1 : self._at]
            if self._ends(b"]"):
                break
            while not is_counted and (batch := self._batch(b"[", b"]", last, level)) is not None:
                items.extend(batch)
                yield
        if isinstance(items, SourcedList):
            items.source, items.put_off = self._source(begins), self._put_off
        return ShortList(items, left_out) if left_out else items

    def _batch(self, opening: bytes, closing: bytes, last: bytes, level: int) -> Any:
        """Parse the next members at once, as many as end within a turn; None if they must be parsed one by one.

        Args:
            opening: the beginning of the object or list.
            closing: its end.
            last: the last byte of the previous member, with which these probably end too.
            level: the level of the object or list.
        """
        if self._at < self._batch_at or self._at + TURN > len(self._content):
            return None
        window, end = self._content[self._at : self._at + TURN], TURN
        nested = max(level - _DEEP_FROM, 0)
        for _ in range(CUTS_TRIED):
            end = window.rfind(last + b"," if last in _ENDS else b",", 0, end) + (last in _ENDS)
            if end <= 0:
                break
            with suppress(ValueError):
                read = from_json(
                    b"[" * nested + opening + window[:end] + closing + b"]" * nested,
                    allow_inf_nan=self._decoder is _DECODER,
                )
                for _ in range(nested):
                    (read,) = read
                self._at += end + 1
                return read
        # Tried again after as many bytes as were searched in vain.
        self._batch_at = self._at + TURN
        return None

    def _begin(self, level: int) -> int:
        """Move past the opening of an object or list, and return its position."""
        if level - _DEEP_FROM >= MAX_DEPTH:
            raise TooDeepError(f"nested deeper than {MAX_DEPTH} levels")
        begins = self._at
        self._at += 1
        return begins

    def _source(self, begins: int) -> JsonSource | None:
        return JsonSource(self._content, begins, self._at) if self._at - begins >= LARGE else None

    def _skip(self, named_by: bytes) -> str:
        """Move to the end of the object or list that begins here; return the text of its member `named_by`."""
        depth, key, name = 0, b"", b""
        for mark in _MARK.finditer(self._content, self._at):
            if mark[0].startswith(b'"'):
                if depth == 1 and key == named_by:
                    name = name or mark[0]
                # A text is a key if a colon follows; else it is the value of the key before it.
                is_key = depth == 1 and self._content[mark.end() : mark.end() + MAX_NAME].lstrip()[:1] == b":"
                key = mark[0][1:-1] if is_key else b""
                continue
            depth += 1 if mark[0] in b"{[" else -1
            key = b""
            if not depth:
                self._at = mark.end()
                return self._name(name)
        raise ValueError("an object or list does not end")

    def _name(self, text: bytes) -> str:
        try:
            return str(self._decoder.decode(text.decode()))[:MAX_NAME] if text else ""
        except ValueError:
            return ""

    def _next(self) -> bytes:
        """Return the next byte that is not white space, and move to it; empty at the end."""
        found = _SPACE.match(self._content, self._at)
        assert found is not None
        self._at = found.end()
        return self._content[self._at : self._at + 1]

    def _ends(self, closing: bytes) -> bool:
        """Return True if the object or list ends here, False if another member follows."""
        found = self._next()
        if found not in (closing, b","):
            raise ValueError(f"neither a comma nor {closing.decode()} follows a value")
        self._at += 1
        return found == closing


def _uncut(content: bytes, start: int, end: int) -> int:
    """Return the last position up to `end` at which no escape, surrogate pair or character is cut."""
    while content[end] & 0b1100_0000 == 0b1000_0000:
        end -= 1
    at = content.rfind(b"\\", end - _LONGEST_ESCAPE, end)
    if at >= 0 and _is_escape(content, start, at):
        end = at
    before = end - _LONGEST_ESCAPE
    return before if _HIGH_SURROGATE.match(content, before, end) and _is_escape(content, start, before) else end


def _is_escape(content: bytes, start: int, at: int) -> bool:
    """Return True if the backslash at `at` begins an escape, False if it is escaped itself."""
    run = content[start : at + 1]
    return (len(run) - len(run.rstrip(b"\\"))) % 2 == 1


def _part(text: str, start: int, decoder: json.JSONDecoder, level: int = 0) -> tuple[Any, int]:
    """Parse the value at `start`, nested in `level` others; return it and its end."""
    level = max(level, 0)
    try:
        value, end = decoder.raw_decode(text, start)
        is_deep = text.count("{", start, end) + text.count("[", start, end) + level > MAX_DEPTH and _is_deep(
            text[start:end], level
        )
    except RecursionError:
        is_deep = True
    if is_deep:
        raise TooDeepError(f"nested deeper than {MAX_DEPTH} levels")
    return value, end


def _is_deep(text: str, level: int) -> bool:
    try:
        from_json(f"{'[' * level}{text}{']' * level}")
    except ValueError as error:
        return "recursion limit" in str(error)
    return False
