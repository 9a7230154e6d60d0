"""`/metrics`: gauges of the gateway at the moment of a scrape, for whoever has the key."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from pml_gateway import __version__
from pml_gateway.gateway.gateway import Gateway
from pml_gateway.serve.limits.connections import ConnectionLimits, Refusal
from pml_gateway.upstreams.connector import UpstreamState


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
        yield from self._storage()
        yield from self._upstreams()

    def describe(self) -> Iterator[Metric]:
        """Nothing: the gateway need not be ready when this collector is registered."""
        return iter(())

    def _storage(self) -> Iterator[Metric]:
        replicas = self._gateway.replicas
        if replicas is not None:
            failing = replicas.server.health.failing_seconds
            yield GaugeMetricFamily("pml_storage_up", "1 while Redis answers.", value=float(failing is None))
            yield GaugeMetricFamily("pml_storage_failing_seconds", "Time since it fails.", value=failing or 0.0)
            yield GaugeMetricFamily("pml_replicas", "Living gateways with it.", value=len(replicas.known))

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
                states.add_metric((upstream_id, known.value), float(upstream.connector.state is known))
            running.add_metric((upstream_id,), upstream.activity.in_flight)
            waiting.add_metric((upstream_id,), upstream.activity.limit.waiting)
            tools.add_metric((upstream_id,), counts.get(upstream_id, 0))
        yield from (states, running, waiting, tools)
