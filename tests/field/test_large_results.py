"""Large results on every way: each arrives as its server gave it, whatever makes it large."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.field.canned import Canned, entries
from tests.field.stand import Era, FieldClient, Way, gateway_client

pytestmark = [pytest.mark.slow, pytest.mark.field("A8")]

SIZE = 600_000
IMAGE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * (SIZE // 256)).decode()


def text(value: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": value}]


ROWS = [{"id": number, "of": {"name": f"row {number}", "tags": ["a", None]}} for number in range(SIZE // 60)]

RESULTS: dict[str, dict[str, Any]] = {
    "text": {"content": text("x" * SIZE)},
    "text of escapes": {"content": text('\\"\n\r\t\u2028\x7f' * (SIZE // 12))},
    "text in other scripts": {"content": text("価格は四百円です 😀 ü\n" * (SIZE // 40))},
    "image": {"content": [{"type": "image", "data": IMAGE, "mimeType": "image/png"}]},
    "rows": {"content": text("rows"), "structuredContent": {"rows": ROWS}},
    "members": {"content": [], "structuredContent": {f"m{number}": [number] for number in range(SIZE // 15)}},
    "nested": {"content": text("x"), "structuredContent": {"a": {"b": {"c": [{"d": ROWS}]}}}},
    "blocks": {"content": [block for number in range(SIZE // 40) for block in text(f"block {number}")]},
    "failure": {"content": text("no " * (SIZE // 3)), "isError": True},
    "text and rows": {"content": text(json.dumps({"rows": ROWS})), "structuredContent": {"rows": ROWS}},
}
"""Results that arrive as they are."""

REPAIRED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "image without type": (
        {"content": [{"type": "image", "data": IMAGE}]},
        {"content": [{"type": "image", "data": IMAGE, "mimeType": "image/png"}]},
    ),
    "empty annotations": (
        {"content": [{"type": "text", "text": "ü😀\n" * (SIZE // 8), "annotations": None}]},
        {"content": text("ü😀\n" * (SIZE // 8))},
    ),
    "half a character": (
        {"content": text("x" * SIZE + "\ud800")},
        {"content": text("x" * SIZE + "\ufffd")},
    ),
    "no content": (
        {"structuredContent": {"rows": ROWS}},
        {
            "content": text(json.dumps({"rows": ROWS}, separators=(",", ":"))),
            "structuredContent": {"rows": ROWS},
        },
    ),
}
"""Results with a fault of form, and how they arrive."""

PROMPT = {"messages": [{"role": "user", "content": {"type": "text", "text": "ask\n" * (SIZE // 4)}}]}
RESOURCES = {
    "doc://text": {"uri": "doc://text", "mimeType": "text/plain", "text": "ü\n" * (SIZE // 3)},
    "doc://bytes": {"uri": "doc://bytes", "mimeType": "image/png", "blob": IMAGE},
}
GIVEN = {**RESULTS, **{name: given for name, (given, _) in REPAIRED.items()}}


def tool_of(kind: str) -> str:
    return kind.replace(" ", "_")


def indented(result: dict[str, Any]) -> bytes:
    """A message of several lines, as some servers answer over HTTP."""
    return b'{\r\n"jsonrpc": "2.0", "id": %ID%,\n"result": ' + json.dumps(result, indent=1).encode() + b"\n}\n"


@pytest.fixture(scope="module")
def client(way: Way, era: Era, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FieldClient]:
    answers: dict[str, Any] = {f"tools/call:{tool_of(kind)}": result for kind, result in GIVEN.items()}
    answers |= {
        "prompts/list": {"prompts": [{"name": "large"}]},
        "prompts/get": PROMPT,
        "resources/list": {"resources": [{"uri": uri, "name": uri} for uri in RESOURCES]},
        **{f"resources/read:{uri}": {"contents": [contents]} for uri, contents in RESOURCES.items()},
    }
    tools = [{"name": tool_of(kind)} for kind in GIVEN]
    offered: dict[str, Any] = {"tools": {}, "prompts": {}, "resources": {}}
    lines = {f"tools/call:{tool_of(kind)}": indented(result) for kind, result in RESULTS.items()}
    servers = {
        "stdio": Canned(tools, answers, offered),
        "http": Canned(tools, answers, transport="http"),
        "lines": Canned(tools, lines, transport="http"),
    }
    home = tmp_path_factory.mktemp("home")
    with entries(servers, home) as configured:
        settings = {"servers": configured, "naming": {"prefix": "always"}}
        with gateway_client(way, era, home, settings) as client:
            client.tools("stdio__text", "http__text", "lines__text")
            yield client


@pytest.mark.parametrize("server", ["stdio", "http", "lines"])
@pytest.mark.parametrize("kind", RESULTS)
def test_a_large_result_arrives_as_it_is(client: FieldClient, server: str, kind: str) -> None:
    result = client.call(f"{server}__{tool_of(kind)}")
    assert {key: result.get(key) for key in RESULTS[kind]} == RESULTS[kind]


@pytest.mark.parametrize("server", ["stdio", "http"])
@pytest.mark.parametrize("kind", REPAIRED)
def test_a_large_result_with_a_fault_arrives_without_it(client: FieldClient, server: str, kind: str) -> None:
    _, expected = REPAIRED[kind]
    result = client.call(f"{server}__{tool_of(kind)}")
    assert {key: result.get(key) for key in expected} == expected


def test_a_large_prompt_arrives_as_it_is(client: FieldClient) -> None:
    (name,) = client.prompts()
    assert client.result("prompts/get", {"name": name})["messages"] == PROMPT["messages"]


@pytest.mark.parametrize("uri", RESOURCES)
def test_a_large_resource_arrives_as_it_is(client: FieldClient, uri: str) -> None:
    assert client.result("resources/read", {"uri": uri})["contents"] == [RESOURCES[uri]]


def test_lists_follow_large_results(client: FieldClient) -> None:
    for _ in range(3):
        client.call("stdio__text")
        assert "stdio__text" in client.tools()
