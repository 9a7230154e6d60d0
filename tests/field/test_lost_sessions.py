"""Servers that forget their sessions, on every way: the very next call succeeds, and nothing is done twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.field.stand import Era, FieldClient, Way, gateway_client
from tests.support.forgetful_server import REFUSALS, ForgetfulServer, forgetful

pytestmark = [pytest.mark.slow, pytest.mark.field("B2")]

UNCERTAIN = "failed_500"
"""A refusal that leaves open whether the call was executed."""
RENEWED = [
    "ts_404",
    "ts_example_400",
    "spring_400",
    "rust_401",
    "rust_422",
    "conflict",
    "gone",
    "precondition",
    "silent_400",
    "forbidden",
    "json_200",
    "json_200_null",
    "event_200",
    "event_200_null",
]
OWN_WORDS = {
    "result": {"content": [{"type": "text", "text": "browser session 7 not found"}], "isError": True},
    "error": {"code": -32050, "message": "browser session 7 not found"},
}
"""Answers of a tool that speak of sessions of its own."""


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, ForgetfulServer]]:
    with ExitStack() as stack:
        servers = {name: stack.enter_context(forgetful(REFUSALS[name])) for name in (*RENEWED, UNCERTAIN)}
        for name, server in servers.items():
            # Of prompts that are called alike, the one that is listed first keeps its bare name.
            server.prompt = f"prompt_of_{name}"
        yield servers


@pytest.fixture(scope="module")
def client(
    way: Way, era: Era, servers: dict[str, ForgetfulServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FieldClient]:
    settings = {"servers": {name: {"url": server.url} for name, server in servers.items()}}
    with gateway_client(way, era, tmp_path_factory.mktemp("home"), settings) as client:
        client.tools(*(f"{name}__t" for name in servers))
        yield client


@pytest.mark.parametrize("name", RENEWED)
def test_a_call_in_a_forgotten_session_succeeds_at_once(
    client: FieldClient, servers: dict[str, ForgetfulServer], name: str
) -> None:
    server = servers[name]
    server.forget()
    server.executed.clear()
    assert client.call(f"{name}__t")["content"] == [{"type": "text", "text": "fine"}]
    assert server.executed.count("tools/call") == 1


@pytest.mark.parametrize("name", ["ts_example_400", "rust_401", "gone", "event_200"])
def test_a_prompt_in_a_forgotten_session_is_got_at_once(
    client: FieldClient, servers: dict[str, ForgetfulServer], name: str
) -> None:
    client.prompts(servers[name].prompt)
    servers[name].forget()
    prompt = client.result("prompts/get", {"name": servers[name].prompt})
    assert prompt["messages"][0]["content"]["text"] == "fine"


def test_a_call_that_may_have_been_executed_is_left_to_the_client(
    client: FieldClient, servers: dict[str, ForgetfulServer]
) -> None:
    servers[UNCERTAIN].forget()
    failed = client.call(f"{UNCERTAIN}__t")
    assert failed["isError"]
    assert client.call(f"{UNCERTAIN}__t")["content"][0]["text"] == "fine"


@pytest.mark.parametrize("kind", OWN_WORDS)
def test_a_tool_that_speaks_of_a_session_of_its_own_is_called_once(
    client: FieldClient, servers: dict[str, ForgetfulServer], kind: str
) -> None:
    server = servers["ts_404"]
    server.executed.clear()
    server.answers["tools/call"] = {kind: OWN_WORDS[kind]}
    try:
        response = client.send("tools/call", {"name": "ts_404__t", "arguments": {}})
    finally:
        del server.answers["tools/call"]
    assert "browser session 7 not found" in str(response)
    assert server.executed.count("tools/call") == 1
