"""One id per request, from the client's header to the upstream's and back."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import Response

from pml_gateway.config.settings import Settings
from pml_gateway.mcp.transport import open_streams
from pml_gateway.telemetry.logs import note_request
from pml_gateway.telemetry.trace import request_id_from, trace_parent
from tests.support.listening import listening
from tests.support.raw import decoded, post_modern
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def posted(served: Serving, name: str, headers: dict[str, str] | None = None, **params: Any) -> httpx2.Response:
    given = {"name": name, "arguments": {}, **params}
    return await anyio.to_thread.run_sync(lambda: post_modern(served.url, "tools/call", given, headers=headers))


def error_of(response: httpx2.Response) -> dict[str, Any]:
    error: dict[str, Any] = decoded(response)["result"]["structuredContent"]["error"]
    return error


async def test_a_well_formed_id_comes_back_in_the_header_and_in_errors(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": ScriptedServer([tool("t")])}) as served:
        response = await posted(served, "nothing", {"x-request-id": "order:7/retry=1"})
    assert response.headers["x-request-id"] == "order:7/retry=1"
    assert error_of(response)["details"]["request_id"] == "order:7/retry=1"


@pytest.mark.parametrize("given", ["", "has space", "x" * 129, "-leading", 'quote"d', "<b>"])
async def test_another_id_is_replaced_by_one_of_the_gateways_own(tmp_path: Path, given: str) -> None:
    async with serving(tmp_path, {"up": ScriptedServer([tool("t")])}) as served:
        response = await posted(served, "nothing", {"x-request-id": given})
    made = response.headers["x-request-id"]
    assert re.fullmatch("[0-9a-f]{32}", made)
    assert error_of(response)["details"]["request_id"] == made


async def test_every_answer_of_the_http_endpoint_carries_an_id(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": ScriptedServer()}) as served:
        root = served.url.removesuffix("/mcp")
        responses = [
            await anyio.to_thread.run_sync(httpx2.get, root + path)
            for path in ("/healthz", "/readyz", "/mcp/unknown", "/elsewhere")
        ]
    assert len({response.headers["x-request-id"] for response in responses}) == 4


async def test_each_request_of_a_handshake_session_has_its_own_id(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": ScriptedServer()}) as served, served.handshake() as session:
        session.headers.pop("x-request-id")
        answers = [
            await anyio.to_thread.run_sync(lambda: session.send("tools/call", {"name": "nothing", "arguments": {}}))
            for _ in range(2)
        ]
    ids = [error_of(answer)["details"]["request_id"] for answer in answers]
    assert ids == [answer.headers["x-request-id"] for answer in answers]
    assert len(set(ids)) == 2


async def test_log_lines_of_a_failing_call_carry_the_id_and_no_arguments(
    tmp_path: Path,
) -> None:
    up = ScriptedServer([tool("t", properties={"text": {"type": "string"}})])
    async with serving(tmp_path, {"up": up}) as served:
        noted: list[logging.LogRecord] = []
        handler = _Noting(noted)
        logging.getLogger("pml_gateway").addHandler(handler)
        try:
            up.handler = _refusing
            await posted(served, "up__t", {"x-request-id": "r-1"}, arguments={"text": "my diary"})
        finally:
            logging.getLogger("pml_gateway").removeHandler(handler)
    [record] = [record for record in noted if record.name.endswith("telemetry.observe")]
    fields = vars(record)
    assert (fields["request_id"], fields["upstream"], fields["tool"]) == ("r-1", "up", "t")
    assert (fields["code"], fields["client"]) == ("UPSTREAM_ERROR", "anonymous")
    assert "diary" not in str(fields)


class _Noting(logging.Handler):
    def __init__(self, noted: list[logging.LogRecord]) -> None:
        super().__init__()
        self._noted = noted
        self.addFilter(note_request)

    def emit(self, record: logging.LogRecord) -> None:
        self._noted.append(record)


async def _refusing(_ctx: Any, params: dict[str, Any]) -> dict[str, Any]:
    raise ValueError(f"cannot take {params['arguments']}")


@pytest.mark.parametrize("in_meta", [True, False])
async def test_a_trace_context_reaches_an_upstream_on_streams_in_meta(tmp_path: Path, in_meta: bool) -> None:
    up = ScriptedServer([tool("t")])
    given = {"traceparent": PARENT, "tracestate": "vendor=1"}
    async with serving(tmp_path, {"up": up}) as served:
        if in_meta:
            await posted(served, "up__t", _meta=given)
        else:
            await posted(served, "up__t", given)
        await posted(served, "up__t", {"traceparent": "00-nonsense"})
    first, second = up.calls
    assert {name: first["meta"][name] for name in given} == given
    assert "traceparent" not in second["meta"]


async def test_an_upstream_over_http_gets_the_id_and_the_trace_context_as_headers(tmp_path: Path) -> None:
    seen: list[tuple[dict[str, str], dict[str, Any]]] = []
    async with listening(_recording(seen)) as port:
        settings = Settings.model_validate({"servers": {"remote": {"url": f"http://127.0.0.1:{port}/mcp"}}})
        async with serving(tmp_path, {}, settings, open_streams=open_streams) as served:
            await posted(served, "remote__t", {"x-request-id": "r-9", "traceparent": PARENT})
            await posted(served, "remote__t", {"x-request-id": "r-10"})
    (first, first_message), (second, second_message) = seen
    assert (first["x-request-id"], first["traceparent"]) == ("r-9", PARENT)
    assert first_message["params"]["_meta"]["traceparent"] == PARENT
    assert (second["x-request-id"], second.get("traceparent")) == ("r-10", None)
    assert "traceparent" not in second_message["params"].get("_meta", {})


def _recording(seen: list[tuple[dict[str, str], dict[str, Any]]]) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        message = json.loads(await request.body() or b"{}") if request.method == "POST" else {}
        match message.get("method"):
            case "initialize":
                result: dict[str, Any] = {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "recording", "version": "1"},
                }
            case "tools/list":
                result = {"tools": [tool("t")]}
            case "tools/call":
                seen.append((dict(request.headers), message))
                result = text_result("done")
            case _:
                await Response(status_code=405 if request.method == "GET" else 202)(scope, receive, send)
                return
        body = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "result": result})
        await Response(body, media_type="application/json")(scope, receive, send)

    return app


def test_a_malformed_trace_context_is_none() -> None:
    for wrong in ("", "00-0-0-00", PARENT.upper(), PARENT.replace("4", "0").replace("b", "g"), f"ff{PARENT[2:]}"):
        assert trace_parent({"traceparent": wrong}) == ()
    assert trace_parent({"traceparent": PARENT, "tracestate": "a\r\nb"}) == (("traceparent", PARENT),)
    assert trace_parent(None) == ()


def test_an_id_is_made_where_none_is_given() -> None:
    assert request_id_from(None) != request_id_from(None)
