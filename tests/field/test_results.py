"""Results with faults of form, on every way: each brings what it carries."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest

from tests.field.stand import Era, FieldClient, Way, gateway_client
from tests.results.test_repair import CASES, UNSTRUCTURED
from tests.support import parrot
from tests.support.listening import listening_apart

pytestmark = [pytest.mark.slow, pytest.mark.field("B3")]


NAMELESS = [fault for fault, (_, blocks, _) in CASES.items() if '"uri"' not in json.dumps(blocks)]
"""Without those that name resources: of several servers, each has the gateway's own URIs."""


@pytest.fixture(scope="module")
def client(way: Way, era: Era, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FieldClient]:
    with listening_apart(parrot.http_app(events=True)) as port:
        servers = {
            "stdio": {"command": sys.executable, "args": [parrot.__file__]},
            "http": {"url": f"http://127.0.0.1:{port}/mcp"},
        }
        settings = {"servers": servers, "naming": {"prefix": "always"}}
        with gateway_client(way, era, tmp_path_factory.mktemp("home"), settings) as client:
            client.tools("stdio__say", "http__say")
            yield client


@pytest.mark.parametrize("server", ["stdio", "http"])
@pytest.mark.parametrize("fault", NAMELESS)
def test_a_fault_of_form_costs_nothing(client: FieldClient, server: str, fault: str) -> None:
    said, blocks, structured = CASES[fault]
    result = client.call(f"{server}__say", result=said)
    assert (result["content"], result.get("structuredContent")) == (blocks, structured)


@pytest.mark.parametrize("fault", UNSTRUCTURED)
def test_structured_content_that_is_no_object_reaches_every_client(client: FieldClient, era: Era, fault: str) -> None:
    said, blocks = UNSTRUCTURED[fault]
    result = client.call("stdio__say", result=said)
    if era == "2025-11-25":
        assert (result["content"], "structuredContent" in result) == (blocks, False)
    else:
        assert result["structuredContent"] == said["structuredContent"]
