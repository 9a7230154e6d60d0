"""Calls that go beside the SDK's session: events, progress, cancellation, resumption, and answers that are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from pml_gateway.errors import innermost
from pml_gateway.gateway.request import CallOptions, RequestScope
from pml_gateway.mcp import http_calls
from pml_gateway.working_directory import WorkingDirectory
from tests.mcp.test_transport import gateway_to
from tests.support.listening import listening
from tests.support.scripted_server import ScriptedServer, tool

pytestmark = pytest.mark.anyio

Answer = Callable[[Request, dict[str, Any]], Response]


def scripted(answer: Answer, seen: list[dict[str, Any]] | None = None) -> Any:
    """A handshake-era server that lists one tool and answers calls as a test says."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        message = json.loads(await request.body() or b"{}") if request.method == "POST" else {"method": request.method}
        if seen is not None:
            seen.append(message)
        match message.get("method"):
            case "initialize":
                result = {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "scripted", "version": "1"},
                }
                response = _json(message, {"result": result}, {"mcp-session-id": "s1"})
            case "tools/list":
                response = _json(message, {"result": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}})
            case "tools/call":
                response = answer(request, message)
            case "GET" if request.headers.get("last-event-id"):
                response = answer(request, message)
            case "GET":
                response = Response(status_code=405)
            case str(method) if method.startswith("server/"):
                response = Response(status_code=400)
            case _:
                response = Response(status_code=202)
        await response(scope, receive, send)

    return app


def _json(message: dict[str, Any], body: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    content = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), **body})
    return Response(content, media_type="application/json", headers=headers)


def _text(message: dict[str, Any], text: str) -> str:
    result = {"content": [{"type": "text", "text": text}]}
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})


def _events(*parts: str) -> Response:
    async def stream() -> Any:
        for part in parts:
            yield part.encode()

    return StreamingResponse(stream(), media_type="text/event-stream")


async def call(folder: Path, app: Any, options: CallOptions | None = None) -> dict[str, Any]:
    async with (
        listening(app) as port,
        gateway_to(folder, {"url": f"http://127.0.0.1:{port}/mcp"}) as (_, caller),
    ):
        return await caller.call(RequestScope(), "remote__t", {}, options or CallOptions())


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
async def test_the_answer_is_found_among_events_whichever_line_ends_they_use(tmp_path: Path, newline: str) -> None:
    def answer(_request: Request, message: dict[str, Any]) -> Response:
        log = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}})
        lines = [
            ": a comment",
            "",
            "event: message",
            f"data: {log}",
            "",
            "id: 7",
            f"data: {_text(message, 'grüezi')}",
            "",
            "",
        ]
        text = newline.join(lines)
        return _events(text[:40], text[40:90], text[90:])

    assert (await call(tmp_path, scripted(answer)))["content"][0]["text"] == "grüezi"


