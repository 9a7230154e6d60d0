"""The events of requests, as one stream for log lines, spans, metrics and records, and their labels in metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pml_gateway.errors import ErrorCode, GatewayError, UnrecordedError
from pml_gateway.log import get_logger

logger = get_logger(__name__)

OK = "OK"
TOOL_ERROR = "TOOL_ERROR"
"""The tool itself answered with `isError`."""

INPUT_REQUIRED = "INPUT_REQUIRED"
"""The upstream asked a question before it continues."""

PROTOCOL_ERROR = "PROTOCOL_ERROR"
"""The answer is a JSON-RPC error instead of a result."""

OUTCOMES = frozenset({OK, TOOL_ERROR, INPUT_REQUIRED, PROTOCOL_ERROR, *(code.value for code in ErrorCode)})

EventT = TypeVar("EventT")

OTHER = "other"

METHODS = frozenset(
    {
        "completion/complete",
        "initialize",
        "logging/setLevel",
        "ping",
        "prompts/get",
        "prompts/list",
        "resources/list",
        "resources/read",
        "resources/subscribe",
        "resources/templates/list",
        "resources/unsubscribe",
        "server/discover",
        "subscriptions/listen",
        "tools/call",
        "tools/list",
    }
)


def outcome_of(result: object) -> str:
    """Return the outcome of an answer."""
    if not isinstance(result, dict):
        return OK
    if result.get("isError") is True:
        return TOOL_ERROR
    return INPUT_REQUIRED if result.get("resultType") == "input_required" else OK


def code_of(error: BaseException) -> str:
    """Return the outcome of a step that ended with an exception; anything but an `Exception` is a cancellation."""
    if isinstance(error, GatewayError):
        return error.code.value
    return (ErrorCode.INTERNAL if isinstance(error, Exception) else ErrorCode.CANCELLED).value


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """The end of a client's request, with an answer or an error."""

    method: str
    client: str
    code: str
    seconds: float


@dataclass(frozen=True, slots=True)
class UpstreamAnswered:
    """The end of a request to an upstream; `target` is the tool or prompt in it."""

    upstream_id: str
    method: str
    target: str
    code: str
    seconds: float


@dataclass(frozen=True, slots=True)
class IndexSearched:
    """A query of the search index."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ListsCounted:
    """A list with this many tools and tokens, given to `count` clients; it saved each of them `saved` tokens."""

    mode: str
    count: int
    tools: int
    tokens: int
    saved: int


@dataclass(frozen=True, slots=True)
class DefinitionsDecided:
    """The decision about definitions that a server listed, or about which its owner decided.

    `outcome` is accepted, varies (one more variant of a definition that differs on every connection), held_back (the
    accepted text stays), quarantined, new_server, flagged (accepted with a new server, and risky), approved or
    rejected; `definitions` has kind, own name and hash of each, `classes` the findings of the lint.
    """

    upstream_id: str
    outcome: str
    definitions: tuple[tuple[str, str, str], ...]
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StorageAsked:
    """The end of a command to the Redis server of the gateways; `outcome` is ok, failed or not_sent."""

    outcome: str
    seconds: float


class Events:
    """A dispatcher that delivers each event to the subscribers of its class, at once and in order."""

    def __init__(self) -> None:
        self._subscribers: dict[type, list[tuple[Callable[[Any], None], bool]]] = {}

    def subscribe(self, kind: type[EventT], take: Callable[[EventT], None], *, is_required: bool = False) -> None:
        """Call `take` with every event of a class; it must be fast, since requests wait for it.

        A failure of a required subscriber, such as an audit, refuses the request that the event is about.
        """
        self._subscribers.setdefault(kind, []).append((take, is_required))

    def reach(self, kind: type) -> bool:
        """Return True if there are subscribers; if not, an event need not be created."""
        return kind in self._subscribers

    def publish(self, event: object) -> None:
        """Call the subscribers; an error in one does not end the others, nor the request unless it is required.

        Raises:
            UnrecordedError: a required subscriber failed.
        """
        failed = None
        for take, is_required in self._subscribers.get(type(event), ()):
            try:
                take(event)
            # An observer must not break a request, and the error's text may quote request data.
            except Exception as fault:
                shown = logger.isEnabledFor(logging.DEBUG)
                logger.error("%s in a subscriber of %s", type(fault).__name__, type(event).__name__, exc_info=shown)
                failed = fault if is_required else failed
        if failed is not None:
            raise UnrecordedError from failed


def known_method(method: str) -> str:
    """Return a method of the protocol, or `other`; clients can send any text as a method."""
    return method if method in METHODS else OTHER


def known_outcome(code: str) -> str:
    """Return one of the published outcomes."""
    return code if code in OUTCOMES else PROTOCOL_ERROR


class BoundedTools:
    """The tools with labels of their own: the first ones called, up to a limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[tuple[str, str]] = set()

    def label(self, upstream: str, tool: str) -> str:
        """Return the tool's name, or `other` once there are too many."""
        if not tool or (upstream, tool) in self._known:
            return tool
        if len(self._known) >= self._limit:
            return OTHER
        self._known.add((upstream, tool))
        return tool
