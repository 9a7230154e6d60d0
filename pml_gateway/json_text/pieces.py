"""JSON in pieces of bounded size: of values as they came, and of values as they are.

A C function that writes 30 MB holds the interpreter for a tenth of a second, in a thread as well. Between pieces, other
tasks and threads run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pml_gateway.garbage import PutOff

LARGE = 256 * 1024
"""Length from which a message is read in turns; a smaller one takes a few milliseconds at most."""

PIECE = 256 * 1024
"""Length of what is only copied or decoded in one turn."""


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Source:
    """The JSON of a value, as a part of the message that it was read from."""

    content: bytes
    start: int
    end: int

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return self.end - self.start

    def __iter__(self) -> Iterator[bytes]:
        """The JSON in UTF-8 on one line, in pieces of bounded size."""
        for start in range(self.start, self.end, PIECE):
            piece = self.content[start : min(start + PIECE, self.end)]
            # Line breaks are allowed between values only, and end a message on every transport.
            yield piece.replace(b"\n", b" ").replace(b"\r", b" ")


class SourcedObject(dict[str, Any]):
    """An object that knows its source, if it is large. To be replaced rather than changed."""

    source: Source | None = None
    put_off: PutOff | None = None


class SourcedList(list[Any]):
    """A list that knows its source, if it is large. To be replaced rather than changed."""

    source: Source | None = None
    put_off: PutOff | None = None


def pieces_of(value: Any, errors: str = "replace") -> Iterator[bytes]:
    """The value as compact JSON in UTF-8, in pieces of bounded size; `errors` says what becomes of lone surrogates."""
    if isinstance(value, str) and len(value) > PIECE:
        yield b'"'
        for start in range(0, len(value), PIECE):
            yield _ENCODER.encode(value[start : start + PIECE])[1:-1].encode("utf-8", errors)
        yield b'"'
    elif isinstance(value, dict) and exceeds(value, PIECE):
        named = ((f"{_ENCODER.encode(str(key))}:".encode("utf-8", errors), item) for key, item in value.items())
        yield from _members(named, b"{", b"}", errors)
    elif isinstance(value, list | tuple) and exceeds(value, PIECE):
        yield from _members(((b"", item) for item in value), b"[", b"]", errors)
    else:
        yield _ENCODER.encode(value).encode("utf-8", errors)


def _members(items: Iterable[tuple[bytes, Any]], opening: bytes, closing: bytes, errors: str) -> Iterator[bytes]:
    """The members of an object or list, each with the JSON in front of it; small ones together."""
    gathered, comma = bytearray(opening), b""
    for begin, item in items:
        gathered += comma + begin
        comma = b","
        for piece in pieces_of(item, errors):
            gathered += piece
            if len(gathered) >= PIECE:
                yield bytes(gathered)
                gathered.clear()
    yield bytes(gathered + closing)


def exceeds(value: Any, limit: int) -> bool:
    """Return True if JSON holds more than `limit` characters; looks no further than that."""
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