@pytest.mark.parametrize("idle_seconds", [0.0, http_calls.IDLE_SECONDS])
async def test_a_connection_is_used_again_until_the_server_might_close_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle_seconds: float
) -> None:
    monkeypatch.setattr(http_calls, "IDLE_SECONDS", idle_seconds)
    ports = []

    def answer(request: Request, message: dict[str, Any]) -> Response:
        assert request.client is not None
        ports.append(request.client.port)
        return Response(_text(message, "x"), media_type="application/json")

    async with (
        listening(scripted(answer)) as port,
        gateway_to(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as (_, caller),
    ):
        for _ in range(2):
            await caller.call(RequestScope(), "remote__t", {}, CallOptions())
    assert len(set(ports)) == (1 if idle_seconds else 2)
    # What uvicorn and Node do by default.
    assert http_calls.IDLE_SECONDS < 5


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_requests_go_through_the_proxy_of_their_client_and_not_through_that_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    async def proxy(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            asked.append(Request(scope, receive).headers["authorization"])
            await Response(status_code=502)(scope, receive, send)

    asked: list[str] = []
    entry = {"url": "http://intranet.invalid/mcp", "headers": {"Authorization": "${env:TOKEN}"}, "transport": transport}
    async with listening(proxy) as port:
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        environ = {"HTTP_PROXY": f"http://127.0.0.1:{port}", "TOKEN": "of-the-client"}
        async with gateway_to(tmp_path, entry, WorkingDirectory(tmp_path, environ)):
            assert set(asked) == {"of-the-client"}


@pytest.mark.parametrize("is_proxied", [True, False])
async def test_calls_take_the_way_of_their_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_proxied: bool
) -> None:
    def answer(_request: Request, message: dict[str, Any]) -> Response:
        return Response(_text(message, "arrived"), media_type="application/json")

    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with listening(scripted(answer)) as port:
        address = f"http://127.0.0.1:{port}"
        working_directory = WorkingDirectory(tmp_path, {"HTTP_PROXY": address} if is_proxied else {})
        url = "http://intranet.invalid/mcp" if is_proxied else f"{address}/mcp"
        async with gateway_to(tmp_path, {"url": url}, working_directory) as (_, caller):
            result = await caller.call(RequestScope(), "remote__t", {}, CallOptions())
    assert result["content"][0]["text"] == "arrived"


async def test_a_stream_that_ends_early_is_taken_up_again_at_its_last_event(tmp_path: Path) -> None:
    asked: list[str | None] = []
    first: list[dict[str, Any]] = []

    def answer(request: Request, message: dict[str, Any]) -> Response:
        asked.append(request.headers.get("last-event-id"))
        if request.method == "POST":
            first.append(message)
            return _events("id: e-1\nretry: 1\ndata:\n\n")
        return _events(f"id: e-2\ndata: {_text(first[0], 'resumed')}\n\n")

    seen: list[dict[str, Any]] = []
    assert (await call(tmp_path, scripted(answer, seen)))["content"][0]["text"] == "resumed"
    assert asked == [None, "e-1"]
    assert sum(message.get("method") == "tools/call" for message in seen) == 1


async def test_a_stream_that_just_ends_says_that_execution_is_unknown(tmp_path: Path) -> None:
    error = (await call(tmp_path, scripted(lambda *_: _events(": nothing\n\n"))))["structuredContent"]["error"]
    assert (error["code"], error["details"]["executed"]) == ("UPSTREAM_UNAVAILABLE", "unknown")


async def test_progress_events_are_relayed(tmp_path: Path) -> None:
    noted: list[tuple[float, float | None, str | None]] = []

    async def note(progress: float, total: float | None = None, message: str | None = None) -> None:
        noted.append((progress, total, message))

    def answer(_request: Request, message: dict[str, Any]) -> Response:
        token = message["params"]["_meta"]["progressToken"]
        params = {"progressToken": token, "progress": 1, "total": 2, "message": "half"}
        progress = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        return _events(f"data: {progress}\n\n", f"data: {_text(message, 'done')}\n\n")

    await call(tmp_path, scripted(answer), CallOptions(on_progress=note))
    assert noted == [(1, 2, "half")]


@pytest.mark.parametrize(
    ("response", "code", "words"),
    [
        (Response("not json", media_type="application/json"), "UPSTREAM_ERROR", "not JSON"),
        (Response("[]", media_type="application/json"), "UPSTREAM_ERROR", "no JSON-RPC"),
        (Response("{}", media_type="application/json"), "UPSTREAM_ERROR", "neither"),
        (Response("oops", 500), "UPSTREAM_UNAVAILABLE", "500"),
        (Response("no", 401), "UPSTREAM_AUTH", "401"),
    ],
)
async def test_answers_that_are_none_are_named_errors(
    tmp_path: Path, response: Response, code: str, words: str
) -> None:
    result = await call(tmp_path, scripted(lambda *_: response))
    error = result["structuredContent"]["error"]
    assert error["code"] == code
    assert words in error["message"]
    assert error["message"].startswith("remote: ")


async def test_an_error_of_the_server_is_raised_as_it_was(tmp_path: Path) -> None:
    answer = _json({"id": 1}, {"error": {"code": -32000, "message": "quota", "data": {"n": 1}}})
    with pytest.raises(ExceptionGroup) as raised:
        await call(tmp_path, scripted(lambda *_: answer))
    error = innermost(raised.value)
    assert isinstance(error, MCPError)
    assert (error.code, error.message, error.error.data) == (-32000, "quota", {"n": 1})


async def test_a_redirect_is_left_to_the_sdk_and_followed_within_the_origin(tmp_path: Path) -> None:
    def answer(request: Request, message: dict[str, Any]) -> Response:
        if request.url.path == "/mcp":
            return RedirectResponse("/elsewhere", 307)
        return Response(_text(message, "elsewhere"), media_type="application/json")

    assert (await call(tmp_path, scripted(answer)))["content"][0]["text"] == "elsewhere"


async def test_a_cancelled_call_is_cancelled_at_servers_of_both_eras(tmp_path: Path) -> None:
    for era in ("modern", "handshake"):
        started, cancelled = anyio.Event(), anyio.Event()

        async def wait(
            _ctx: Any, _call: Any, started: anyio.Event = started, cancelled: anyio.Event = cancelled
        ) -> dict[str, Any]:
            started.set()
            try:
                await anyio.sleep_forever()
            finally:
                cancelled.set()
            raise AssertionError

        slow = ScriptedServer([tool("t")], wait, modern=None if era == "modern" else False)
        async with (
            listening(slow.http_app()) as port,
            gateway_to(tmp_path / era, {"url": f"http://127.0.0.1:{port}/mcp"}) as (gateway, caller),
            anyio.create_task_group() as tasks,
        ):
            listed = gateway.pool.upstreams["remote"].last_listed
            assert listed is not None
            assert listed.era == era
            tasks.start_soon(caller.call, RequestScope(), "remote__t", {}, CallOptions())
            with anyio.fail_after(30):
                await started.wait()
            tasks.cancel_scope.cancel()
            with anyio.fail_after(10, shield=True):
                await cancelled.wait()
