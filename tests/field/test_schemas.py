"""Definitions and arguments: schemas that clients cannot compile, nullable fields, types by other names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.field.canned import Canned, entries
from tests.field.stand import Era, FieldClient, Way, gateway_client

pytestmark = pytest.mark.slow

STRING = {"type": "string"}
OUTPUTS: dict[str, dict[str, Any]] = {
    "dangling": {"properties": {"s": {"$ref": "#/$defs/X"}}},
    "remote": {"properties": {"s": {"$ref": "https://example.com/x.json"}}},
    "components": {"properties": {"s": {"$ref": "#/components/schemas/X"}}, "components": {"schemas": {"X": STRING}}},
    "circular": {"properties": {"s": {"$ref": "#/$defs/X"}}, "$defs": {"X": {"$ref": "#/$defs/X"}}},
    "python_pattern": {"properties": {"s": {**STRING, "pattern": r"\A(?P<y>\w+)\Z"}}},
    "flags": {"properties": {"s": {**STRING, "pattern": "(?i)x"}}},
    "shared_id": {"$id": "https://example.com/shared", "properties": {"s": STRING}},
    "draft_4": {"$schema": "http://json-schema.org/draft-04/schema#", "id": "x", "properties": {"s": STRING}},
    "boolean": {"properties": {"s": True}},
    "bad_values": {"properties": {"s": {"type": "string", "enum": []}}, "required": "s"},
}
KEPT = {"components", "python_pattern", "shared_id", "draft_4", "boolean"}
"""Those whose meaning can be kept."""

ARGUMENTS = {
    "type": "object",
    "properties": {
        "plain": {"type": "string", "nullable": True},
        "choice": {"type": "string", "enum": ["a"], "nullable": True},
        "referred": {"$ref": "#/$defs/Name", "nullable": True},
        "combined": {"allOf": [{"$ref": "#/$defs/Name"}], "nullable": True},
        "nested": {"type": "object", "properties": {"deep": {"type": "integer", "nullable": True}}},
        "each": {"type": "array", "items": {"type": "string", "nullable": True}},
        "sure": {"type": "string"},
        "count": {"type": "int"},
        "ratio": {"type": "float"},
        "text": {"type": "str"},
    },
    "$defs": {"Name": {"type": "string"}},
}


def tools() -> list[dict[str, Any]]:
    listed = [{"name": name, "outputSchema": {"type": "object", **schema}} for name, schema in OUTPUTS.items()]
    return [*listed, {"name": "update", "inputSchema": ARGUMENTS}]


@pytest.fixture(scope="module")
def client(way: Way, era: Era, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FieldClient]:
    folder, home = tmp_path_factory.mktemp("servers"), tmp_path_factory.mktemp("home")
    answer = {"content": [], "structuredContent": {"s": "x"}}
    servers = {
        name: Canned(tools=tools(), answers={f"tools/call:{tool}": answer for tool in OUTPUTS})
        for name in ("one", "two")
    }
    with entries(servers, folder) as configured, gateway_client(way, era, home, {"servers": configured}) as client:
        yield client


@pytest.mark.field("B1")
@pytest.mark.parametrize("name", OUTPUTS)
def test_a_tool_with_an_output_schema_that_does_not_compile_is_listed_and_answers(
    client: FieldClient, name: str
) -> None:
    listed = client.tools(f"one__{name}", f"two__{name}")
    for server in ("one", "two"):
        tool = listed[f"{server}__{name}"]
        assert ("outputSchema" in tool) == (name in KEPT)
        Draft202012Validator(tool.get("outputSchema", True)).validate({"s": "x"})
        assert "$id" not in json.dumps(tool)
        assert client.call(f"{server}__{name}")["structuredContent"] == {"s": "x"}


def through_call_tool(client: FieldClient, arguments: dict[str, Any]) -> dict[str, Any]:
    return client.result(
        "tools/call", {"name": "call_tool", "arguments": {"name": "one__update", "arguments": arguments}}
    )


def received(client: FieldClient, arguments: dict[str, Any]) -> Any:
    """What reaches the server by way of `call_tool`."""
    client.tools("one__update")
    answer = through_call_tool(client, arguments)
    assert not answer.get("isError"), answer
    return json.loads(answer["content"][0]["text"])


@pytest.mark.field("B12")
@pytest.mark.parametrize(
    "arguments",
    [
        *({name: None} for name in ("plain", "choice", "referred", "combined")),
        *({name: "a"} for name in ("plain", "choice", "referred", "combined")),
        {"nested": {"deep": None}},
        {"each": ["a", None]},
        {"plain": None, "sure": "x"},
    ],
)
def test_null_reaches_the_server_where_a_field_is_nullable(client: FieldClient, arguments: dict[str, Any]) -> None:
    assert received(client, arguments) == arguments
    schema = client.tools("one__update")["one__update"]["inputSchema"]
    Draft202012Validator(schema).validate(arguments)


@pytest.mark.field("B12")
def test_null_reaches_the_server_beside_a_value_that_is_coerced(client: FieldClient) -> None:
    assert received(client, {"plain": None, "nested": {"deep": None}, "count": "3"}) == {
        "plain": None,
        "nested": {"deep": None},
        "count": 3,
    }


@pytest.mark.field("B13")
@pytest.mark.parametrize(
    ("name", "kind", "given", "sent"),
    [("count", "integer", "5", 5), ("ratio", "number", "0.5", 0.5), ("text", "string", "x", "x")],
)
def test_a_type_by_another_name_is_listed_and_checked_as_what_it_is(
    client: FieldClient, name: str, kind: str, given: Any, sent: Any
) -> None:
    assert client.tools("one__update")["one__update"]["inputSchema"]["properties"][name]["type"] == kind
    assert received(client, {name: given}) == {name: sent}
    assert through_call_tool(client, {name: {"not": "it"}})["isError"]
