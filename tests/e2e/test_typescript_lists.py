"""A client of the official TypeScript SDK, which compiles every output schema it is told of, gets whole lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.field.canned import Canned, entries
from tests.field.stand import ERAS
from tests.field.test_pages import SERVERS as PAGED
from tests.field.test_pages import expected_of
from tests.field.test_schemas import KEPT, OUTPUTS

from .install import Installation
from .typescript import Over, TypeScriptClient, call, gateway_target

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STRING = {"type": "string"}
MORE: dict[str, dict[str, Any]] = {
    "relative": {"properties": {"s": {"$ref": "other.json#/x"}}},
    "twice_the_id": {"properties": {"s": {"$id": "urn:x:same", **STRING}, "t": {"$id": "urn:x:same", **STRING}}},
    "around": {
        "properties": {"s": {"$ref": "#/$defs/A"}},
        "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}},
    },
    "relative_id": {
        "$id": "shared.json",
        "properties": {"s": {"$ref": "shared.json#/$defs/S"}},
        "$defs": {"S": STRING},
    },
}
SCHEMAS = {**OUTPUTS, **MORE}
SAID = {"s": "x"}
TWINS = ("one", "two")
"""Servers with the same tools, and so with the same root `$id`."""
DANGLING = ["dangling", "remote", "circular", "relative", "around"]
"""Schemas that refer to nothing, which are left out."""


def schema_server() -> Canned:
    answer = {"content": [{"type": "text", "text": "fine"}], "structuredContent": SAID}
    tools = [{"name": name, "outputSchema": {"type": "object", **schema}} for name, schema in SCHEMAS.items()]
    return Canned(tools=tools, answers={f"tools/call:{name}": answer for name in SCHEMAS})


@dataclass
class Seen:
    """Tools that a client was told of, in the order in which they came, and its results by tool."""

    tools: dict[str, dict[str, Any]]
    names: list[str]
    results: dict[str, dict[str, Any]]


def seen(client: TypeScriptClient, target: dict[str, Any], expected: Sequence[str], called: Sequence[str]) -> Seen:
    steps = [{"do": "listEveryTool", "with": [*expected]}, *(call(name) for name in called)]
    listed, *results = client.run(target, steps)["results"]
    assert "error" not in listed, listed
    tools = listed["result"]["tools"]
    return Seen(
        {tool["name"]: tool for tool in tools},
        [tool["name"] for tool in tools],
        dict(zip(called, results, strict=True)),
    )


@pytest.fixture(scope="module", params=["stdio", "bridge", "http"])
def over(request: pytest.FixtureRequest) -> Over:
    over: Over = request.param
    return over


@pytest.fixture(scope="module", params=ERAS)
def client(request: pytest.FixtureRequest, installation: Installation) -> TypeScriptClient:
    return TypeScriptClient(installation, era=request.param)


def settings(servers: Mapping[str, Any]) -> dict[str, Any]:
    return {"gateway": {"tools_exposure": "full_proxy"}, "naming": {"prefix": "always"}, "servers": {**servers}}


@pytest.fixture(scope="module")
def compiled(over: Over, client: TypeScriptClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    names = [f"{server}__{name}" for server in TWINS for name in SCHEMAS]
    with (
        entries(dict.fromkeys(TWINS, schema_server()), tmp_path_factory.mktemp("servers")) as servers,
        gateway_target(over, tmp_path_factory.mktemp("home"), settings(servers)) as target,
    ):
        yield seen(client, target, names, names)


@pytest.mark.field("B1")
@pytest.mark.parametrize("server", TWINS)
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_that_ajv_does_not_compile_costs_no_list_and_no_result(compiled: Seen, server: str, name: str) -> None:
    qualified = f"{server}__{name}"
    assert qualified in compiled.tools
    answer = compiled.results[qualified]
    assert "error" not in answer, answer
    assert answer["result"]["structuredContent"] == SAID


@pytest.mark.field("B1")
def test_only_tools_with_a_schema_beyond_repair_lose_it(compiled: Seen) -> None:
    for server in TWINS:
        listed = {name for name in SCHEMAS if "outputSchema" in compiled.tools[f"{server}__{name}"]}
        assert listed >= KEPT
        assert listed.isdisjoint(DANGLING)


@pytest.mark.field("B1")
@pytest.mark.parametrize("name", DANGLING)
def test_the_same_schema_costs_a_client_of_the_server_itself_the_whole_list(
    installation: Installation, tmp_path: Path, name: str
) -> None:
    server = Canned(tools=[{"name": "good"}, {"name": "bad", "outputSchema": {"type": "object", **SCHEMAS[name]}}])
    with entries({"s": server}, tmp_path) as servers:
        printed = TypeScriptClient(installation).run(servers["s"], [{"do": "listTools"}])
    assert "error" in printed["results"][0], printed


@pytest.fixture(scope="module")
def paged(over: Over, client: TypeScriptClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    names = [name for server in PAGED for name in expected_of(server)]
    with (
        entries(PAGED, tmp_path_factory.mktemp("servers")) as servers,
        gateway_target(over, tmp_path_factory.mktemp("home"), settings(servers)) as target,
    ):
        yield seen(client, target, names, names)


@pytest.mark.field("B6")
@pytest.mark.parametrize("server", PAGED)
def test_every_tool_that_came_is_listed_once_and_called(paged: Seen, server: str) -> None:
    expected = expected_of(server)
    assert [name for name in paged.names if name.startswith(f"{server}__")] == expected
    for name in expected:
        assert "error" not in paged.results[name], paged.results[name]
