"""Arguments that a tool's own schema refuses never reach its server; everything else does."""

from __future__ import annotations

import socket
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable

from pml_gateway.errors import ErrorCode, InvalidInputError
from pml_gateway.exposure.validation import check_arguments
from pml_gateway.types import JsonObject
from tests.catalog.listings import ARGUMENTS, JSON, SCHEMA_LIKE, only_tool, sound_schemas
from tests.support.examples import examples

ISSUE: JsonObject = {
    "type": "object",
    "properties": {
        "owner": {"type": "string"},
        "labels": {"type": "array", "items": {"type": "string"}},
        "where": {"type": "object", "properties": {"a/b~c": {"type": "integer"}}},
    },
    "required": ["owner"],
    "additionalProperties": False,
}
DRAFT_07 = "http://json-schema.org/draft-07/schema#"
CATASTROPHIC = "^(a+)+$"
VICTIM = "a" * 60 + "!"


def problems(schema: object, arguments: JsonObject) -> list[tuple[str, str]]:
    """Paths and messages of the refusal, or nothing."""
    try:
        anyio.run(check_arguments, only_tool(inputSchema=schema), arguments)
    except InvalidInputError as error:
        return [(problem["path"], problem["message"]) for problem in error.details["errors"]]
    return []


def test_good_arguments_pass() -> None:
    assert problems(ISSUE, {"owner": "me", "labels": ["x"], "where": {"a/b~c": 1}}) == []


def test_every_fault_is_named_with_its_path() -> None:
    found = problems(ISSUE, {"labels": ["x", 5], "where": {"a/b~c": "one"}, "extra": 1})
    assert found == [
        ("", "'owner' is a required property"),
        ("/labels/1", "5 is not of type 'string'"),
        ("/where/a~1b~0c", "'one' is not of type 'integer'"),
        ("/extra", "'extra' is none of its parameters"),
    ]


def test_the_refusal_carries_the_signature_and_a_code() -> None:
    with pytest.raises(InvalidInputError) as caught:
        anyio.run(check_arguments, only_tool(name="create", inputSchema=ISSUE), {})
    error = caught.value
    call = "server__create(owner: str, labels?: str[], where?: {a/b~c?: int})"
    assert error.code is ErrorCode.INVALID_INPUT
    assert error.message == "invalid arguments for server__create: /: 'owner' is a required property"
    assert error.hint == f"expected {call}"
    assert error.details == {
        "errors": [{"path": "", "message": "'owner' is a required property"}],
        "signature": call,
    }


def test_the_signature_names_parameters_that_the_original_hides_in_alternatives() -> None:
    schema = {"oneOf": [{"properties": {"id": {"type": "integer"}}, "required": ["id"]}]}
    with pytest.raises(InvalidInputError) as caught:
        anyio.run(check_arguments, only_tool(inputSchema=schema), {})
    assert caught.value.details["signature"] == "server__tool(id: int)"


def test_many_faults_and_long_values_are_cut() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    found = problems(schema, {f"p{i}": "x" * 10_000 for i in range(50)})
    assert len(found) == 5
    assert all(len(message) <= 240 for _, message in found)


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        ({"type": "string", "maxLength": 20}, "x" * 9000, "… is too long"),
        ({"type": "integer"}, "y" * 9000, "… is not of type 'integer'"),
        ({"type": "array", "maxItems": 3}, [0] * 9000, "… is too long"),
        ({"enum": ["a", "b"]}, "z" * 9000, "… is not one of ['a', 'b']"),
        ({"anyOf": [{"type": "null"}]}, {"k": "v" * 9000}, "… is not valid under any of the given schemas"),
    ],
)
def test_the_reason_stands_behind_a_long_value(schema: JsonObject, value: object, reason: str) -> None:
    [(path, message)] = problems({"type": "object", "properties": {"a": schema}}, {"a": value})
    assert (path, message.endswith(reason), len(message) < 250) == ("/a", True, True)


def test_root_alternatives_are_checked_as_the_server_wrote_them() -> None:
    schema = {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}
    assert problems(schema, {"a": 1}) == []
    assert problems(schema, {}) != []
    assert problems(schema, {"a": 1, "b": 1}) != []


def test_a_schema_that_refers_to_itself_is_followed() -> None:
    schema = {"type": "object", "properties": {"child": {"$ref": "#"}, "value": {"type": "integer"}}}
    assert problems(schema, {"child": {"child": {"value": 1}}}) == []
    assert [path for path, _ in problems(schema, {"child": {"child": {"value": "x"}}})] == ["/child/child/value"]
    looping = {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}
    assert problems(looping, {"a": 1}) == []


