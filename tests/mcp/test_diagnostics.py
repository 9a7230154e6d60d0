"""Servers that cannot be connected, or answer with errors that are not JSON-RPC: the reason is told in words."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError

from pml_gateway.config.settings import Settings
from pml_gateway.errors import GatewayError
from pml_gateway.gateway.calling import Caller
from pml_gateway.gateway.gateway import open_gateway
from pml_gateway.gateway.request import CallOptions, RequestScope
from pml_gateway.mcp.refusals import seconds_to_wait
from pml_gateway.reports.status import gateway_status
from tests.support.forgetful_server import REFUSALS, Refusal, forgetful
from tests.support.memory import paths_in
from tests.support.threaded_http import PlainHandler, threaded

pytestmark = [pytest.mark.anyio, pytest.mark.field("B8")]


@contextmanager
def answering(
    status: int, body: str, content_type: str = "text/plain", headers: dict[str, str] | None = None
) -> Iterator[str]:
    """Serve the same answer to every request; yield the URL."""

    class Handler(PlainHandler):
        def get(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.respond(status, body.encode(), content_type, headers)

        def post(self) -> None:
            self.get()

        def delete(self) -> None:
            self.get()

    with threaded(Handler) as url:
        yield url


async def failure(folder: Path, entry: dict[str, Any]) -> tuple[GatewayError, str]:
    """Return why a server cannot be connected, and how `pml status` tells it."""
    settings = Settings.model_validate({"servers": {"up": entry}, "upstreams": {"connect_timeout": 8}})
    async with open_gateway(settings, paths_in(folder), identity="t") as gateway:
        with anyio.fail_after(40):
            await gateway.refresh(30)
        error = gateway.pool.upstreams["up"].connector.last_error
        assert error is not None
        return error, gateway_status(gateway)["upstreams"][0]["error"]


PAGE = "<html><head><style>p {color: red}</style><title>Sign in</title></head><body><p>Please log in</p></body></html>"


@pytest.mark.parametrize("transport", ["http", "sse"])
@pytest.mark.parametrize(
    ("status", "body", "content_type", "words"),
    [
        (400, "tenant is missing", "text/plain", ["HTTP 400", "tenant is missing"]),
        (404, PAGE, "text/html", ["HTTP 404", "Sign in Please log in"]),
        (405, "", "text/plain", ["HTTP 405"]),
        (410, '{"detail": "moved to v2"}', "application/json", ["HTTP 410", "moved to v2"]),
        (418, "x" * 5000, "text/plain", ["HTTP 418", "xxx"]),
        (422, '{"error": "no org"}', "application/json", ["HTTP 422", "no org"]),
        (500, "boom", "text/plain", ["HTTP 500", "boom"]),
        (502, "<h1>Bad gateway</h1>", "text/html", ["HTTP 502", "Bad gateway"]),
        (
            400,
            '{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no org"}}',
            "application/json",
            ["400", "no org"],
        ),
        (200, PAGE, "text/html", ["text/html", "Sign in"]),
    ],
)
async def test_an_answer_while_connecting_is_told_with_its_status_and_its_words(
    tmp_path: Path, transport: str, status: int, body: str, content_type: str, words: list[str]
) -> None:
    with answering(status, body, content_type) as url:
        error, told = await failure(tmp_path, {"url": url, "transport": transport})
    for word in words:
        assert word in error.message
        assert word in told
    assert "500 or above" not in error.message
    assert "<" not in error.message
    assert len(error.message) < 450


async def test_what_a_body_says_is_told_without_secrets_and_control_characters(tmp_path: Path) -> None:
    body = "bad token: api_key=sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789 \x1b[31mred"
    with answering(400, body) as url:
        error, _ = await failure(tmp_path, {"url": url})
    assert "sk-ant" not in error.message
    assert "\x1b" not in error.message


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("7", 7, 7),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("1.5", 1.5, 1.5),
        ("99999999", 86400, 86400),
    ],
)
def test_a_pause_is_read_as_seconds_or_as_a_date(header: str, least: float, most: float) -> None:
    seconds = seconds_to_wait(header)
    assert seconds is not None
    assert least <= seconds <= most


def test_a_pause_until_a_date_in_an_hour_is_an_hour() -> None:
    seconds = seconds_to_wait(format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True))
    assert seconds is not None
    assert 3000 <= seconds <= 3600


@pytest.mark.parametrize("header", ["", "soon", "nan", "-"])
def test_a_pause_that_says_nothing_is_none(header: str) -> None:
    assert seconds_to_wait(header) is None


async def test_a_server_that_limits_requests_is_asked_again_after_its_pause(tmp_path: Path) -> None:
    with answering(429, "slow down", headers={"retry-after": "90"}) as url:
        error, told = await failure(tmp_path, {"url": url})
    assert error.details["retry_after_seconds"] == 90
    assert "wait 90 s" in told


async def test_a_call_that_is_limited_keeps_the_pause(tmp_path: Path) -> None:
    with forgetful(REFUSALS["ts_404"]) as server:
        server.refused["tools/call"] = Refusal(429, "slow down", "text/plain", {"retry-after": "30"})
        settings = Settings.model_validate({"servers": {"up": {"url": server.url}}})
        async with open_gateway(settings, paths_in(tmp_path), identity="t") as gateway:
            with anyio.fail_after(30):
                await gateway.refresh(30)
                result = await Caller(gateway).call(RequestScope(), "up__t", {}, CallOptions())
    told = result["structuredContent"]["error"]
    assert told["details"]["retry_after_seconds"] == 30
    assert "429" in told["message"]
    assert "slow down" in told["message"]


@pytest.mark.parametrize("transport", ["http", "sse"])
@pytest.mark.parametrize("status", [429, 503])
async def test_a_call_says_how_long_a_server_that_has_listed_nothing_wants_to_rest(
    tmp_path: Path, transport: str, status: int
) -> None:
    with answering(status, "slow down", headers={"retry-after": "90"}) as url:
        settings = Settings.model_validate({"servers": {"up": {"url": url, "transport": transport}}})
        async with open_gateway(settings, paths_in(tmp_path), identity="t") as gateway:
            with anyio.fail_after(30):
                await gateway.refresh(30)
                result = await Caller(gateway).call(RequestScope(), "up__t", {}, CallOptions())
    details = result["structuredContent"]["error"]["details"]
    assert details["http_status"] == status
    assert details["executed"] == "no"
    assert 60 < details["retry_after_seconds"] <= 90


@pytest.mark.parametrize(
    ("url", "words", "hint"),
    [
        ("http://no-such-host.invalid/mcp", "the name no-such-host.invalid is not known", "DNS"),
        ("http://127.0.0.1:1/mcp", "connection was refused", "running"),
    ],
)
@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_server_that_cannot_be_reached_is_told_apart(
    tmp_path: Path, transport: str, url: str, words: str, hint: str
) -> None:
    error, told = await failure(tmp_path, {"url": url, "transport": transport})
    assert words in error.message
    assert words in told
    assert hint in error.hint


async def test_https_to_a_server_of_http_is_a_failure_of_tls(tmp_path: Path) -> None:
    with answering(200, "fine") as url:
        error, _ = await failure(tmp_path, {"url": url.replace("http:", "https:")})
    assert "TLS with 127.0.0.1 failed" in error.message


async def test_a_redirect_to_a_login_page_names_where_it_leads(tmp_path: Path) -> None:
    headers = {"location": "https://login.example/authorize?token=abcdef0123456789"}
    with answering(302, "", headers=headers) as url:
        error, _ = await failure(tmp_path, {"url": url})
    assert "redirects requests to https://login.example/authorize" in error.message
    assert "abcdef" not in error.message


async def test_an_sse_endpoint_on_another_origin_is_told(tmp_path: Path) -> None:
    with answering(200, "event: endpoint\ndata: https://elsewhere.example/messages\n\n", "text/event-stream") as url:
        error, _ = await failure(tmp_path, {"url": url, "transport": "sse"})
    assert "SSE endpoint on another origin (https://elsewhere.example)" in error.message


STDIO = """
import json, sys
given = json.loads(sys.argv[1])
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    rest = given.get(request["method"], {"result": {}})
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **rest}), flush=True)
"""


def process(**answers: Any) -> dict[str, Any]:
    info = {"name": "up", "version": "1"}
    sound = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    known = {
        "initialize": {"result": sound},
        "tools/list": {"result": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}},
        **{name.replace("_", "/"): answer for name, answer in answers.items()},
    }
    return {"command": sys.executable, "args": ["-c", STDIO, json.dumps(known)]}


@pytest.mark.parametrize(
    ("result", "field"),
    [
        ({"protocolVersion": "2025-11-25", "capabilities": {}}, "serverInfo"),
        ({"capabilities": {}, "serverInfo": {"name": "a", "version": "1"}}, "protocolVersion"),
        ({"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"version": "1"}}, "serverInfo.name"),
        (
            {"protocolVersion": "2025-11-25", "capabilities": [], "serverInfo": {"name": "a", "version": "1"}},
            "capabilities",
        ),
    ],
)
async def test_an_answer_to_initialize_that_is_not_valid_names_the_field(
    tmp_path: Path, result: dict[str, Any], field: str
) -> None:
    error, _ = await failure(tmp_path, process(initialize={"result": result}))
    assert field in error.message


ERRORS = [
    ("boom", "boom"),
    (["a", 1], '["a", 1]'),
    ({"message": "boom"}, "boom"),
    ({"code": "E1", "message": "boom"}, "boom"),
    (7, "7"),
]


@pytest.mark.parametrize(("error", "words"), ERRORS, ids=str)
async def test_an_error_that_is_no_object_keeps_its_text(tmp_path: Path, error: Any, words: str) -> None:
    with forgetful(REFUSALS["ts_404"]) as server:
        server.answers["tools/call"] = server.answers["prompts/get"] = {"error": error}
        servers = {"http": {"url": server.url}, "stdio": process(tools_call={"error": error})}
        settings = Settings.model_validate({"servers": servers})
        async with open_gateway(settings, paths_in(tmp_path), identity="t") as gateway:
            with anyio.fail_after(40):
                await gateway.refresh(30)
                for name in servers:
                    with pytest.raises(MCPError) as raised:
                        await Caller(gateway).call(RequestScope(), f"{name}__t", {}, CallOptions())
                    assert words in raised.value.error.message
                with pytest.raises(GatewayError) as told:
                    await gateway.pool.upstreams["http"].request("prompts/get", {"name": "p"})
                assert words in told.value.message


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (403, {}),
        (403, {"Authorization": "Bearer wrong"}),
        (401, {"Authorization": "Bearer wrong"}),
        (401, {"X-Key": "a"}),
    ],
)
async def test_a_refusal_of_credentials_quotes_the_server(tmp_path: Path, status: int, headers: dict[str, str]) -> None:
    with answering(status, '{"error":"org acme has no access"}', "application/json") as url:
        error, told = await failure(tmp_path, {"url": url, "headers": headers})
    assert f"HTTP {status}" in error.message
    assert "org acme has no access" in error.message
    assert "org acme has no access" in told
