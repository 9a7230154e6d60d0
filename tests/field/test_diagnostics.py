"""Servers that cannot be connected, or answer with errors of no known form, on every way: calls are told why."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.field.stand import Era, FieldClient, Way, gateway_client
from tests.mcp.test_diagnostics import ERRORS, PAGE, answering, process
from tests.support.forgetful_server import REFUSALS, Refusal, forgetful

pytestmark = [pytest.mark.slow, pytest.mark.field("B8")]

SETTLED_SECONDS = 60
KEY = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"
LONG = "tenant is missing; " + "x" * 500
SOUND = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "a", "version": "1"}}
ENDPOINT = "event: endpoint\ndata: https://elsewhere.example/messages\n\n"


@dataclass(frozen=True)
class Answer:
    """The same answer to every request, and words of the failure that it is."""

    status: int
    body: str
    words: tuple[str, ...]
    content_type: str = "text/plain"
    headers: dict[str, str] = field(default_factory=dict)
    transport: str = "http"


ANSWERS = {
    "bad_request": Answer(400, "tenant is missing", ("HTTP 400", "tenant is missing")),
    "page": Answer(404, PAGE, ("HTTP 404", "Sign in Please log in"), "text/html"),
    "silent": Answer(405, "", ("HTTP 405",)),
    "json": Answer(422, '{"error":"no org"}', ("HTTP 422", "no org"), "application/json"),
    "gone": Answer(410, '{"detail":"moved to v2"}', ("HTTP 410", "moved to v2"), "application/json"),
    "forbidden": Answer(403, "org acme has no access", ("HTTP 403", "org acme has no access")),
    "long": Answer(418, LONG, ("HTTP 418", LONG[:290])),
    "secret": Answer(400, f"bad token: api_key={KEY} was revoked", ("HTTP 400", "bad token", "was revoked")),
    "failed": Answer(500, "boom", ("HTTP 500", "boom")),
    "limited": Answer(429, "slow down", ("HTTP 429", "slow down", "wait 90 s"), headers={"retry-after": "90"}),
    "elsewhere": Answer(302, "", ("https://login.example/in",), headers={"location": "https://login.example/in"}),
    "sse_bad_request": Answer(400, "tenant is missing", ("HTTP 400", "tenant is missing"), transport="sse"),
    "sse_limited": Answer(429, "slow down", ("429", "wait 90 s"), headers={"retry-after": "90"}, transport="sse"),
    "sse_origin": Answer(200, ENDPOINT, ("another origin", "elsewhere.example"), "text/event-stream", transport="sse"),
}
UNREACHABLE = {
    "no_host": ("http://no-such-host.invalid/mcp", ("the name no-such-host.invalid is not known",)),
    "no_port": ("http://127.0.0.1:1/mcp", ("connection was refused",)),
}
INITIALIZE = {
    "no_server_info": ({"protocolVersion": "2025-11-25", "capabilities": {}}, "serverInfo"),
    "no_version": ({key: value for key, value in SOUND.items() if key != "protocolVersion"}, "protocolVersion"),
    "no_name": ({**SOUND, "serverInfo": {"version": "1"}}, "serverInfo.name"),
    "list_of_capabilities": ({**SOUND, "capabilities": []}, "capabilities"),
}
FAILING = {
    **{name: answer.words for name, answer in ANSWERS.items()},
    **{name: words for name, (_, words) in UNREACHABLE.items()},
    **{name: (words,) for name, (_, words) in INITIALIZE.items()},
}


@pytest.fixture(scope="module")
def client(way: Way, era: Era, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FieldClient]:
    servers: dict[str, dict[str, Any]] = {name: {"url": url} for name, (url, _) in UNREACHABLE.items()}
    servers |= {name: process(initialize={"result": result}) for name, (result, _) in INITIALIZE.items()}
    servers |= {f"error_{at}": process(tools_call={"error": error}) for at, (error, _) in enumerate(ERRORS)}
    with ExitStack() as stack:
        for name, answer in ANSWERS.items():
            url = stack.enter_context(answering(answer.status, answer.body, answer.content_type, answer.headers))
            servers[name] = {"url": url, "transport": answer.transport}
        for at, (error, _) in enumerate(ERRORS):
            sound = stack.enter_context(forgetful(REFUSALS["ts_404"]))
            sound.answers["tools/call"] = {"error": error}
            servers[f"http_error_{at}"] = {"url": sound.url}
        limited = stack.enter_context(forgetful(REFUSALS["ts_404"]))
        limited.refused["tools/call"] = Refusal(429, "slow down", "text/plain", {"retry-after": "30"})
        servers["limits_calls"] = {"url": limited.url}
        settings = {"servers": servers, "naming": {"prefix": "always"}}
        yield stack.enter_context(gateway_client(way, era, tmp_path_factory.mktemp("home"), settings))


def failure(client: FieldClient, server: str) -> dict[str, Any]:
    """Call a tool of a server that has listed none, and return the error once it is not starting any more."""
    end = time.monotonic() + SETTLED_SECONDS
    while True:
        result = client.call(f"{server}__t")
        error: dict[str, Any] = result["structuredContent"]["error"]
        if "starting" not in error["message"] or time.monotonic() > end:
            return error
        threading.Event().wait(0.1)


@pytest.mark.parametrize("server", FAILING)
def test_a_call_is_told_why_its_server_cannot_be_connected(client: FieldClient, server: str) -> None:
    error = failure(client, server)
    for word in FAILING[server]:
        assert word in error["message"]
    assert "500 or above" not in error["message"]
    assert KEY not in str(error)
    assert len(error["message"]) < 500


def test_a_failure_of_dns_is_called_one(client: FieldClient) -> None:
    assert "DNS" in failure(client, "no_host")["hint"]


@pytest.mark.parametrize("server", ["limited", "sse_limited"])
def test_the_pause_that_a_server_asks_for_while_connecting_is_told(client: FieldClient, server: str) -> None:
    assert 0 < failure(client, server)["details"]["retry_after_seconds"] <= 90


def test_the_pause_that_a_server_asks_for_in_a_call_is_told(client: FieldClient) -> None:
    client.tools("limits_calls__t")
    error = failure(client, "limits_calls")
    assert error["details"]["retry_after_seconds"] == 30
    assert "429" in error["message"]


@pytest.mark.parametrize("transport", ["", "http_"])
@pytest.mark.parametrize("at", range(len(ERRORS)))
def test_an_error_of_no_known_form_keeps_its_text(client: FieldClient, transport: str, at: int) -> None:
    server = f"{transport}error_{at}"
    client.tools(f"{server}__t")
    response = client.send("tools/call", {"name": f"{server}__t", "arguments": {}})
    assert ERRORS[at][1] in response["error"]["message"]
