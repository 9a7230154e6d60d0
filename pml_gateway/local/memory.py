"""The memory of a bridge: the session state and requests needed to continue with another gateway after a loss."""

from __future__ import annotations

import json
import re

from pml_gateway.serve.messages.request_ids import in_use, request_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TypeGuard

    Id = str | int

INITIALIZE = "initialize"
INITIALIZED = "notifications/initialized"
CANCELLED = "notifications/cancelled"
SET_LEVEL = "logging/setLevel"
SUBSCRIBE = "resources/subscribe"
UNSUBSCRIBE = "resources/unsubscribe"
LISTEN = "subscriptions/listen"
"""A request that stays open: it is sent to each new gateway, and the client does not wait for its answer."""

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
"""The gateway's first message about a `LISTEN` request."""

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
"""The metadata key of that message that holds the request id."""

CALL = "tools/call"

OWN = "pml-bridge-"
"""Prefix of the ids of the bridge's own requests, whose answers the client never sees."""

MAX_LOSSES = 5
"""Maximum number of gateways lost during one request, as the request itself may crash them."""

MAX_KEPT = 64 * 1024 * 1024
"""Maximum bytes of requests in flight that are kept to be sent again; others get an error after a loss."""

INTERNAL_ERROR = -32603

STATE_UNKNOWN = b'"invalid_request_state"'
"""The text in the error of a gateway that does not know the question that a request answers."""

LOST_WITH_IT = (
    "results that it kept in memory (references), and runs that waited for an answer, are lost with it: "
    "make the calls again that they came from"
)

UNKNOWN = f"whether it was executed, or a part of it, is unknown: look before you repeat it; {LOST_WITH_IT}"

_STRING_OR_NUMBER = rb'("(?:[^"\\]|\\.)*"|-?\d+)'
_BEGINNING = re.compile(rb'\{"jsonrpc":\s?"2\.0",\s?"id":\s?' + _STRING_OR_NUMBER + rb',\s?"(result|error|method)":')
"""The usual beginning of the gateway's answers and questions; any other line is parsed."""

_NOTIFICATION = re.compile(rb'\{"jsonrpc":\s?"2\.0",\s?"method":\s?"notifications/(?!cancelled|subscriptions)')


class InUseError(Exception):
    """A request with the id of another open one; `answer` is the line with the error for the client."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(answer)
        self.answer = answer


class BridgedRequest:
    """A request of the client that has no answer yet, and its progress."""

    __slots__ = (
        "goes_on",
        "id",
        "is_acknowledged",
        "is_done",
        "is_repeatable",
        "is_sent",
        "line",
        "losses",
        "method",
    )

    def __init__(self, request_id: Id, method: str, line: bytes | None, *, goes_on: bool) -> None:
        self.id = request_id
        self.method = method
        self.line = line
        """The line as received; None if it was too large to be kept."""
        self.goes_on = goes_on
        """True if it continues an earlier request by answering its question; only one gateway has the state of that."""
        self.is_sent = goes_on
        """True if any gateway has sent the request, or a part of it, to a server."""
        self.is_repeatable = not goes_on
        self.is_done = False
        """True if a gateway had the complete answer."""
        self.is_acknowledged = False
        """True if the client has received the acknowledgement of its subscription."""
        self.losses = 0

    @property
    def executed(self) -> str:
        """Return "yes", "no" or "unknown", as the gateway's own errors say it."""
        if self.is_done:
            return "yes" if self.is_sent else "no"
        return "unknown" if self.is_sent else "no"

    @property
    def may_be_repeated(self) -> bool:
        """Return True if another gateway can handle the request without the risk of doing anything twice."""
        if self.line is None or self.losses >= MAX_LOSSES:
            return False
        return self.method == LISTEN or not self.is_sent or self.is_repeatable