def test_no_reference_is_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        for schema in (
            {"type": "object", "properties": {"a": {"$ref": address}}},
            {"$ref": address},
            {"$schema": address, "type": "object"},
            {"$id": address, "type": "object", "properties": {"a": {"$ref": "other.json"}}},
            {"$schema": DRAFT_07, "type": "object", "properties": {"a": {"$ref": f"{address}#/a"}}},
        ):
            assert problems(schema, {"a": 1}) == []
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"pattern": CATASTROPHIC}}},
        {"patternProperties": {CATASTROPHIC: {}}, "additionalProperties": False},
        {"propertyNames": {"pattern": CATASTROPHIC}},
        {"allOf": [{"patternProperties": {CATASTROPHIC: {}}}], "unevaluatedProperties": False},
        {"properties": {"a": {"$ref": "#/x/evil"}}, "x": {"evil": {"pattern": CATASTROPHIC}}},
        {"const": {"pattern": CATASTROPHIC}, "properties": {"a": {"$ref": "#/const"}}},
        {"properties": {"a": {"$ref": "#/$defs/p"}}, "$defs": {"p": {"$schema": DRAFT_07, "pattern": CATASTROPHIC}}},
        {
            "$schema": DRAFT_07,
            "properties": {"a": {"anyOf": [{"$ref": "#"}, {"pattern": CATASTROPHIC}]}},
            "pattern": CATASTROPHIC,
        },
        {"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"a": {"pattern": CATASTROPHIC}}},
        {"properties": {"a": {"format": "regex", "pattern": "(" * 500}}},
    ],
)
def test_a_catastrophic_pattern_is_never_run(schema: JsonObject) -> None:
    # With the pattern, each of these takes longer than a test run.
    problems({"type": "object", **schema}, {"a": VICTIM, VICTIM: 1})


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"oneOf": [{"pattern": "^x"}, {"pattern": "^y"}]}}},
        {"properties": {"a": {"not": {"pattern": "^x"}}}},
        {"properties": {"a": {"not": {"$ref": "#/$defs/x"}}}, "$defs": {"x": {"pattern": "^x"}}},
        {"if": {"properties": {"a": {"pattern": "^x"}}}, "then": {"required": ["b"]}},
        {"patternProperties": {"^a": {}}, "additionalProperties": False},
        {"allOf": [{"patternProperties": {"^a": {}}}], "unevaluatedProperties": False},
        {"properties": {"a": {"enum": ["y", {"pattern": "^x"}]}}},
    ],
)
def test_leaving_patterns_to_the_server_refuses_nothing_that_it_would_accept(schema: JsonObject) -> None:
    whole = {"type": "object", **schema}
    assert Draft202012Validator(whole).is_valid({"a": "y"})
    assert problems(whole, {"a": "y"}) == []


def test_a_parameter_may_be_called_pattern() -> None:
    schema = {
        "type": "object",
        "properties": {"pattern": {"type": "string"}, "patternProperties": {"type": "object"}},
        "required": ["pattern"],
        "additionalProperties": False,
    }
    assert problems(schema, {"pattern": "(a+)+", "patternProperties": {}}) == []
    assert [path for path, _ in problems(schema, {"pattern": 5})] == ["/pattern"]
    assert problems(schema, {}) == [("", "'pattern' is a required property")]


@settings(max_examples=examples(200))
@given(schema=sound_schemas(), arguments=ARGUMENTS)
@pytest.mark.slow
def test_nothing_is_refused_that_the_schema_accepts(schema: JsonObject, arguments: JsonObject) -> None:
    try:
        accepted = Draft202012Validator(schema, registry=Registry()).is_valid(arguments)
    except (RecursionError, Unresolvable):
        return
    if accepted:
        # What it does not name, and lets pass, is refused on purpose.
        refused = [each for each in problems(schema, arguments) if not each[1].endswith("is none of its parameters")]
        assert refused == []
    elif "pattern" not in str(schema):
        assert problems(schema, arguments) != []


@settings(max_examples=examples(300))
@given(schema=SCHEMA_LIKE | JSON, arguments=ARGUMENTS)
def test_any_schema_gives_a_verdict(schema: Any, arguments: JsonObject) -> None:
    for path, message in problems(schema, arguments):
        assert path == "" or path.startswith("/")
        assert message


def test_draft_07_schemas_are_read_as_such() -> None:
    schema = {
        "$schema": DRAFT_07,
        "type": "object",
        "properties": {"point": {"items": [{"type": "number"}, {"type": "string"}], "additionalItems": False}},
        "dependencies": {"a": ["b"]},
        "definitions": {"n": {"type": "integer"}},
    }
    assert problems(schema, {"point": [1, "x"]}) == []
    assert [path for path, _ in problems(schema, {"point": ["x", "y"]})] == ["/point/0"]
    assert problems(schema, {"point": [1, "x", 3]}) != []
    assert problems(schema, {"a": 1}) != []


@pytest.mark.parametrize("schema", [None, True, "x", {"type": "string"}, {"$ref": "#/missing"}, {"$schema": 5}])
def test_a_schema_that_means_nothing_refuses_nothing(schema: object) -> None:
    assert problems(schema, {"anything": [1, None]}) == []


def test_a_schema_with_one_illegal_keyword_is_checked_without_it() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "strin"}, "b": {"type": "integer"}}}
    assert problems(schema, {"a": 1, "b": 1}) == []
    assert [path for path, _ in problems(schema, {"b": "x"})] == ["/b"]
    with pytest.raises(SchemaError):
        Draft202012Validator.check_schema(schema)


def test_references_to_what_is_no_schema_refuse_nothing() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/properties"}, "pattern": {"type": "object"}, "required": {"minLength": 1}},
    }
    assert problems(schema, {"a": "x"}) == []


def test_references_that_multiply_are_given_up() -> None:
    definitions: JsonObject = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(60)}
    # Followed to the end, these are 2^60 steps.
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a0"}}, "$defs": definitions | {"a60": False}}
    assert problems(schema, {"a": 1}) in ([], [("/a", "False schema does not allow 1")] * 5)
    assert problems(schema | {"$defs": definitions | {"a60": {}}}, {"a": 1}) == []


def test_long_lists_are_not_compared_item_by_item() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    assert problems(schema, {"a": [{"n": i} for i in range(100_000)]}) == []
    assert problems(schema, {"a": [{"n": 1}, {"n": 1}]}) != []
