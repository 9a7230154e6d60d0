"""Spans and metrics sent to an OpenTelemetry collector; only imported if that is configured."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import anyio.to_thread
from opentelemetry import metrics, trace
from opentelemetry._logs import LogRecord, SeverityNumber, get_logger_provider, set_logger_provider

from pml_gateway import __version__
from pml_gateway.config.environment import OtlpTarget
from pml_gateway.errors import ConfigurationError
from pml_gateway.installation import EXTRAS, adding
from pml_gateway.telemetry.events import (
    INPUT_REQUIRED,
    OK,
    BoundedTools,
    DefinitionsDecided,
    Events,
    IndexSearched,
    ListsCounted,
    RequestEnded,
    StorageAsked,
    UpstreamAnswered,
    known_method,
    known_outcome,
)
from pml_gateway.text import escaped_json
from pml_gateway.types import JsonObject

try:
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
except ImportError as missing:
    raise ConfigurationError(
        "an OpenTelemetry endpoint is configured, and the OpenTelemetry SDK is not installed",
        hint=f"{adding(*EXTRAS['otel'])}, or remove telemetry.otlp_endpoint and the OTEL_* variables",
    ) from missing

EXPORT_SECONDS = 5.0
"""Time limit in seconds for one export; an unreachable collector must not delay the end of the process."""


class OtelMetrics:
    """Measurements according to the semantic conventions for MCP, and the gateway's own."""

    def __init__(self, max_tools: int) -> None:
        self._tools = BoundedTools(max_tools)
        meter = metrics.get_meter("pml-gateway", __version__)
        self._server = meter.create_histogram("mcp.server.operation.duration", "s", "Time to answer clients.")
        self._client = meter.create_histogram("mcp.client.operation.duration", "s", "Time upstreams take.")
        self._search = meter.create_histogram("pml.search.duration", "s", "Time to search the catalog.")
        self._lists = meter.create_counter("pml.lists", "{list}", "Lists of tools given to clients.")
        self._tokens = meter.create_counter("pml.list.tokens", "{token}", "Tokens of these lists.")
        self._saved = meter.create_counter("pml.list.tokens_saved", "{token}", "Tokens spared by these lists.")
        self._storage = meter.create_histogram("pml.storage.duration", "s", "Time the shared Redis server takes.")
        self._definitions = meter.create_counter(
            "pml.definitions", "{definition}", "Definitions of servers, by what became of them."
        )

    def subscribe_to(self, events: Events) -> None:
        """Measure the following events."""
        events.subscribe(RequestEnded, self.request_ended)
        events.subscribe(UpstreamAnswered, self.upstream_answered)
        events.subscribe(IndexSearched, self.index_searched)
        events.subscribe(ListsCounted, self.lists_counted)
        events.subscribe(DefinitionsDecided, self.definitions_decided)
        events.subscribe(StorageAsked, self.storage_asked)

    def request_ended(self, event: RequestEnded) -> None:
        """Record the duration of a client's request."""
        attributes = {"mcp.method.name": known_method(event.method), "pml.client": event.client}
        self._server.record(event.seconds, {**attributes, **_error(event.code)})

    def upstream_answered(self, event: UpstreamAnswered) -> None:
        """Record the duration of a request to an upstream."""
        name = self._tools.label(event.upstream_id, event.target)
        attributes = {"mcp.method.name": known_method(event.method), "pml.upstream": event.upstream_id}
        attributes |= _error(event.code)
        self._client.record(event.seconds, {**attributes, "gen_ai.tool.name": name} if name else attributes)

    def index_searched(self, event: IndexSearched) -> None:
        """Record the duration of a search."""
        self._search.record(event.seconds)

    def lists_counted(self, event: ListsCounted) -> None:
        """Count lists given to clients, and their tokens."""
        self._lists.add(event.count, {"pml.mode": event.mode})
        self._tokens.add(event.count * event.tokens, {"pml.mode": event.mode})
        self._saved.add(event.count * event.saved, {"pml.mode": event.mode})

    def definitions_decided(self, event: DefinitionsDecided) -> None:
        """Count definitions that were accepted, held back or decided about."""
        attributes = {"pml.upstream": event.upstream_id, "pml.outcome": event.outcome}
        self._definitions.add(len(event.definitions), attributes)

    def storage_asked(self, event: StorageAsked) -> None:
        """Record the duration of a command to Redis."""
        self._storage.record(event.seconds, {} if event.outcome == "ok" else {"error.type": event.outcome})


def access_exporter() -> Callable[[JsonObject], None]:
    """Return the function that sends a record of the audit as a log record, its fields as attributes."""
    log = get_logger_provider().get_logger("pml-gateway", __version__)

    def export(record: JsonObject) -> None:
        attributes = {
            f"pml.{name}": escaped_json(value) if isinstance(value, dict) else value for name, value in record.items()
        }
        is_refused = record["decision"] == "refused"
        log.emit(
            LogRecord(
                timestamp=time.time_ns(),
                severity_number=SeverityNumber.WARN if is_refused else SeverityNumber.INFO,
                body=f"{record['client']} {record['name']} {record['outcome']}",
                attributes=attributes,
                event_name="pml.access",
            )
        )

    return export


def _error(code: str) -> dict[str, str]:
    return {} if code in (OK, INPUT_REQUIRED) else {"error.type": known_outcome(code)}


@asynccontextmanager
async def open_otel(target: OtlpTarget) -> AsyncIterator[None]:
    """Set OpenTelemetry providers for this process, unless the host program has set its own, which are then used."""
    # Environment variables take precedence over the gateway's own names.
    own = Resource.create({"service.name": "pml-gateway", "service.version": __version__})
    resource = own.merge(OTELResourceDetector().detect())
    async with AsyncExitStack() as stack:
        if target.traces and isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            spans = OTLPSpanExporter(endpoint=_endpoint(target, "traces"), timeout=EXPORT_SECONDS)
            tracer_provider = TracerProvider(resource=resource, shutdown_on_exit=False)
            tracer_provider.add_span_processor(BatchSpanProcessor(spans))
            trace.set_tracer_provider(tracer_provider)
            stack.push_async_callback(_shut_down, tracer_provider.shutdown)
        if target.metrics and not isinstance(metrics.get_meter_provider(), MeterProvider):
            measured = OTLPMetricExporter(endpoint=_endpoint(target, "metrics"), timeout=EXPORT_SECONDS)
            reader = PeriodicExportingMetricReader(measured)
            meter_provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
            metrics.set_meter_provider(meter_provider)
            stack.push_async_callback(_shut_down, meter_provider.shutdown)
        if target.logs and not isinstance(get_logger_provider(), LoggerProvider):
            records = OTLPLogExporter(endpoint=_endpoint(target, "logs"), timeout=EXPORT_SECONDS)
            logger_provider = LoggerProvider(resource, shutdown_on_exit=False)
            logger_provider.add_log_record_processor(BatchLogRecordProcessor(records))
            set_logger_provider(logger_provider)
            stack.push_async_callback(_shut_down, logger_provider.shutdown)
        yield


async def _shut_down(shutdown: Callable[[], None]) -> None:
    """Send remaining data, if the collector accepts it in time."""
    with anyio.move_on_after(EXPORT_SECONDS, shield=True):
        await anyio.to_thread.run_sync(shutdown, abandon_on_cancel=True)


def _endpoint(target: OtlpTarget, signal: str) -> str | None:
    return None if target.endpoint is None else f"{target.endpoint.rstrip('/')}/v1/{signal}"
