"""Messages on a child's stdout, one a line, with bounded memory; what cannot be read becomes an error answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCMessage, jsonrpc_message_adapter
from mcp_types.jsonrpc import PARSE_ERROR, ErrorData

from pml_gateway.foreign_json import LARGE, TooManyListedError, read_json, repaired

LOOKED_AT = 512
"""Bytes at each end of a message among which its id is looked for: nothing but the result itself is longer."""

_ID = rb'"id"\s*:\s*(?:(?P<number>\d{1,18})|"(?P<text>[^"\\]{1,100})")'
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
_AT_START = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID + rb"\s*,")
_AT_END = re.compile(rb"[,{]\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID + rb"(?:\s*,\s*" + _VERSION + rb")?\s*\}\s*\Z")
_IS_REQUEST = re.compile(rb'"method"\s*:')


@dataclass(frozen=True, slots=True)
class AnswerFault:
    """Why an answer was not taken. It travels as the data of an error, where no peer can put such an object."""

    reason: str
    hint: str = ""


def error_answer(head: bytes, tail: bytes, fault: AnswerFault) -> JSONRPCError | None:
    """The error that answers the request whose answer starts with `head` and ends with `tail`, if that can be told."""
    request_id = _request_id(head[:LOOKED_AT], tail[-LOOKED_AT:])
    if request_id is None:
        return None
    error = ErrorData(code=PARSE_ERROR, message=fault.reason, data=fault)
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=error)


def _request_id(head: bytes, tail: bytes) -> int | str | None:
    found = _AT_START.match(head) or _AT_END.search(tail)
    if found is None or (found.re is _AT_START and _IS_REQUEST.match(head, found.end())):
        return None
    if found["number"] is not None:
        return int(found["number"])
    return str(found["text"], "utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Oversized:
    """Both ends of a line that was not kept, and how long it was."""

    head: bytes
    tail: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """A line that is no message and answers nothing."""

    start: bytes
    reason: str


class Lines:
    """Cuts a stream of bytes into lines; of one longer than `max_bytes`, both ends are kept."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._buffer = bytearray()
        self._head = b""
        self._dropped = 0

    def feed(self, chunk: bytes) -> Iterator[bytes | Oversized]:
        """The lines that `chunk` completes."""
        searched = len(self._buffer)
        self._buffer += chunk
        start = 0
        while (end := self._buffer.find(b"\n", max(searched, start))) >= 0:
            yield self._line(bytes(self._buffer[start:end]))
            start = end + 1
        del self._buffer[:start]
        if len(self._buffer) > self.max_bytes or self._dropped:
            self._drop()

    def _line(self, line: bytes) -> bytes | Oversized:
        if self._dropped or len(line) > self.max_bytes:
            head, size = self._head or line[:LOOKED_AT], self._dropped + len(line)
            self._head, self._dropped = b"", 0
            return Oversized(head, line[-LOOKED_AT:], size)
        return line

    def _drop(self) -> None:
        """Forget the line so far but for its ends."""
        self._head = self._head or bytes(self._buffer[:LOOKED_AT])
        self._dropped += max(len(self._buffer) - LOOKED_AT, 0)
        self._buffer = self._buffer[-LOOKED_AT:]


async def read_line(line: bytes | Oversized, max_bytes: int) -> SessionMessage | Skipped | None:
    """The message of one line; a faulty answer becomes an error answer, and an empty line nothing."""
    if isinstance(line, Oversized):
        fault = AnswerFault(
            f"a message of {line.size} bytes is larger than {max_bytes} bytes",
            hint="ask for less, or raise upstreams.max_message_bytes",
        )
        return _answered(line.head, line.tail, fault)
    if not line.strip():
        return None
    line = repaired(line)
    try:
        return SessionMessage(await read_message(line))
    except TooManyListedError as error:
        return _answered(line, line, AnswerFault(str(error)))
    except ValueError:
        return _answered(line, line, AnswerFault(_reason(line)))


async def read_message(content: bytes | str) -> JSONRPCMessage:
    """A JSON-RPC message, which is read in turns where it is large.

    Raises:
        ValueError: it is none, or lists more than any server has.
    """
    if len(content) < LARGE:
        return jsonrpc_message_adapter.validate_json(content, by_name=False)
    return jsonrpc_message_adapter.validate_python(await read_json(content), by_name=False)


def _answered(head: bytes, tail: bytes, fault: AnswerFault) -> SessionMessage | Skipped:
    answer = error_answer(head, tail, fault)
    return SessionMessage(answer) if answer is not None else Skipped(head[:200], fault.reason)


def _reason(line: bytes) -> str:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return f"a message is not UTF-8 (byte {error.start})"
    return "a message is no JSON-RPC"
