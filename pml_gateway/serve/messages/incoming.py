"""Messages of clients: read alike on every transport, or refused with the id of the request.

What no server could be sent is refused before anything is done: values that are not JSON (`NaN`, numbers without end),
half of a surrogate pair, and nesting that no message can carry on.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

from mcp_types import (
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from mcp_types.jsonrpc import INVALID_REQUEST, PARSE_ERROR, ErrorData
from pydantic import ValidationError
from pydantic_core import from_json

from pml_gateway.foreign_json import repaired
from pml_gateway.json_text.pieces import LARGE
from pml_gateway.json_text.reading import MAX_DEPTH, read_json
from pml_gateway.log import get_logger
from pml_gateway.processes.framing import OversizedLine
from pml_gateway.serve.messages.request_ids import TextId, in_use, request_id

logger = get_logger(__name__)

_MEMBERS = 4
"""Of a request with parameters."""

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s"{}\[\]:,]+', re.DOTALL)


class RefusedMessageError(ValueError):
    """A message of a client that is not served. `answer` is what the client gets; None where it expects none."""

    def __init__(self, message: str, answer: JSONRPCError | None) -> None:
        super().__init__(message)
        self.answer = answer


class OpenRequests:
    """The requests of one client or session that have no answer yet, by the type and value of their ids."""

    def __init__(self) -> None:
        self._ids: set[str | int] = set()

    def admit(self, message: JSONRPCMessage) -> JSONRPCMessage:
        """Take note of a message, and keep its id apart from those that the SDK takes for the same.

        Raises:
            RefusedMessageError: a request with this id has no answer yet.
        """
        match message:
            case JSONRPCRequest(id=given):
                if given in self._ids:
                    error = ErrorData.model_validate(in_use(given))
                    raise RefusedMessageError(error.message, JSONRPCError(jsonrpc="2.0", id=given, error=error))
                self._ids.add(given)
                message.id = TextId(given) if isinstance(given, str) else given
            case JSONRPCNotification(method="notifications/cancelled", params={"requestId": str(given)}):
                # The request is answered no more, or just now.
                self._ids.discard(given)
                message.params = {**(message.params or {}), "requestId": TextId(given)}
            case JSONRPCNotification(method="notifications/cancelled", params={"requestId": int(given)}):
                self._ids.discard(given)
            case _:
                pass
        return message

    def answered(self, message: JSONRPCMessage) -> None:
        """Forget the request that a message answers."""
        if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
            self._ids.discard(message.id)


async def incoming(
    lines: AsyncIterable[bytes | OversizedLine],
    requests: OpenRequests,
    refuse: Callable[[JSONRPCError], Awaitable[None]],
) -> AsyncIterator[JSONRPCMessage]:
    """Yield the messages of one client; what is not served is answered by `refuse`, or only logged."""
    async for line in lines:
        if isinstance(line, bytes) and not line.strip():
            continue
        try:
            message = requests.admit(await read_incoming(line))
        except RefusedMessageError as error:
            logger.debug("a message of a client is refused: %s", error)
            if error.answer is not None:
                await refuse(error.answer)
        else:
            yield message


async def read_incoming(content: bytes | OversizedLine) -> JSONRPCMessage:
    """Return the message; an answer that cannot be read becomes an error answer to the same question.

    Raises:
        RefusedMessageError: it is not served.
    """
    head = content.head if isinstance(content, OversizedLine) else content
    try:
        if isinstance(content, OversizedLine):
            raise _UnreadableError(INVALID_REQUEST, f"a message of {content.size} bytes is too large")
        content = content.removeprefix(codecs.BOM_UTF8)
        return _message(_value(content) if len(content) < LARGE else await _large_value(content))
    except _UnreadableError as fault:
        outline = _Outline(head)
        answer = JSONRPCError(jsonrpc="2.0", id=outline.id, error=ErrorData(code=fault.code, message=str(fault)))
        if outline.is_answer:
            return answer
        raise RefusedMessageError(str(fault), None if outline.is_notification else answer) from None


class _UnreadableError(ValueError):
    """Reason to refuse a message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def _value(content: bytes) -> Any:
    try:
        return from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise _why_not_json(content, error) from None


async def _large_value(content: bytes) -> Any:
    try:
        value = await read_json(content, _STRICT)
    except _UnreadableError:
        raise
    except ValueError as error:
        raise _why_not_json(content, error) from None
    if repaired(content) is not content:
        raise _UnreadableError(INVALID_REQUEST, _SURROGATE)
    return value


