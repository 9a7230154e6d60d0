"""What watches a gateway by its settings: nothing, Prometheus, OpenTelemetry, or both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pml_gateway.config.environment import otlp_target
from pml_gateway.config.settings import Settings
from pml_gateway.telemetry.events import Observer, Telemetry
from pml_gateway.telemetry.spans import Spans

if TYPE_CHECKING:
    from pml_gateway.telemetry.prometheus import PrometheusMetrics


@dataclass(frozen=True, slots=True)
class Watching:
    """What watches one gateway; `telemetry` is None where nothing does."""

    telemetry: Telemetry | None = None
    prometheus: PrometheusMetrics | None = None


@asynccontextmanager
async def open_watching(settings: Settings) -> AsyncIterator[Watching]:
    """Whatever the settings ask for; spans and measurements still in memory are sent when this context ends.

    Raises:
        ConfigurationError: OpenTelemetry is configured and not installed.
    """
    target = otlp_target(settings.telemetry)
    observers: list[Observer] = []
    spans: Spans | None = None
    prometheus: PrometheusMetrics | None = None
    async with AsyncExitStack() as stack:
        if settings.http.metrics:
            # Each of these libraries takes some 0.1 s to import, which gateways without them never need.
            from pml_gateway.telemetry.prometheus import PrometheusMetrics

            prometheus = PrometheusMetrics(settings.telemetry.max_tools)
            observers.append(prometheus)
        if target is not None:
            from pml_gateway.telemetry.otel import OtelMetrics, open_otel

            await stack.enter_async_context(open_otel(target))
            spans = Spans() if target.traces else None
            observers += [OtelMetrics(settings.telemetry.max_tools)] if target.metrics else []
        watched = bool(observers) or spans is not None
        yield Watching(Telemetry(tuple(observers), spans) if watched else None, prometheus)
