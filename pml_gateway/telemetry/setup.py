"""The observation of a gateway according to its settings: the log alone, or also Prometheus and OpenTelemetry."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pml_gateway.config.environment import otlp_target
from pml_gateway.config.settings import Settings
from pml_gateway.telemetry.events import Events, UpstreamAnswered
from pml_gateway.telemetry.observe import DecisionsLog, logged_events
from pml_gateway.telemetry.spans import Spans
from pml_gateway.types import JsonObject

if TYPE_CHECKING:
    from pml_gateway.telemetry.prometheus import PrometheusMetrics


@dataclass(frozen=True, slots=True)
class TelemetryHandle:
    """The observers of one gateway's requests: the stream of events, and spans and metrics if they are enabled."""

    events: Events
    spans: Spans | None = None
    prometheus: PrometheusMetrics | None = None
    export_access: Callable[[JsonObject], None] | None = None
    """Sends a record of the audit to the collector."""


@asynccontextmanager
async def open_watching(
    settings: Settings, environ: Mapping[str, str] = os.environ, decisions: DecisionsLog | None = None
) -> AsyncIterator[TelemetryHandle]:
    """Open the observers that the settings enable; spans and measurements in memory are sent when this context ends.

    Gateways in one process share the log of their `decisions`.

    Raises:
        ConfigurationError: OpenTelemetry is configured but not installed.
    """
    target = otlp_target(settings.telemetry, environ)
    events = logged_events(decisions)
    spans: Spans | None = None
    prometheus: PrometheusMetrics | None = None
    export_access: Callable[[JsonObject], None] | None = None
    async with AsyncExitStack() as stack:
        if settings.http.metrics:
            # Importing each of these libraries takes some 0.1 s, which gateways without them never need.
            from pml_gateway.telemetry.prometheus import PrometheusMetrics

            prometheus = PrometheusMetrics(settings.telemetry.max_tools)
            prometheus.subscribe_to(events)
        if target is not None:
            from pml_gateway.telemetry.otel import OtelMetrics, access_exporter, open_otel

            await stack.enter_async_context(open_otel(target))
            if target.metrics:
                OtelMetrics(settings.telemetry.max_tools).subscribe_to(events)
            if target.logs:
                export_access = access_exporter()
            if target.traces:
                spans = Spans()
                events.subscribe(UpstreamAnswered, spans.upstream_answered)
        yield TelemetryHandle(events, spans, prometheus, export_access)
