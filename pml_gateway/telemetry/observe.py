"""Observation of steps of a request wherever they happen: an upstream's answer, a search of the index."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from pml_gateway.errors import ErrorCode
from pml_gateway.log import get_logger
from pml_gateway.telemetry.events import (
    DefinitionsDecided,
    Events,
    IndexSearched,
    UpstreamAnswered,
    code_of,
    outcome_of,
)
from pml_gateway.telemetry.trace import CURRENT_TRACE
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

_WORTH_A_WARNING = frozenset(
    {
        ErrorCode.UPSTREAM_UNAVAILABLE.value,
        ErrorCode.UPSTREAM_AUTH.value,
        ErrorCode.UPSTREAM_ERROR.value,
        ErrorCode.TIMEOUT.value,
        ErrorCode.BUSY.value,
        ErrorCode.INTERNAL.value,
    }
)

MAX_NAMED = 5
"""Maximum number of definitions named in one line."""

_SAID = {
    "accepted": "new or changed, and served; what changed: pml trust",
    "varies": "changed again; further changes are logged only if they are held back",
    "held_back": "an attack in a change; the texts accepted before stay until you decide: pml trust",
    "quarantined": "not served until you decide: pml trust",
    "new_server": "accepted with a new server",
    "flagged": "accepted, and may be an attack: pml trust",
    "approved": "approved",
    "rejected": "rejected",
}

_WAITING, _BY_THE_OWNER = ("held_back", "quarantined"), ("approved", "rejected")

_OVERTAKEN = {**dict.fromkeys(_WAITING, _BY_THE_OWNER), **dict.fromkeys(_BY_THE_OWNER, _WAITING)}
"""The outcomes that may be logged again after a given outcome."""

_FOR_THE_OWNER = frozenset({"held_back", "quarantined", "flagged"})
P = ParamSpec("P")


def logged_events(decisions: DecisionsLog | None = None) -> Events:
    """Return a stream whose upstream answers and decisions about definitions are logged.

    Gateways in one process share their `decisions`.
    """
    events = Events()
    events.subscribe(UpstreamAnswered, _log_answer)
    events.subscribe(DefinitionsDecided, (decisions or DecisionsLog()).decided)
    return events


def _log_answer(event: UpstreamAnswered) -> None:
    level = logging.WARNING if event.code in _WORTH_A_WARNING else logging.DEBUG
    if logger.isEnabledFor(level):
        fields = {
            "upstream": event.upstream_id,
            "tool": event.target,
            "code": event.code,
            "seconds": event.seconds,
        }
        logger.log(level, "%s ended with %s", event.method, event.code, extra=fields)


class DecisionsLog:
    """The log of decisions about definitions: equal decisions of several gateways are written once."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], DefinitionsDecided] = {}

    def decided(self, event: DefinitionsDecided) -> None:
        """Log a decision, unless it equals the last one of this server and no later one has superseded it."""
        if self._last.get((event.upstream_id, event.outcome)) != event:
            self._last[event.upstream_id, event.outcome] = event
            for outcome in _OVERTAKEN.get(event.outcome, ()):
                self._last.pop((event.upstream_id, outcome), None)
            _log_definitions(event)


def _log_definitions(event: DefinitionsDecided) -> None:
    names = [name if kind == "tool" else f"{kind} {name}".rstrip() for kind, name, _ in event.definitions]
    more = len(names) - MAX_NAMED
    shown = ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
    found = f" ({', '.join(event.classes)})" if event.classes else ""
    level = logging.WARNING if event.outcome in _FOR_THE_OWNER else logging.INFO
    said = _SAID.get(event.outcome, event.outcome)
    logger.log(level, "%s%s: %s", shown, found, said, extra={"upstream": event.upstream_id})


_UNTRACED = logged_events()
"""The stream for events not caused by a client's request."""


class _Named(Protocol):
    @property
    def upstream_id(self) -> str: ...


UpstreamT = TypeVar("UpstreamT", bound=_Named)
Request = Callable[Concatenate[UpstreamT, str, JsonObject, P], Awaitable[JsonObject]]


def observed(send: Request[UpstreamT, P]) -> Request[UpstreamT, P]:
    """Observe an upstream's `(method, params)` requests: their duration and outcome, never their content."""

    @functools.wraps(send)
    async def request(
        upstream: UpstreamT, method: str, params: JsonObject, /, *args: P.args, **kwargs: P.kwargs
    ) -> JsonObject:
        trace = CURRENT_TRACE.get()
        spans = None if trace is None else trace.spans
        events = _UNTRACED if trace is None or trace.events is None else trace.events
        # URIs are left out, since they may contain values.
        name = params.get("name") if method in ("tools/call", "prompts/get") else None
        target = name if isinstance(name, str) else ""
        started = time.perf_counter()
        with spans.upstream(upstream.upstream_id, method, target) if spans is not None else nullcontext():
            try:
                result = await send(upstream, method, params, *args, **kwargs)
                code = outcome_of(result)
                return result
            except BaseException as error:
                code = code_of(error)
                raise
            finally:
                seconds = time.perf_counter() - started
                events.publish(UpstreamAnswered(upstream.upstream_id, method, target, code, seconds))

    return request


@contextmanager
def searching() -> Iterator[None]:
    """Observe one search of the index."""
    trace = CURRENT_TRACE.get()
    events = _UNTRACED if trace is None or trace.events is None else trace.events
    spans = None if trace is None else trace.spans
    started = time.perf_counter()
    with spans.search() if spans is not None else nullcontext():
        yield
    if events.reach(IndexSearched):
        events.publish(IndexSearched(time.perf_counter() - started))
