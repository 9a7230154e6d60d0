"""JSON-RPC messages of servers, parsed despite the faults that real servers have.

A valid message is parsed by the SDK's model at once. Only if that fails, the rest of this module tries to repair it:
another encoding, ids written as `1.0`, a result that is not an object, several messages on one line, or text printed
before a message.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
from mcp_types import JSONRPCMessage, JSONRPCRequest, RequestId, jsonrpc_message_adapter
from mcp_types.jsonrpc import INTERNAL_ERROR

from pml_gateway.foreign_json import text_of
from pml_gateway.json_text.pieces import LARGE
from pml_gateway.json_text.reading import MAX_DEPTH, TooDeepError, TooManyListedError, read_json
from pml_gateway.types import JsonObject

MAX_TRIED = 32
"""Maximum positions on one line at which a message is searched for: each requires parsing the rest of the line."""

MAX_REMEMBERED = 512
"""Maximum messages to a server that are remembered, to recognize them if it logs them to stdout."""

_AROUND = " \t\r\n\0\ufeff"
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
_START = re.compile(r'\{\s*"(?:jsonrpc|id|result|error|method|params)"\s*:')
_NUL_SHARE = 4
"""The reciprocal of the minimum share of zero bytes in UTF-16, where about every second byte is 0."""

_DECODER = json.JSONDecoder(strict=False)


async def read_message(content: bytes | str, asked: RequestId | None = None) -> JSONRPCMessage:
    """Parse a JSON-RPC message of a server, with tolerance for faults.

    Args:
        content: the message.
        asked: the request that it answers, if the transport identifies it; used if the message has no id.

    Raises:
        TooDeepError, TooManyListedError: it is nested too deeply, or lists more than any server has.
        ValueError: it is not a message.
    """
    if len(content) < LARGE:
        with suppress(ValueError):
            return jsonrpc_message_adapter.validate_json(content, by_name=False)
    message = understood(answer_in(await read_value(content)))
    if message is None:
        raise ValueError("it is no JSON-RPC message")
    if asked is not None and message.get("id") is None and "method" not in message:
        message["id"] = asked
    return jsonrpc_message_adapter.validate_python(message, by_name=False)


async def read_value(content: bytes | str) -> Any:
    """Parse a server's JSON; in a short text, control characters inside strings are accepted.

    Raises:
        TooDeepError, TooManyListedError: it is nested too deeply, or lists more than any server has.
        ValueError: it is not JSON.
    """
    if isinstance(content, bytes) and len(content) >= LARGE:
        return await read_json(content, errors="replace")
    text = content.removeprefix("\ufeff") if isinstance(content, str) else text_of(content)
    try:
        return await read_json(text)
    except (TooDeepError, TooManyListedError):
        raise
    except ValueError:
        if len(text) >= LARGE or text.count("{") + text.count("[") > MAX_DEPTH:
            raise
        return _DECODER.decode(text)


def answer_in(value: Any) -> Any:
    """Return the only answer in a batch; any other value unchanged."""
    if not isinstance(value, list):
        return value
    answers = [each for each in value if isinstance(each, dict) and ("result" in each or "error" in each)]
    return answers[0] if len(answers) == 1 else value


def understood(value: Any) -> JsonObject | None:
    """Return the JSON-RPC message that a value is meant to be; None if it is not one."""
    if not isinstance(value, dict):
        return None
    message: JsonObject = {**value, "jsonrpc": "2.0"}
    number = value.get("id")
    if isinstance(number, float) and number.is_integer():
        message["id"] = int(number)
    if isinstance(value.get("method"), str):
        if not value.get("params") and value.get("params") != {}:
            message.pop("params", None)
        return message
    error = value.get("error")
    if error is not None and not isinstance(value.get("result"), dict):
        message.pop("result", None)
        return {**message, "id": message.get("id"), "error": _error(error)}
    if "result" not in value:
        return None
    message.pop("error", None)
    result = value["result"]
    if not isinstance(result, dict):
        # The field of tool results before content blocks existed, where consumers look for it.
        message["result"] = {} if result is None else {"toolResult": result}
    return message


def _error(error: Any) -> JsonObject:
    if not isinstance(error, dict):
        return {"code": INTERNAL_ERROR, "message": error if isinstance(error, str) else json.dumps(error)}
    code, message = error.get("code"), error.get("message")
    return {
        **error,
        "code": code if isinstance(code, int) else INTERNAL_ERROR,
        "message": message if isinstance(message, str) else json.dumps(message or error),
    }


class SentMessages:
    """The latest messages to a server, to recognize them if the server logs them to stdout."""

    def __init__(self) -> None:
        self._known: deque[tuple[object, object]] = deque(maxlen=MAX_REMEMBERED)

    def note(self, message: JSONRPCMessage) -> None:
        """Remember a message."""
        self._known.append(_identity(message))

    def __contains__(self, message: JSONRPCMessage) -> bool:
        return _identity(message) in self._known


def _identity(message: JSONRPCMessage) -> tuple[object, object]:
    return getattr(message, "id", None), getattr(message, "method", None)


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """The content of one line that is more than a message: messages, and other text."""

    messages: tuple[JSONRPCMessage, ...] = ()
    text: str = ""


async def found_on(line: bytes, sent: SentMessages) -> FoundMessages:
    """Return the messages on a line that could not be parsed as one.

    After other text, only answers and notifications are accepted, and only those that end the line and were not sent to
    the server before: logs of a server quote messages in the middle of a line, and repeat its input.
    """
    text = line.decode("utf-8", "replace")
    pieces = _pieces(text) if len(text) < LARGE else await anyio.to_thread.run_sync(_pieces, text)
    messages: list[JSONRPCMessage] = []
    rest = ""
    for before, value in pieces:
        taken = [each for each in map(_valid, value if isinstance(value, list) else [value]) if each is not None]
        is_glued = bool(rest or before)
        rest = rest or before
        if is_glued:
            taken = [each for each in taken if not isinstance(each, JSONRPCRequest) and each not in sent]
        messages += taken
        if not taken and value is not None:
            rest = rest or json.dumps(value)
    return FoundMessages(tuple(messages), rest)


def is_utf16(line: bytes) -> bool:
    """Return True if a line is UTF-16 text, as written by Windows programs."""
    start = line[:LARGE]
    return start.startswith((b"\xff\xfe", b"\xfe\xff")) or start.count(0) * _NUL_SHARE > len(start)


def _valid(value: Any) -> JSONRPCMessage | None:
    message = understood(value)
    if message is None:
        return None
    try:
        return jsonrpc_message_adapter.validate_python(message, by_name=False)
    except ValueError:
        return None


def _pieces(text: str) -> list[tuple[str, Any]]:
    """Return the JSON values on a line, each with the text before it; text at the end comes with None.

    A value that is preceded and followed by other text is part of that text.
    """
    return list(_cut(_COLOUR.sub("", text).strip(_AROUND)))


def _cut(text: str) -> Iterator[tuple[str, Any]]:
    at = shown = 0
    quoted: list[tuple[str, Any]] = []
    for _ in range(MAX_TRIED):
        if text[at : at + 1] not in ("{", "["):
            found = _START.search(text, at)
            if found is None:
                break
            at = found.start()
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        before = text[shown:at].strip(_AROUND)
        quoted.append((before, value))
        while end < len(text) and text[end] in _AROUND:
            end += 1
        at = shown = end
        if at == len(text):
            break
    rest = text[shown:].strip(_AROUND)
    while rest and quoted and quoted[-1][0]:
        before, value = quoted.pop()
        rest = f"{before} {json.dumps(value)} {rest}"
    yield from quoted
    if rest:
        yield rest, None
