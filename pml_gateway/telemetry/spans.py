"""OpenTelemetry spans for the steps of a request, below the SDK's own span of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import context as otel_context
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, get_current_span, get_tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pml_gateway import __version__
from pml_gateway.telemetry.events import INPUT_REQUIRED, OK, UpstreamAnswered

_PROPAGATOR = TraceContextTextMapPropagator()
_FINE = (OK, INPUT_REQUIRED)


class Spans:
    """The spans of one gateway, by the semantic conventions for MCP; with names, but no arguments or results."""

    def __init__(self) -> None:
        # The API finds the provider of the process.
        self._tracer: Tracer = get_tracer("pml-gateway", __version__)

    @contextmanager
    def upstream(self, upstream_id: str, method: str, target: str) -> Iterator[None]:
        """Open a span for one request to an upstream, including the wait for a place and a connection."""
        attributes = {"mcp.method.name": method, "pml.upstream": upstream_id}
        if method == "tools/call":
            attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": target}
        elif method == "prompts/get":
            attributes["gen_ai.prompt.name"] = target
        with self._tracer.start_as_current_span(
            f"{method} {target}".rstrip(),
            kind=SpanKind.CLIENT,
            attributes=attributes,
            # An error's text may quote arguments; `upstream_answered` sets its code.
            record_exception=False,
            set_status_on_exception=False,
        ):
            yield

    @contextmanager
    def search(self) -> Iterator[None]:
        """Open a span for one search of the catalog."""
        with self._tracer.start_as_current_span("search tools", record_exception=False):
            yield

    def upstream_answered(self, event: UpstreamAnswered) -> None:
        """Set the outcome of a request to an upstream on its span, which is the current one."""
        if event.code not in _FINE:
            span = get_current_span()
            span.set_attribute("error.type", event.code)
            span.set_status(Status(StatusCode.ERROR))

    def about_request(self, request_id: str, client: str) -> None:
        """Set request id and client on the request's own span, which the SDK opened."""
        get_current_span().set_attributes({"pml.request_id": request_id, "pml.client": client})

    def failed_with(self, code: str) -> None:
        """Set the published code of an error result on the request's own span; the SDK only sets `tool_error`."""
        get_current_span().set_attribute("pml.code", code)

    def carried(self) -> dict[str, str]:
        """Return the current span as W3C trace context."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        return carrier


@contextmanager
def continuing(parent: tuple[tuple[str, str], ...]) -> Iterator[None]:
    """Make spans that start in this context part of the client's trace."""
    token = otel_context.attach(_PROPAGATOR.extract(dict(parent)))
    try:
        yield
    finally:
        otel_context.detach(token)
