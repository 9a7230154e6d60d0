"""OpenTelemetry: which spans a request leaves, how they hang together, and that a collector gets them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from pml_gateway.config.environment import OtlpTarget, otlp_target
from pml_gateway.config.settings import TelemetrySettings
from pml_gateway.installation import EXTRAS, adding
from tests.support.process import run_pml, running_gateway, write_settings
from tests.support.raw import result_modern
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import serving
from tests.support.threaded_http import PlainHandler, threaded

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
START_SECONDS = 60
UPSTREAM_SERVER = Path(__file__).parents[1] / "support" / "scripted_server.py"


@pytest.fixture(scope="module")
def provider() -> Iterator[InMemorySpanExporter]:
    """The process's provider, as an embedding program sets it; OpenTelemetry lets it be set once."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    yield exporter
    provider.shutdown()


@pytest.fixture
def spans(provider: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    provider.clear()
    return provider


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    found: int = span.context.span_id
    return found


@pytest.mark.anyio
@pytest.mark.parametrize("in_meta", [True, False])
async def test_a_call_is_one_trace_from_the_clients_span_to_the_upstreams(
    tmp_path: Path, spans: InMemorySpanExporter, in_meta: bool
) -> None:
    up = ScriptedServer([tool("t")])
    async with serving(tmp_path, {"up": up}) as served:
        spans.clear()
        given: dict[str, Any] = {"_meta": {"traceparent": PARENT}} if in_meta else {}
        headers = {} if in_meta else {"traceparent": PARENT}
        params = {"name": "up__t", "arguments": {"diary": "dear"}, **given}
        await served.result("tools/call", params, headers=headers)
    [request] = named(spans, "tools/call up__t")
    [call] = [span for span in named(spans, "tools/call t") if span.kind is SpanKind.CLIENT]
    assert request.context is not None
    assert format(request.context.trace_id, "032x") == PARENT.split("-")[1]
    assert format(parent_of(request) or 0, "016x") == PARENT.split("-")[2]
    assert parent_of(call) == id_of(request)
    assert call.attributes is not None
    assert request.attributes is not None
    assert (call.attributes["pml.upstream"], call.attributes["gen_ai.tool.name"]) == ("up", "t")
    assert (request.attributes["pml.request_id"], request.attributes["pml.client"]) == ("test", "anonymous")
    [received] = up.calls
    assert received["meta"]["traceparent"].split("-")[1] == PARENT.split("-")[1]
    assert "dear" not in "".join(span.to_json() for span in spans.get_finished_spans())


@pytest.mark.anyio
async def test_a_search_is_a_step_of_its_request(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    async with serving(tmp_path, {"up": ScriptedServer([tool("read_file", "Reads a file.")])}) as served:
        await served.call("search_tools", {"query": "read a file"})
    [request] = named(spans, "tools/call search_tools")
    [search] = named(spans, "search tools")
    assert parent_of(search) == id_of(request)


@pytest.mark.anyio
async def test_a_failure_is_told_by_its_code_alone(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    async def handler(_ctx: Any, params: dict[str, Any]) -> dict[str, Any]:
        if params["name"] == "refuses":
            return {**text_result("no"), "isError": True}
        raise ValueError("the key was hunter2")

    async with serving(tmp_path, {"up": ScriptedServer([tool("t"), tool("refuses")], handler=handler)}) as served:
        await served.message("tools/call", {"name": "up__t"})
        await served.call("up__refuses")
        await served.call("nothing")
    codes = {
        (name, kind): [
            dict(span.attributes or {}).get("error.type") for span in named(spans, name) if span.kind is kind
        ]
        for name, kind in (
            ("tools/call t", SpanKind.CLIENT),
            ("tools/call refuses", SpanKind.CLIENT),
            ("tools/call nothing", SpanKind.SERVER),
        )
    }
    assert list(codes.values()) == [["UPSTREAM_ERROR"], ["TOOL_ERROR"], ["tool_error"]]
    [nothing] = named(spans, "tools/call nothing")
    assert dict(nothing.attributes or {})["pml.code"] == "NOT_FOUND"
    own = [span for span in spans.get_finished_spans() if dict(span.attributes or {}).get("pml.upstream")]
    assert not [span for span in own if span.events or span.status.description]


@pytest.mark.parametrize(
    ("endpoint", "environ", "target"),
    [
        (None, {}, None),
        ("http://c:4318", {}, OtlpTarget("http://c:4318", True, True, True)),
        ("http://c:4318", {"OTEL_SDK_DISABLED": "true"}, None),
        ("http://c:4318", {"OTEL_METRICS_EXPORTER": "none"}, OtlpTarget("http://c:4318", True, False, True)),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, OtlpTarget(None, True, True, True)),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/v1/traces"}, OtlpTarget(None, True, False, False)),
        ("${env:COLLECTOR}", {"COLLECTOR": "http://c"}, OtlpTarget("http://c", True, True, True)),
    ],
)
def test_telemetry_goes_out_only_where_it_is_asked_for(
    endpoint: str | None, environ: dict[str, str], target: OtlpTarget | None
) -> None:
    assert otlp_target(TelemetrySettings(otlp_endpoint=endpoint), environ) == target


class Collector:
    """An OTLP collector over HTTP that keeps what it gets."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.bodies: list[tuple[str, bytes]] = []

    def span_names(self) -> set[str]:
        requests = [ExportTraceServiceRequest.FromString(body) for path, body in self.bodies if path == "/v1/traces"]
        return {
            span.name
            for request in requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        }

    def accesses(self) -> set[tuple[str, str, str]]:
        requests = [ExportLogsServiceRequest.FromString(body) for path, body in self.bodies if path == "/v1/logs"]
        logs = [
            log
            for request in requests
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for log in scope.log_records
        ]
        fields = [{each.key: each.value.string_value for each in log.attributes} for log in logs]
        return {(log.event_name, told["pml.name"], told["pml.outcome"]) for log, told in zip(logs, fields, strict=True)}

    def metric_names(self) -> set[str]:
        requests = [ExportMetricsServiceRequest.FromString(body) for path, body in self.bodies if path == "/v1/metrics"]
        return {
            metric.name
            for request in requests
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(PlainHandler):
        def post(self) -> None:
            collector.bodies.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.respond(200)

    with threaded(Handler) as url:
        collector = Collector(url.removesuffix("/mcp"))
        yield collector


@pytest.mark.slow
def test_a_collector_gets_spans_and_measurements_before_the_process_ends(tmp_path: Path) -> None:
    servers = {"up": {"command": sys.executable, "args": [str(UPSTREAM_SERVER)]}}
    with collecting() as collector:
        settings = {
            "servers": servers,
            "telemetry": {"otlp_endpoint": collector.url},
            "audit": {"path": "calls.jsonl"},
        }
        with running_gateway(tmp_path, settings, extra={"OTEL_BSP_SCHEDULE_DELAY": "60000"}) as gateway:
            until = time.monotonic() + START_SECONDS
            echo = {"name": "up__echo", "arguments": {"message": "hello"}}
            while result_modern(gateway.url, "tools/call", echo).get("isError"):
                assert time.monotonic() < until
            assert gateway.stop() == 0
        assert {"tools/call up__echo", "tools/call echo"} <= collector.span_names()
        assert {"mcp.server.operation.duration", "mcp.client.operation.duration"} <= collector.metric_names()
        assert ("pml.access", "up__echo", "OK") in collector.accesses()
        assert not [body for _, body in collector.bodies if b"hello" in body]


@pytest.mark.slow
def test_a_collector_that_is_away_does_not_hold_up_the_end(tmp_path: Path) -> None:
    servers = {"up": {"command": sys.executable, "args": [str(UPSTREAM_SERVER)]}}
    settings = {"servers": servers, "telemetry": {"otlp_endpoint": "http://127.0.0.1:9"}}
    with running_gateway(tmp_path, settings) as gateway:
        result_modern(gateway.url, "tools/call", {"name": "up__echo", "arguments": {"message": "hello"}})
        assert gateway.stop() == 0


@pytest.mark.slow
def test_a_missing_sdk_is_an_error_that_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['opentelemetry.sdk'] = None\n")
    settings = {"servers": {"up": {"command": "none"}}, "telemetry": {"otlp_endpoint": "http://127.0.0.1:9"}}
    write_settings(tmp_path, settings)
    python_path = f"{tmp_path}:{Path(__file__).parents[2]}"
    done = run_pml(tmp_path, "serve", "--http", "--port", "0", extra={"PYTHONPATH": python_path})
    assert done.returncode == 78, done.stderr
    assert adding(*EXTRAS["otel"]) in done.stderr