class BridgedSession:
    """One client's session across gateways: the requests that set it up, and the requests in flight."""

    def __init__(self) -> None:
        self.state: object = None
        """The state that the gateway has sent for the bridge to keep; each new gateway gets it back."""
        self._generation = 1
        self._initialize: bytes | None = None
        self._initialized: bytes | None = None
        self._level: bytes | None = None
        self._subscriptions: dict[str, bytes] = {}
        self._requests: dict[Id, BridgedRequest] = {}
        self._kept = 0
        self._questions: dict[Id, bytes] = {}
        """Open questions of the gateway: the id that the client knows, and the gateway's own id, as JSON."""
        self._numbers = 0
        self._awaited: str | None = None

    @property
    def is_restoring(self) -> bool:
        """Return True until the new gateway has answered the repeated initialization."""
        return self._awaited is not None

    @property
    def waits(self) -> bool:
        """Return True if the client waits for an answer."""
        return any(request.method != LISTEN for request in self._requests.values())

    # What passes

    def from_client(self, line: bytes) -> tuple[bytes | None, bool]:
        """Record a line of the client; return the line to pass on, None for nothing, and True if it is a request.

        Raises:
            InUseError: the line has the id of a request that has no answer yet.
        """
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return line, False
        if not isinstance(message, dict):
            return line, False
        method, message_id = message.get("method"), request_id(message.get("id"))
        if isinstance(method, str):
            if message_id is None:
                self._note(method, message, line)
                return line, False
            if message_id in self._requests:
                raise InUseError(_line({"jsonrpc": "2.0", "id": message_id, "error": in_use(message_id)}))
            params = message.get("params")
            goes_on = isinstance(params, dict) and params.get("requestState") is not None
            self._remember(BridgedRequest(message_id, method, line, goes_on=goes_on))
            return line, True
        if message_id is not None:
            return self._client_answer(message_id, message, line), False
        return line, False

    def from_gateway(self, line: bytes) -> bytes | None:
        """Record a line of the gateway, and return the line to pass on; None for nothing."""
        begins = _BEGINNING.match(line)
        if begins is not None:
            kind, written = begins[2], begins[1]
            if kind == b"method":
                shown = self._question(json.loads(written), written)
                return b"".join((line[: begins.start(1)], shown, line[begins.end(1) :]))
            return self._gateway_answer(json.loads(written), line, is_result=kind == b"result")
        if _NOTIFICATION.match(line):
            return line
        return self._unusual(line)

    def notice(self, said: dict[str, Any]) -> None:
        """Record a notice from the gateway: the progress of a request, or state to keep."""
        if "state" in said:
            self.state = said["state"]
        for key in ("sent", "done"):
            request = self._requests.get(said[key]) if _is_id(said.get(key)) else None
            if request is not None:
                request.is_sent = True
                request.is_done = key == "done"
                # A plan of several calls may be repeated if each of them may.
                request.is_repeatable = request.is_repeatable and bool(said.get("repeatable", True))

    # A gateway that is lost, and the next one

    def lost(self, unfinished: bytes) -> Iterator[bytes]:
        """Record the loss of the gateway; yield the lines for the client: withdrawn questions, and failed requests.

        Args:
            unfinished: the received part of an incomplete last line.
        """
        begins = _BEGINNING.match(unfinished)
        if begins is not None and begins[2] == b"result":
            request = self._requests.get(json.loads(begins[1]))
            if request is not None:
                request.is_done = True
        for question in self._questions:
            withdrawn = {"requestId": question, "reason": "the gateway that asked was lost"}
            yield _line({"jsonrpc": "2.0", "method": CANCELLED, "params": withdrawn})
        self._questions.clear()
        self._generation += 1
        self._awaited = None
        for request in [*self._requests.values()]:
            request.losses += 1
            if not request.may_be_repeated:
                self._forget(request.id)
                yield self._error(request, *_lost_words(request))

    def give_up(self, message: str, hint: str, *, is_retryable: bool) -> Iterator[bytes]:
        """Yield error answers to all requests in flight, if no gateway can be started."""
        for request in [*self._requests.values()]:
            self._forget(request.id)
            yield self._error(request, message, hint, is_retryable=is_retryable)

    def restore(self) -> Iterator[bytes]:
        """Yield the first lines for a new gateway: the initialization, or everything if the session has none.

        `rest` yields the other lines, once the gateway has answered the initialization.
        """
        if self._initialize is None:
            yield from self.rest()
            return
        self._awaited = self._own_id()
        yield _line({**json.loads(self._initialize), "id": self._awaited})

    def rest(self) -> Iterator[bytes]:
        """Yield the lines that restore the session, then the requests that have no answer yet."""
        if self._initialized is not None:
            yield self._initialized
        for line in (self._level, *self._subscriptions.values()):
            if line is not None:
                yield _line({**json.loads(line), "id": self._own_id()})
        for request in self._requests.values():
            if request.line is not None:
                yield request.line

    # Details

    def _own_id(self) -> str:
        self._numbers += 1
        return f"{OWN}{self._generation}-{self._numbers}"

    def _remember(self, request: BridgedRequest) -> None:
        self._forget(request.id)
        size = len(request.line or b"")
        if self._kept + size > MAX_KEPT:
            request.line = None
        else:
            self._kept += size
        self._requests[request.id] = request

    def _forget(self, request_id: Id) -> BridgedRequest | None:
        request = self._requests.pop(request_id, None)
        if request is not None and request.line is not None:
            self._kept -= len(request.line)
        return request

    def _note(self, method: str, message: dict[str, Any], line: bytes) -> None:
        if method == INITIALIZED:
            self._initialized = line
        elif method == CANCELLED:
            params = message.get("params")
            cancelled = params.get("requestId") if isinstance(params, dict) else None
            if _is_id(cancelled):
                self._forget(cancelled)

    def _client_answer(self, question: Id, message: dict[str, Any], line: bytes) -> bytes | None:
        written = self._questions.pop(question, None)
        if self._generation == 1:
            return line
        if written is None:
            # The gateway that asked is lost.
            return None
        shown = json.dumps(question).encode()
        if line.count(shown) == 1:
            return line.replace(shown, written)
        return _line({**message, "id": json.loads(written)})

    def _question(self, question: Id, written: bytes) -> bytes:
        """Return the id that the client sees: unchanged for the first gateway, with the generation for others."""
        if self._generation == 1:
            self._questions[question] = written
            return written
        self._numbers += 1
        shown = f"pml-{self._generation}-{self._numbers}"
        self._questions[shown] = written
        return json.dumps(shown).encode()

    def _gateway_answer(self, request_id: Id, line: bytes, *, is_result: bool) -> bytes | None:
        request = self._forget(request_id)
        if request is None and isinstance(request_id, str) and request_id.startswith(OWN):
            if request_id == self._awaited:
                self._awaited = None
            return None
        if request is None:
            return line
        if is_result and request.line is not None:
            self._grant(request.method, request.line)
        if not is_result and request.goes_on and self._generation > 1 and STATE_UNKNOWN in line:
            return self._error(request, "the gateway that asked this was lost, and the call with it", UNKNOWN)
        return line

    def _grant(self, method: str, line: bytes) -> None:
        if method == INITIALIZE:
            self._initialize = line
        elif method == SET_LEVEL:
            self._level = line
        elif method == SUBSCRIBE:
            self._subscriptions[_uri(line)] = line
        elif method == UNSUBSCRIBE:
            self._subscriptions.pop(_uri(line), None)

    def _unusual(self, line: bytes) -> bytes | None:
        """Handle a line of the gateway that must be parsed to know its kind."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return line
        if not isinstance(message, dict):
            return line
        message_id = message.get("id")
        if "method" not in message:
            return self._gateway_answer(message_id, line, is_result="result" in message) if _is_id(message_id) else line
        if _is_id(message_id):
            shown = self._question(message_id, json.dumps(message_id).encode())
            return line if self._generation == 1 else _line({**message, "id": json.loads(shown)})
        if message["method"] == CANCELLED:
            return self._withdrawn(message, line)
        return None if message["method"] == ACKNOWLEDGED and self._is_acknowledged_again(message) else line

    def _is_acknowledged_again(self, message: dict[str, Any]) -> bool:
        """Return True if the client has received this acknowledgement before, for the same request."""
        params = message.get("params")
        meta = params.get("_meta") if isinstance(params, dict) else None
        request_id = meta.get(SUBSCRIPTION) if isinstance(meta, dict) else None
        request = self._requests.get(request_id) if _is_id(request_id) else None
        if request is None:
            return False
        was_acknowledged, request.is_acknowledged = request.is_acknowledged, True
        return was_acknowledged

    def _withdrawn(self, message: dict[str, Any], line: bytes) -> bytes | None:
        params = message.get("params")
        asked = params.get("requestId") if isinstance(params, dict) else None
        shown = next((shown for shown, written in self._questions.items() if json.loads(written) == asked), None)
        if shown is None:
            return line if self._generation == 1 else None
        del self._questions[shown]
        return line if shown == asked else _line({**message, "params": {**message["params"], "requestId": shown}})

    def _error(self, request: BridgedRequest, message: str, hint: str, *, is_retryable: bool = True) -> bytes:
        """Return an error answer to a request, in the same form as the gateway's own errors."""
        error = {
            # Errors that a retry cannot fix are in the configuration or the options.
            "code": "INTERNAL" if is_retryable else "INVALID_INPUT",
            "message": message,
            "retryable": is_retryable and request.executed == "no",
            "hint": hint,
            "details": {"executed": request.executed},
        }
        if request.method != CALL:
            data = {key: value for key, value in error.items() if key != "message"}
            in_words = f"{message} ({hint})" if hint else message
            shown = {"code": INTERNAL_ERROR, "message": in_words, "data": data}
            return _line({"jsonrpc": "2.0", "id": request.id, "error": shown})
        text = json.dumps({"error": error}, ensure_ascii=False, separators=(",", ":"))
        result = {"content": [{"type": "text", "text": text}], "structuredContent": {"error": error}, "isError": True}
        if self._initialize is None:
            # A session without a handshake uses protocol 2026-07-28.
            result["resultType"] = "complete"
        return _line({"jsonrpc": "2.0", "id": request.id, "result": result})


def _lost_words(request: BridgedRequest) -> tuple[str, str]:
    """Return the message and the hint for a request that was in flight."""
    if request.executed == "yes":
        return "the gateway was lost with the answer to this call", f"it was executed; {LOST_WITH_IT}"
    if request.executed == "unknown":
        return "the gateway was lost after it had sent this, or a part of it, to a server", UNKNOWN
    if request.line is None:
        size = f"{MAX_KEPT // 1024 // 1024} MiB"
        return (
            "the gateway was lost before it had sent this",
            f"more than {size} were in flight to repeat; send it again",
        )
    message = f"the gateway was lost {MAX_LOSSES} times during this request"
    return message, "it may be the request that ends it: `pml upstreams logs` and the gateway's log say more"


def _is_id(value: object) -> TypeGuard[Id]:
    return request_id(value) is not None


def _uri(line: bytes) -> str:
    return str(json.loads(line).get("params", {}).get("uri"))


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
