"""A call that reports progress outlives its time limit, on every way."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.field.stand import Era, FieldClient, Way, gateway_client
from tests.support import parrot

pytestmark = [pytest.mark.slow, pytest.mark.field("B4")]

CALL_TIMEOUT = 3.0


@pytest.fixture(scope="module")
def client(way: Way, era: Era, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FieldClient]:
    entry = {"command": sys.executable, "args": [parrot.__file__]}
    settings = {
        "servers": {"busy": entry, "endless": {**entry, "call_timeout_total": 3.5}},
        "naming": {"prefix": "always"},
        "upstreams": {"call_timeout": CALL_TIMEOUT},
    }
    with gateway_client(way, era, tmp_path_factory.mktemp("home"), settings) as client:
        client.tools("busy__work", "endless__work")
        yield client


def test_progress_moves_the_deadline_of_a_client_that_did_not_ask_for_it(client: FieldClient) -> None:
    told = len(client.notifications)
    assert client.call("busy__work", steps=10, pause=0.4)["content"] == [{"type": "text", "text": "done"}]
    assert not [each for each in client.notifications[told:] if each["method"] == "notifications/progress"]


def test_a_client_that_asks_for_progress_gets_it(client: FieldClient, way: Way) -> None:
    told = len(client.notifications)
    params = {"name": "busy__work", "arguments": {"steps": 5, "pause": 0.4}, "_meta": {"progressToken": "mine"}}
    assert "content" in client.result("tools/call", params)
    if way != "http":
        progress = [each["params"] for each in client.notifications[told:] if "progress" in each["method"]]
        assert [each["progress"] for each in progress if each["progressToken"] == "mine"] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_the_limit_for_the_whole_call_holds(client: FieldClient) -> None:
    result = client.call("endless__work", steps=20, pause=0.4)
    assert result["structuredContent"]["error"]["code"] == "TIMEOUT"
    assert "call_timeout_total" in result["structuredContent"]["error"]["hint"]


def test_silence_ends_at_the_limit(client: FieldClient) -> None:
    result = client.call("busy__work", steps=1, pause=5)
    assert result["structuredContent"]["error"]["code"] == "TIMEOUT"
