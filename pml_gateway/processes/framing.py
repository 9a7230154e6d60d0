"""Messages on a child's stdout, one per line, with bounded memory; unreadable ones become error answers."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass

from mcp_types import JSONRPCError, JSONRPCMessage
from mcp_types.jsonrpc import PARSE_ERROR, ErrorData

from pml_gateway.json_text.pieces import PIECE
from pml_gateway.json_text.reading import TooDeepError, TooManyListedError, repaired_in_turns
from pml_gateway.processes.messages import SentMessages, found_on, is_utf16, read_message

LOOKED_AT = 512
"""Bytes at each end of a message that are searched for its id: only the result itself is longer."""

_ID = rb'"id"\s*:\s*(?:(?P<number>\d{1,18})|"(?P<text>[^"\\]{1,100})")'
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
_AT_START = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID + rb"\s*,")
_AT_END = re.compile(rb"[,{]\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID + rb"(?:\s*,\s*" + _VERSION + rb")?\s*\}\s*\Z")
_IS_REQUEST = re.compile(rb'"method"\s*:')
_IS_ANSWER = re.compile(rb'"(?:jsonrpc|result|error)"\s*:')
"""Keys that distinguish an answer from a JSON log line with an id."""

SHOWN = 200
"""Maximum bytes of a line that are logged if it is not a message."""


@dataclass(frozen=True, slots=True)
class AnswerFault:
    """The reason why an answer was rejected. It travels as the data of an error, as a type that no peer can send."""

    reason: str
    hint: str = ""
    is_too_large: bool = False


UTF16 = AnswerFault(
    "the server writes UTF-16, and messages are UTF-8",
    hint="have it write UTF-8 (for Python PYTHONUTF8=1 in its env, for PowerShell [Console]::OutputEncoding)",
)


def error_answer(head: bytes, tail: bytes, fault: AnswerFault) -> JSONRPCError | None:
    """Return an error answer for the request whose answer starts with `head` and ends with `tail`; None if unknown."""
    request_id = _request_id(head[:LOOKED_AT], tail[-LOOKED_AT:])
    if request_id is None:
        return None
    error = ErrorData(code=PARSE_ERROR, message=fault.reason, data=fault)
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=error)


def _request_id(head: bytes, tail: bytes) -> int | str | None:
    found = _AT_START.match(head) or _AT_END.search(tail)
    if found is None or not (_IS_ANSWER.search(head) or _IS_ANSWER.search(tail)):
        return None
    if found.re is _AT_START and _IS_REQUEST.match(head, found.end()):
        return None
    if found["number"] is not None:
        return int(found["number"])
    return str(found["text"], "utf-8", "replace")


@dataclass(frozen=True, slots=True)
class OversizedLine:
    """Both ends of an oversized line that was dropped, and its length."""

    head: bytes
    tail: bytes
    size: int


@dataclass(frozen=True, slots=True)
class SkippedLine:
    """A line that is not a message and answers nothing."""

    start: bytes
    reason: str


class Lines:
    """A splitter of a byte stream into lines; of a line longer than `max_bytes`, only both ends are kept."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._buffer = bytearray()
        self._size = 0
        self._head = b""
        self._dropped = 0

    def feed(self, chunk: bytes) -> Iterator[bytes | OversizedLine]:
        """Yield the lines that `chunk` completes."""
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._keep(chunk[start:end])
            yield self._line()
            start = end + 1
        self._keep(chunk[start:])
        if self._size > self.max_bytes or self._dropped:
            self._drop()

    def _keep(self, content: bytes) -> None:
        """Add to the line; a long one is kept in parts, so that it is copied only once."""
        self._buffer += content
        self._size += len(content)
        if len(self._buffer) >= PIECE:
            self._parts.append(bytes(self._buffer))
            self._buffer.clear()

    def _take(self) -> bytes:
        line = b"".join([*self._parts, self._buffer])
        self._parts, self._size = [], 0
        self._buffer.clear()
        return line

    def _line(self) -> bytes | OversizedLine:
        line = self._take()
        if self._dropped or len(line) > self.max_bytes:
            head, size = self._head or line[:LOOKED_AT], self._dropped + len(line)
            self._head, self._dropped = b"", 0
            return OversizedLine(head, line[-LOOKED_AT:], size)
        return line

    def _drop(self) -> None:
        """Drop the line read so far, except for its ends."""
        line = self._take()
        self._head = self._head or line[:LOOKED_AT]
        self._dropped += max(len(line) - LOOKED_AT, 0)
        self._keep(line[-LOOKED_AT:])


async def read_line(
    line: bytes | OversizedLine, max_bytes: int, sent: SentMessages
) -> list[JSONRPCMessage | SkippedLine]:
    """Return the messages and other text on one line; a faulty answer becomes an error answer.

    `sent` are the messages that were sent to the child.
    """
    if isinstance(line, OversizedLine):
        fault = AnswerFault(
            f"a message of {line.size} bytes is larger than {max_bytes} bytes",
            hint="ask for less, or raise upstreams.max_message_bytes",
            is_too_large=True,
        )
        return [_answered(line.head, line.tail, fault)]
    if len(line) <= PIECE and not line.strip(b" \t\r\0"):
        return []
    line = await repaired_in_turns(line.removeprefix(BOM_UTF8))
    if is_utf16(line):
        ascii_only = line.replace(b"\0", b"").removeprefix(b"\xff\xfe").removeprefix(b"\xfe\xff")
        return [_answered(ascii_only, ascii_only, UTF16)]
    try:
        if not line.lstrip().startswith(b"["):
            return [await read_message(line)]
        found = await found_on(line, sent)
    except TooManyListedError as error:
        return [_answered(line, line, AnswerFault(str(error), is_too_large=True))]
    except TooDeepError as error:
        return [_answered(line, line, AnswerFault(f"a message is {error}"))]
    except ValueError:
        found = await found_on(line, sent)
    if not found.messages:
        return [_answered(line, line, AnswerFault("a message is no JSON-RPC"))]
    text = [SkippedLine(found.text.encode()[:SHOWN], "text next to a message")] if found.text else []
    return [*text, *found.messages]


def _answered(head: bytes, tail: bytes, fault: AnswerFault) -> JSONRPCMessage | SkippedLine:
    return error_answer(head, tail, fault) or SkippedLine(head[:SHOWN], fault.reason)