def _why_not_json(content: bytes, error: ValueError) -> _UnreadableError:
    if repaired(content) is not content:
        return _UnreadableError(INVALID_REQUEST, _SURROGATE)
    if _Outline(content).depth > MAX_DEPTH:
        return _UnreadableError(INVALID_REQUEST, f"the message is nested deeper than {MAX_DEPTH} levels")
    try:
        json.loads(content.decode(), parse_constant=_no_constant)
    except UnicodeDecodeError as fault:
        return _UnreadableError(PARSE_ERROR, f"the message is not UTF-8 (byte {fault.start})")
    except _UnreadableError as fault:
        return fault
    except ValueError as fault:
        error = fault
    return _UnreadableError(PARSE_ERROR, f"the message is not JSON: {error}"[:300])


def _message(value: Any) -> JSONRPCMessage:
    if not isinstance(value, dict):
        reason = "batches are not served" if isinstance(value, list) else f"this is {json.dumps(value)[:40]}"
        raise _UnreadableError(INVALID_REQUEST, f"a message is one JSON object; {reason}")
    if _has_infinity(value):
        raise _UnreadableError(PARSE_ERROR, "the message is not JSON: a number is too large")
    if "id" in value and (given := request_id(value["id"])) is not None:
        value["id"] = given
    elif "id" in value and "method" in value:
        raise _UnreadableError(
            INVALID_REQUEST, f"an id is a text or a whole number, not {json.dumps(value['id'])[:40]}"
        )
    match value:
        case {"jsonrpc": "2.0", "method": str(method), "id": (str() | int()) as given, "params": dict(params)} if (
            len(value) == _MEMBERS
        ):
            # Most messages. The model would check the same again.
            return JSONRPCRequest.model_construct(jsonrpc="2.0", method=method, id=given, params=params)
    try:
        return jsonrpc_message_adapter.validate_python(value, by_name=False)
    except ValidationError as error:
        raise _UnreadableError(
            INVALID_REQUEST, f"this is not a JSON-RPC message: {_what_is_wrong(value, error)}"
        ) from None


_SURROGATE = "the message contains half of a surrogate pair, which is not a character"


def _no_constant(written: str) -> NoReturn:
    raise _UnreadableError(PARSE_ERROR, f"the message is not JSON: {written} is not a JSON value")


_STRICT = json.JSONDecoder(parse_constant=_no_constant)


def _has_infinity(value: object) -> bool:
    """Return True if a number was too large to be read."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, float) and math.isinf(item):
            return True
    return False


def _what_is_wrong(value: dict[str, Any], error: ValidationError) -> str:
    """Return the first problem with what the message comes closest to."""
    if value.get("jsonrpc") != "2.0":
        return '"jsonrpc" is not "2.0"'
    closest = "JSONRPCRequest" if "method" in value else "JSONRPCResponse" if "result" in value else "JSONRPCError"
    problems = error.errors(include_url=False, include_input=False)
    first = next((problem for problem in problems if problem["loc"][:1] == (closest,)), problems[0])
    return f"{'.'.join(str(part) for part in first['loc'][1:])}: {first['msg']}"


class _Outline:
    """The members of a message by name, its id and its depth, also where it is not JSON."""

    def __init__(self, content: bytes) -> None:
        self.id: str | int | None = None
        self.keys: set[str] = set()
        self.depth = 0
        depth, key, before = 0, "", b""
        for found in _TOKEN.finditer(content):
            token = found[0]
            if token in b"{[":
                depth += 1
                self.depth = max(self.depth, depth)
            elif token in b"}]":
                depth -= 1
            elif depth == 1 and token == b":" and before.startswith(b'"'):
                key = before[1:-1].decode(errors="replace")
                self.keys.add(key)
            elif depth == 1 and before == b":" and key == "id":
                self.id = _id(token)
            before = token

    @property
    def is_notification(self) -> bool:
        """Return True for a message that no answer is expected to."""
        return "method" in self.keys and "id" not in self.keys

    @property
    def is_answer(self) -> bool:
        """Return True for the answer to a question of the gateway."""
        return self.id is not None and "method" not in self.keys and not self.keys.isdisjoint({"result", "error"})


def _id(token: bytes) -> str | int | None:
    try:
        found = request_id(json.loads(token))
        str(found).encode()  # Half of a surrogate pair cannot be sent back.
    except ValueError:
        return None
    return found


def as_bytes(message: JSONRPCMessage) -> bytes:
    """Return the message as JSON."""
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode()
