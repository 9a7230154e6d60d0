"""Prometheus metrics of requests, in a registry of their own and with a bounded number of series."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

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

_SECONDS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""From the gateway's own overhead of a call to the default timeout."""

_SEARCH_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class PrometheusMetrics:
    """The metrics at `/metrics`. Tools beyond the limit count as `other`; values from clients are never labels."""

    def __init__(self, max_tools: int) -> None:
        self.registry = CollectorRegistry()
        self._tools = BoundedTools(max_tools)
        ProcessCollector(registry=self.registry)
        registry = self.registry
        self._requests = Counter(
            "pml_requests", "Requests of clients.", ("method", "client", "outcome"), registry=registry
        )
        self._request_seconds = Histogram(
            "pml_request_seconds", "Time to answer clients.", ("method",), buckets=_SECONDS, registry=registry
        )
        self._errors = Counter("pml_errors", "Requests of clients that failed, by code.", ("code",), registry=registry)
        self._calls = Counter(
            "pml_upstream_requests",
            "Requests to upstreams.",
            ("upstream", "method", "tool", "outcome"),
            registry=registry,
        )
        self._call_seconds = Histogram(
            "pml_upstream_request_seconds",
            "Time upstreams take, waiting in the gateway included.",
            ("upstream", "method", "tool"),
            buckets=_SECONDS,
            registry=registry,
        )
        self._search_seconds = Histogram(
            "pml_search_seconds", "Time to search the catalog.", buckets=_SEARCH_SECONDS, registry=registry
        )
        self._lists = Counter("pml_lists", "Lists of tools given to clients.", ("mode",), registry=registry)
        self._list_tools = Counter("pml_list_tools", "Tools on these lists.", ("mode",), registry=registry)
        self._list_tokens = Counter(
            "pml_list_tokens", "Tokens (o200k_base) of these lists.", ("mode",), registry=registry
        )
        self._list_tokens_saved = Counter(
            "pml_list_tokens_saved",
            "Tokens spared by these lists, against all tools of the same clients.",
            ("mode",),
            registry=registry,
        )
        self._storage = Counter(
            "pml_storage_commands", "Commands to the shared Redis server.", ("outcome",), registry=registry
        )
        self._storage_seconds = Histogram(
            "pml_storage_command_seconds", "Time the Redis server takes.", buckets=_SEARCH_SECONDS, registry=registry
        )
        self._definitions = Counter(
            "pml_definitions",
            "Definitions of servers, by what became of them.",
            ("upstream", "outcome"),
            registry=registry,
        )

    def add(self, collector: Collector) -> None:
        """Also expose what `collector` returns at the time of a scrape."""
        self.registry.register(collector)

    def subscribe_to(self, events: Events) -> None:
        """Count the following events."""
        events.subscribe(RequestEnded, self.request_ended)
        events.subscribe(UpstreamAnswered, self.upstream_answered)
        events.subscribe(IndexSearched, self.index_searched)
        events.subscribe(ListsCounted, self.lists_counted)
        events.subscribe(DefinitionsDecided, self.definitions_decided)
        events.subscribe(StorageAsked, self.storage_asked)

    def request_ended(self, event: RequestEnded) -> None:
        """Count a client's request, and record its duration."""
        shown, outcome = known_method(event.method), known_outcome(event.code)
        self._requests.labels(shown, event.client, outcome).inc()
        self._request_seconds.labels(shown).observe(event.seconds)
        if outcome not in (OK, INPUT_REQUIRED):
            self._errors.labels(outcome).inc()

    def upstream_answered(self, event: UpstreamAnswered) -> None:
        """Count a request to an upstream, and record its duration."""
        tool = self._tools.label(event.upstream_id, event.target)
        labels = (event.upstream_id, known_method(event.method), tool)
        self._calls.labels(*labels, known_outcome(event.code)).inc()
        self._call_seconds.labels(*labels).observe(event.seconds)

    def index_searched(self, event: IndexSearched) -> None:
        """Record the duration of a search."""
        self._search_seconds.observe(event.seconds)

    def lists_counted(self, event: ListsCounted) -> None:
        """Count lists given to clients, and their tools and tokens."""
        self._lists.labels(event.mode).inc(event.count)
        self._list_tools.labels(event.mode).inc(event.count * event.tools)
        self._list_tokens.labels(event.mode).inc(event.count * event.tokens)
        self._list_tokens_saved.labels(event.mode).inc(event.count * event.saved)

    def definitions_decided(self, event: DefinitionsDecided) -> None:
        """Count definitions that were accepted, held back or decided about."""
        self._definitions.labels(event.upstream_id, event.outcome).inc(len(event.definitions))

    def storage_asked(self, event: StorageAsked) -> None:
        """Count a command to Redis, and record its duration if it was sent."""
        self._storage.labels(event.outcome).inc()
        if event.outcome != "not_sent":
            self._storage_seconds.observe(event.seconds)

    def exposed(self, accept: str) -> tuple[bytes, str]:
        """Return the page for a scraper that accepts `accept`, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type
