"""Messages as careless servers write them, on every way: none costs the server or its result."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.field.stand import Era, FieldClient, Way, gateway_client
from tests.mcp.test_faulty_messages import EVERYWHERE, ON_STDOUT
from tests.support import parrot
from tests.support.listening import listening_apart

pytestmark = [pytest.mark.slow, pytest.mark.field("B9")]


@pytest.fixture(scope="module")
def client(way: Way, era: Era, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FieldClient]:
    with listening_apart(parrot.http_app()) as port:
        servers = {
            "stdio": {"command": sys.executable, "args": [parrot.__file__]},
            "http": {"url": f"http://127.0.0.1:{port}/mcp"},
        }
        settings = {"servers": servers, "naming": {"prefix": "always"}}
        with gateway_client(way, era, tmp_path_factory.mktemp("home"), settings) as client:
            client.tools("stdio__write", "http__write")
            yield client


@pytest.mark.parametrize("fault", [*EVERYWHERE, *ON_STDOUT])
def test_a_faulty_message_on_stdout_is_understood(client: FieldClient, fault: str) -> None:
    raw, expected = {**EVERYWHERE, **ON_STDOUT}[fault]
    assert client.call("stdio__write", raw=f"{raw}\n")["content"] == [{"type": "text", "text": expected}]


@pytest.mark.parametrize("fault", EVERYWHERE)
def test_a_faulty_body_is_understood(client: FieldClient, fault: str) -> None:
    raw, expected = EVERYWHERE[fault]
    assert client.call("http__write", raw=raw)["content"] == [{"type": "text", "text": expected}]
