"""Values that are JSON already: put into answers past the SDK, which would check, copy and write them each time.

1. The SDK checks and wraps an answer without the value; `Written` is put in its place afterwards. The SDK writes it as
   a short text that occurs nowhere else.
2. Over HTTP, `Splicing` has the JSON in the place of that text in the body, piece by piece, and corrects the length
   that the headers promise. Over stdio and sockets, `WrittenSent` makes it a part of the message, which then writes
   itself.

Every transport does one of these, so that answers do not depend on it.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

import anyio.lowlevel
from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import JSONRPCMessage, JSONRPCResponse
from pydantic import BaseModel
from starlette.types import Message, Send

from pml_gateway.gateway.request import RequestScope
from pml_gateway.json_text.pieces import LARGE, SourcedList, SourcedObject, pieces_of
from pml_gateway.mcp.sdk import TappedSend
from pml_gateway.types import JsonObject

_LARGE_KEYS = ("content", "structuredContent", "contents", "messages")
"""Members of results that may be large."""

MANY = 1000
"""Members of an object or list from which on writing it takes milliseconds."""

_mark = f"pml-{secrets.token_hex(16)}-"
_PLACE = re.compile(f'"{_mark}\\d+"'.encode())
"""Matches a placeholder. No server can write one: the mark never leaves this process."""

_numbers = itertools.count(1)
_known: WeakValueDictionary[str, WrittenValue] = WeakValueDictionary()


class WrittenValue(str):
    """The place of a value in an answer, with the JSON of the value; kept by the answer, and over HTTP by the request.

    Args:
        pieces: the JSON in UTF-8, on one line; gone through each time that it is sent.
        size: its length in bytes.
        scope: of the request that it answers.
    """

    pieces: Iterable[bytes]
    size: int

    def __new__(cls, pieces: Iterable[bytes], size: int, scope: RequestScope) -> WrittenValue:
        written = super().__new__(cls, f"{_mark}{next(_numbers)}")
        written.pieces, written.size = pieces, size
        _known[written] = written
        scope.written.append(written)
        return written


async def large_apart(result: JsonObject, scope: RequestScope) -> tuple[JsonObject, JsonObject]:
    """Split a result into what the SDK is to see, and its large members, which are written in turns with other tasks.

    A member that came unchanged from its server is not written again: its JSON goes on as it came.
    """
    apart: JsonObject = {}
    for key in _LARGE_KEYS:
        if (value := result.get(key)) is None:
            continue
        source = value.source if isinstance(value, SourcedObject | SourcedList) else None
        if source is not None:
            apart[key] = WrittenValue(source, source.size, scope)
        elif _is_large(value):
            apart[key] = await written(value, scope)
    return ({key: value for key, value in result.items() if key not in apart} if apart else result), apart


async def written(value: Any, scope: RequestScope) -> WrittenValue:
    """Write a value in turns with other tasks."""
    pieces: list[bytes] = []
    for piece in pieces_of(value):
        pieces.append(piece)
        await anyio.lowlevel.checkpoint()
    return WrittenValue(pieces, sum(map(len, pieces)), scope)


def _is_large(value: Any) -> bool:
    """Return True for a value that takes long to write; most are known to be small by a look at their texts."""
    if isinstance(value, list):
        return len(value) > MANY or any(map(_has_large_text, value))
    return isinstance(value, dict) and (len(value) > MANY or _has_large_text(value))


def _has_large_text(value: Any, depth: int = 2) -> bool:
    if isinstance(value, str):
        return len(value) >= LARGE
    return depth > 0 and isinstance(value, dict) and any(_has_large_text(each, depth - 1) for each in value.values())


class _WrittenResponse(JSONRPCResponse):
    """A message that is written with the JSON of its values in their places."""

    def model_dump_json(self, **_: Any) -> str:
        return b"".join(pieces_of_message(self)).decode()


def pieces_of_message(message: JSONRPCMessage) -> Iterator[bytes]:
    """Return a message as JSON in UTF-8, in pieces of bounded size if it has values that are written already."""
    body = BaseModel.model_dump_json(message, by_alias=True, exclude_unset=True).encode()
    return _spliced(body, _places(body) if _values(message) else [])


def size_of(message: JSONRPCMessage) -> int:
    """Return the length of a message as JSON, in bytes or characters."""
    return len(message.model_dump_json()) + sum(value.size for value in _values(message))


def _values(message: JSONRPCMessage) -> list[WrittenValue]:
    result = message.result if isinstance(message, JSONRPCResponse) else {}
    return [value for value in result.values() if isinstance(value, WrittenValue)]


class WrittenSent(TappedSend):
    """Stream to a client, whose messages write themselves with the JSON of their values."""

    __slots__ = ()

    async def send(self, item: SessionMessage) -> None:
        """Send one message."""
        message = item.message
        if _values(message):
            item = replace(item, message=_WrittenResponse.model_construct(**dict(message)))
        await super().send(item)


class Splicing:
    """The messages of one HTTP response, with the JSON of values in their places."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None

    async def send(self, message: Message) -> None:
        """Send one message. The start of an answer in one piece waits for its body, which its length is promised of."""
        if message["type"] == "http.response.start":
            if _known and any(name == b"content-length" for name, _ in message["headers"]):
                self._start = message
                return
            await self._send(message)
            return
        body: bytes = message.get("body", b"")
        places = _places(body) if _known else []
        if self._start is not None:
            added = sum(written.size - len(place[0]) for place, written in places)
            start, self._start = self._start, None
            await self._send({**start, "headers": _lengthened(start["headers"], added)} if added else start)
            if places:
                # In one go: a connection that only has to be read yet gives way to others.
                message = {**message, "body": b"".join(_spliced(body, places))}
        elif places:
            for piece in _spliced(body, places):
                await self._send({"type": message["type"], "body": piece, "more_body": True})
                await anyio.lowlevel.checkpoint()
            message = {**message, "body": b""}
        await self._send(message)


def _places(body: bytes) -> list[tuple[re.Match[bytes], WrittenValue]]:
    """Return the places of values in a body, each with its value."""
    return [(place, _known[place[0][1:-1].decode()]) for place in _PLACE.finditer(body)]


def _spliced(body: bytes, places: list[tuple[re.Match[bytes], WrittenValue]]) -> Iterator[bytes]:
    at = 0
    for place, written in places:
        yield body[at : place.start()]
        yield from written.pieces
        at = place.end()
    yield body[at:]


def _lengthened(headers: list[tuple[bytes, bytes]], added: int) -> list[tuple[bytes, bytes]]:
    return [
        (name, str(int(value) + added).encode()) if name == b"content-length" else (name, value)
        for name, value in headers
    ]
