"""What happens to requests, as one stream of events: log lines, spans, metrics and recorded usage subscribe to it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pml_gateway.errors import ErrorCode, GatewayError
from pml_gateway.log import get_logger

logger = get_logger(__name__)

OK = "OK"
TOOL_ERROR = "TOOL_ERROR"
"""The tool itself answered with `isError`."""

INPUT_REQUIRED = "INPUT_REQUIRED"
"""The upstream asked something before it goes on."""

PROTOCOL_ERROR = "PROTOCOL_ERROR"
"""A JSON-RPC error instead of a result."""

OUTCOMES = frozenset({OK, TOOL_ERROR, INPUT_REQUIRED, PROTOCOL_ERROR, *(code.value for code in ErrorCode)})


def outcome_of(result: object) -> str:
    """How an answer counts."""
    if not isinstance(result, dict):
        return OK
    if result.get("isError") is True:
        return TOOL_ERROR
    return INPUT_REQUIRED if result.get("resultType") == "input_required" else OK


def code_of(error: BaseException) -> str:
    """How a step counts that ended with an exception; what is no error is a cancellation."""
    if isinstance(error, GatewayError):
        return error.code.value
    return (ErrorCode.INTERNAL if isinstance(error, Exception) else ErrorCode.CANCELLED).value


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """A client's request was answered, or failed."""

    method: str
    client: str
    code: str
    seconds: float


@dataclass(frozen=True, slots=True)
class UpstreamAnswered:
    """An upstream answered a request, or did not; `target` is the tool or prompt it names."""

    upstream_id: str
    method: str
    target: str
    code: str
    seconds: float


@dataclass(frozen=True, slots=True)
class IndexSearched:
    """The search index was asked."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ListsCounted:
    """`count` clients were given a list of that many tools and tokens, which spared each of them `saved` tokens."""

    mode: str
    count: int
    tools: int
    tokens: int
    saved: int


@dataclass(frozen=True, slots=True)
class DefinitionsDecided:
    """What became of definitions that a server listed, or of those that its owner decided about.

    `outcome` is accepted, varies (a further form of what differs at every connection), held_back (the accepted text
    stays), quarantined, new_server, flagged (accepted with a new server, and risky), approved or rejected;
    `definitions` has kind, own name and hash of each, `classes` what the lint found.
    """

    upstream_id: str
    outcome: str
    definitions: tuple[tuple[str, str, str], ...]
    classes: tuple[str, ...] = ()


EventT = TypeVar("EventT")


class Events:
    """Hands each event to the subscribers of its class, at once and in their order."""

    def __init__(self) -> None:
        self._subscribers: dict[type, list[Callable[[Any], None]]] = {}

    def subscribe(self, kind: type[EventT], take: Callable[[EventT], None]) -> None:
        """Have `take` called with every event of a class; it must be quick, since requests wait for it."""
        self._subscribers.setdefault(kind, []).append(take)

    def reach(self, kind: type) -> bool:
        """Whether anybody subscribed; where nobody did, an event need not be made."""
        return kind in self._subscribers

    def publish(self, event: object) -> None:
        """Tell the subscribers; a fault of one ends neither the request nor the others."""
        for take in self._subscribers.get(type(event), ()):
            try:
                take(event)
            # What watches a request must not break it, and the fault's text may quote what was sent.
            except Exception as fault:
                shown = logger.isEnabledFor(logging.DEBUG)
                logger.error("%s in a subscriber of %s", type(fault).__name__, type(event).__name__, exc_info=shown)
