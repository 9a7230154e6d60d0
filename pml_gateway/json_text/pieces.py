"""JSON in pieces of bounded size: the source of values as they arrived, and the encoding of other values.

A C function that writes 30 MB holds the interpreter for a tenth of a second, even in a thread. Between pieces, other
tasks and threads run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pml_gateway.gc_pause import GcPause

LARGE = 256 * 1024
"""Length from which a message is parsed in pieces; a smaller one takes a few milliseconds at most."""

PIECE = 256 * 1024
"""Length of one piece that is only copied or decoded."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class JsonSource:
    """The JSON source of a value, as a part of the message that contained it."""

    content: bytes
    start: int
    end: int

    @property
    def size(self) -> int:
        """Return its length in bytes."""
        return self.end - self.start

    def __iter__(self) -> Iterator[bytes]:
        """Yield the JSON in UTF-8 on one line, in pieces of bounded size."""
        for start in range(self.start, self.end, PIECE):
            piece = self.content[start : min(start + PIECE, self.end)]
            # Line breaks only occur between values, and would end a message on every transport.
            yield piece.replace(b"\n", b" ").replace(b"\r", b" ")


class SourcedObject(dict[str, Any]):
    """An object with its source, if it is large. Must be replaced rather than changed."""

    source: JsonSource | None = None
    put_off: GcPause | None = None


class SourcedList(list[Any]):
    """A list with its source, if it is large. Must be replaced rather than changed."""

    source: JsonSource | None = None
    put_off: GcPause | None = None


def pieces_of(value: Any, errors: str = "replace") -> Iterator[bytes]:
    """Yield the value as compact JSON in UTF-8, in pieces of bounded size; `errors` handles lone surrogates."""
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
    """Yield the members of an object or list, each after its given JSON prefix; small ones together."""
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
    """Return True if a value's JSON has more than `limit` characters; stops counting there."""
    return measure(value, limit) > limit


def measure(value: Any, limit: int) -> int:
    """Return the approximate length of a value's JSON; stop counting once it is more than `limit`."""
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
