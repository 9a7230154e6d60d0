"""`/metrics`: gauges of the gateway at the moment of a scrape, for whoever has the key."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pml_gateway import __version__
from pml_gateway.config.settings import Settings
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.policy.refusals import metrics_key
from pml_gateway.serve.limits.connections import ConnectionLimits, Refusal
from pml_gateway.telemetry.prometheus import PrometheusMetrics
from pml_gateway.upstreams.lifecycle import UpstreamState


class GatewayGauges:
    """Gauges of the current state: upstreams, calls, queues, sessions, connections, tools."""

    def __init__(self, gateway: Gateway, sessions: Callable[[], int], limits: ConnectionLimits) -> None:
        self._gateway = gateway
        self._sessions = sessions
        self._limits = limits

    def collect(self) -> Iterator[Metric]:
        """Every gauge, read from the running gateway."""
        state = self._gateway.state
        info = GaugeMetricFamily("pml_info", "Version and configured mode.", labels=("version", "mode"))
        info.add_metric((__version__, state.settings.gateway.tools_exposure.value), 1)
        yield info
        yield GaugeMetricFamily("pml_catalog_tools", "Tools of all upstreams.", value=len(state.catalog.tools))
        yield GaugeMetricFamily("pml_sessions", "Open sessions of the handshake era.", value=self._sessions())
        connections = GaugeMetricFamily("pml_http_connections", "Open connections.", labels=("state",))
        waiting = len(self._limits.waiting)
        connections.add_metric(("waiting",), waiting)
        connections.add_metric(("serving",), self._limits.open.total() - waiting)
        yield connections
        refused = CounterMetricFamily("pml_http_refused", "Connections refused or ended.", labels=("reason",))
        for reason in Refusal:
            refused.add_metric((reason.value,), self._limits.refused[reason])
        yield refused
        yield from self._upstreams()

    def describe(self) -> Iterator[Metric]:
        """Nothing: the gateway need not be ready when this collector is registered."""
        return iter(())

    def _upstreams(self) -> Iterator[Metric]:
        states = GaugeMetricFamily("pml_upstream_state", "1 for the state it is in.", labels=("upstream", "state"))
        running = GaugeMetricFamily("pml_upstream_in_flight", "Requests sent, unanswered.", labels=("upstream",))
        waiting = GaugeMetricFamily("pml_upstream_queued", "Requests that wait for a place.", labels=("upstream",))
        tools = GaugeMetricFamily("pml_upstream_tools", "Tools it lists.", labels=("upstream",))
        counts: dict[str, int] = {}
        for tool in self._gateway.state.catalog.tools:
            counts[tool.upstream_id] = counts.get(tool.upstream_id, 0) + 1
        for upstream_id, upstream in self._gateway.pool.upstreams.items():
            for known in UpstreamState:
                states.add_metric((upstream_id, known.value), float(upstream.state is known))
            running.add_metric((upstream_id,), upstream.in_flight)
            waiting.add_metric((upstream_id,), upstream.waiting)
            tools.add_metric((upstream_id,), counts.get(upstream_id, 0))
        yield from (states, running, waiting, tools)


class MetricsPage:
    """Answers scrapes. Metrics are the operator's: they name upstreams and tools that a client may not see.

    A client's key therefore does not open them. Without keys, whoever may call every tool may read them.
    """

    def __init__(self, metrics: PrometheusMetrics, settings: Settings, environ: Mapping[str, str]) -> None:
        self._metrics = metrics
        self._key = metrics_key(settings, environ)

    def answer(self, request: Request, *, keys_needed: bool) -> Response:
        """Return the page, or why not."""
        if request.method not in ("GET", "HEAD"):
            return JSONResponse({"error": "use GET"}, 405, {"Allow": "GET, HEAD"})
        if (keys_needed or self._key is not None) and not self._is_key(request.headers.get("authorization", "")):
            error = {"error": "a bearer key is required: http.metrics_key of the configuration"}
            return JSONResponse(error, 401, {"WWW-Authenticate": 'Bearer realm="pml-gateway metrics"'})
        content, content_type = self._metrics.exposed(request.headers.get("accept", ""))
        return Response(content, headers={"Content-Type": content_type})

    def _is_key(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        known = self._key
        matches = hmac.compare_digest(given.strip().encode("utf-8", "replace"), (known or "").encode())
        return known is not None and scheme.lower() == "bearer" and matches
