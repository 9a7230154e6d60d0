"""The id of a client's request, which is passed on to log lines, errors, answers and upstreams."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pml_gateway.telemetry.events import Events
from pml_gateway.types import JsonObject

if TYPE_CHECKING:
    from pml_gateway.telemetry.spans import Spans


REQUEST_ID_HEADER = "x-request-id"
TRACE_KEYS = ("traceparent", "tracestate")
"""W3C trace context, under the same names in HTTP headers and, by the MCP specification, in `_meta`."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}")
_TRACE_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?")
MAX_TRACE_STATE = 512

CURRENT_TRACE: ContextVar[Trace | None] = ContextVar("pml_gateway_trace", default=None)


@dataclass(slots=True)
class Trace:
    """The identity of one client request for operators.

    `parent` is the trace context that the client sent; `events` receives the events of the request, and `spans` its
    steps, if they are enabled.
    """

    request_id: str
    client: str = ""
    parent: tuple[tuple[str, str], ...] = ()
    events: Events | None = None
    spans: Spans | None = None
    code: str = ""

    @property
    def trace_id(self) -> str:
        """Return the trace id of the client's request; empty if there is none."""
        return next((value.split("-")[1] for name, value in self.parent if name == "traceparent"), "")


def new_request_id() -> str:
    """Return a unique id for a request."""
    return os.urandom(16).hex()


def request_id_from(given: str | None) -> str:
    """Return the id that a client sent if it is well-formed, else a new one."""
    return given if given is not None and _REQUEST_ID.fullmatch(given) else new_request_id()


def trace_parent(carrier: Mapping[str, object] | None) -> tuple[tuple[str, str], ...]:
    """Return the well-formed trace context in headers or `_meta`; empty if there is none."""
    if not carrier:
        return ()
    parent = carrier.get("traceparent")
    if not isinstance(parent, str) or not _TRACE_PARENT.fullmatch(parent):
        return ()
    state = carrier.get("tracestate")
    if not isinstance(state, str) or not state or len(state) > MAX_TRACE_STATE or not state.isprintable():
        return (("traceparent", parent),)
    return (("traceparent", parent), ("tracestate", state)) if state.isascii() else (("traceparent", parent),)


def stamp_request(params: JsonObject, headers: dict[str, str]) -> None:
    """Add the current request's id and trace context to a request to an upstream."""
    trace = CURRENT_TRACE.get()
    if trace is None:
        return
    headers[REQUEST_ID_HEADER] = trace.request_id
    carried = dict(trace.parent) if trace.spans is None else trace.spans.carried()
    if carried:
        headers.update(carried)
        params["_meta"] = {**params.get("_meta", {}), **carried}
