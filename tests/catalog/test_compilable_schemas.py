"""Schemas as validators of clients compile them: references, names, regular expressions, other dialects."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pml_gateway.catalog.patterns import MAX_PATTERN, portable
from pml_gateway.catalog.schema import check_output_schema, repair_input_schema
from pml_gateway.types import JsonObject
from tests.catalog.listings import only_tool

pytestmark = pytest.mark.field("B1")

STRING: JsonObject = {"type": "string"}


def parameter(schema: Any, **root: Any) -> Any:
    """What becomes of the schema of one parameter."""
    return repair_input_schema({"type": "object", "properties": {"a": schema}, **root})[0]["properties"]["a"]


@pytest.mark.parametrize(
    "reference",
    [
        *(
            "#/$defs/Missing",
            "#/components/schemas/X",
            "other.json",
            "https://example.com/x.json#/a",
            "#anchor",
            "urn:x",
        ),
        *("#/properties/a/description", "#/required", "#/%zz", "http://[", "#/properties/a"),
    ],
)
@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef", "$recursiveRef"])
def test_a_reference_that_leads_to_no_schema_is_dropped_from_an_input_and_costs_an_output(
    keyword: str, reference: str
) -> None:
    assert parameter({keyword: reference, "description": "kept"}) == {"description": "kept"}
    output = {"type": "object", "properties": {"a": {keyword: reference, "description": "kept"}}}
    result, why = check_output_schema(output)
    assert result is None
    assert any(repr(reference) in each for each in why)


@pytest.mark.parametrize(
    "circle",
    [
        {"X": {"$ref": "#/$defs/X"}},
        {"X": {"$ref": "#/$defs/Y"}, "Y": {"$ref": "#/$defs/X"}},
        {"X": {"allOf": [{"$ref": "#/$defs/X"}]}},
        {"X": {"anyOf": [STRING, {"$ref": "#/$defs/Y"}]}, "Y": {"not": {"$ref": "#/$defs/X"}}},
        {"X": {"if": {"$ref": "#/$defs/X"}, "then": {}}},
        {"X": {"dependentSchemas": {"a": {"$ref": "#/$defs/X"}}}},
    ],
)
def test_references_that_lead_back_to_themselves_are_broken(circle: JsonObject) -> None:
    schema, why = repair_input_schema({"type": "object", "properties": {"a": {"$ref": "#/$defs/X"}}, "$defs": circle})
    assert any("back to itself" in each for each in why)
    Draft202012Validator(schema).is_valid({"a": {"a": 1}})
    assert (
        check_output_schema({"type": "object", "properties": {"a": {"$ref": "#/$defs/X"}}, "$defs": circle})[0] is None
    )


def test_a_recursive_schema_is_not_a_circle() -> None:
    tree: JsonObject = {"type": "object", "properties": {"next": {"$ref": "#"}, "all": {"items": {"$ref": "#"}}}}
    assert repair_input_schema(tree) == (tree, ())
    assert check_output_schema(tree) == (tree, ())


@pytest.mark.parametrize(
    ("schema", "reference"),
    [
        ({"$id": "https://example.com/tool", "$defs": {"X": STRING}}, "https://example.com/tool#/$defs/X"),
        ({"$id": "https://example.com/tool", "$defs": {"X": STRING}}, "tool#/$defs/X"),
        ({"$defs": {"X": {"$id": "x.json", **STRING}}}, "x.json"),
        ({"$defs": {"X": {"$anchor": "x", **STRING}}}, "#x"),
        ({"definitions": {"X": {"$id": "#x", **STRING}}}, "#x"),
        ({"$id": "urn:tool", "$defs": {"X": {"$dynamicAnchor": "x", **STRING}}}, "urn:tool#x"),
        ({"components": {"schemas": {"X": STRING}}}, "#/components/schemas/X"),
        ({"$defs": {"X of Y": STRING}}, "#/$defs/X%20of%20Y"),
        ({"$defs": {"X<int>": STRING}}, "#/$defs/X<int>"),
        ({"id": "http://example.com/old", "definitions": {"X": STRING}}, "#/definitions/X"),
        ({"x-shared": {"X": {"$ref": "#/x-shared/Y"}, "Y": STRING}}, "#/x-shared/X"),
    ],
)
def test_a_reference_within_the_document_becomes_a_pointer_and_names_are_not_shown(
    schema: JsonObject, reference: str
) -> None:
    for root in (schema, {**schema, "$schema": "http://json-schema.org/draft-04/schema#"}):
        output, why = check_output_schema({"type": "object", "properties": {"a": {"$ref": reference}}, **root})
        assert output is not None, why
        assert not {"$id", "id"} & output.keys()
        validator = Draft202012Validator({key: value for key, value in output.items() if key != "$schema"})
        assert [validator.is_valid({"a": each}) for each in ("text", 5)] == [True, False]
        assert output["properties"]["a"]["$ref"].startswith("#/")


def test_names_of_schemas_are_left_out_wherever_a_client_looks_for_them() -> None:
    schema = {
        "$id": "shared",
        "type": "object",
        "properties": {"$id": {"$id": "b", "type": "string"}},
        "x-v": {"$id": "c"},
    }
    assert check_output_schema(schema)[0] == {"type": "object", "properties": {"$id": {"type": "string"}}}
    assert repair_input_schema(schema)[0] == {"type": "object", "properties": {"$id": {"type": "string"}}}


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        ("^[a-z]+$", "^[a-z]+$"),
        (r"^(?<y>\d{4})(?<!a)\p{L}$", r"^(?<y>\d{4})(?<!a)\p{L}$"),
        (r"(a)(?:b)(?P<y>\d{4})-(?P=y)", r"(a)(?:b)(\d{4})-(?:\2)"),
        (r"\A\w+\Z", r"^\w+$"),
        (r"^[\w-.]+\@x\_\-$", r"^[\w\-.]+@x_-$"),
        ("{name}", r"\{name\}"),
        ("a{,3}", "a{0,3}"),
        ("[(?i:]", "[(?i:]"),
        *(
            (each, None)
            for each in ("(?i)a", "(?i:a)", "a++", "(?>a)", "(", "[z-a]", "[[:alpha:]]", r"\h", r"\pL", "[]a]")
        ),
        ("a" * (MAX_PATTERN + 1), None),
    ],
)
def test_a_regular_expression_is_written_as_clients_compile_it_or_left_out(pattern: str, written: str | None) -> None:
    assert portable(pattern) == written
    kept = {"type": "string"} if written is None else {"type": "string", "pattern": written}
    assert parameter({"type": "string", "pattern": pattern}) == kept
    output = check_output_schema({"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}})[0]
    assert output == (None if written is None else {"type": "object", "properties": {"a": kept}})


def test_a_key_that_is_no_regular_expression_takes_what_depends_on_it_along() -> None:
    schema = {"patternProperties": {"(?i)a": STRING, "(?P<x>b)": STRING}, "additionalProperties": False}
    assert parameter(schema) == {"patternProperties": {"(b)": STRING}}


@pytest.mark.parametrize(
    ("dialect", "shown"),
    [
        ("http://json-schema.org/draft-07/schema#", "http://json-schema.org/draft-07/schema#"),
        ("https://json-schema.org/draft/2020-12/schema", "https://json-schema.org/draft/2020-12/schema"),
        ("http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#"),
        *((each, None) for each in ("https://example.com/x", "", "http://json-schema.org/schema#", "draft-07")),
    ],
)
def test_only_dialects_that_clients_know_are_named(dialect: str, shown: str | None) -> None:
    schema = {"$schema": dialect, "type": "object", "properties": {"a": {"maximum": 5}}}
    for result in (repair_input_schema(schema)[0], check_output_schema(schema)[0]):
        assert result is not None
        assert result.get("$schema") == shown


def test_booleans_beside_each_other_are_written_as_schemas_where_a_client_refuses_them() -> None:
    schema = {"type": "object", "properties": {"a": True, "b": False, "c": {"not": True}}}
    assert check_output_schema(schema)[0] == repair_input_schema(schema)[0]
    assert repair_input_schema(schema)[0]["properties"] == {"a": {}, "b": {"not": {}}, "c": {"not": True}}


def test_arguments_are_still_checked_against_the_original() -> None:
    tool = only_tool(inputSchema={"type": "object", "properties": {"a": {"type": "string", "pattern": "(?i)x"}}})
    assert tool.input_schema["properties"]["a"]["pattern"] == "(?i)x"
    assert "pattern" not in tool.definition["inputSchema"]["properties"]["a"]


@pytest.mark.field("B13")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("int", "integer"), ("float", "number"), ("str", "string"), ("bool", "boolean"), ("dict", "object")),
        *(("list", "array"), ("None", "null"), ("STRING", "string"), ("Integer", "integer"), ("double", "number")),
        *(("list[str]", "array"), ("string[]", "array"), ("Dict[str, Any]", "object"), ("datetime", "string")),
        *(
            ("Optional[int]", ["integer", "null"]),
            ("string|null", ["string", "null"]),
            ("str | None", ["string", "null"]),
        ),
        *(
            (["str", "null"], ["string", "null"]),
            (["Int", "float"], ["integer", "number"]),
            ("number?", ["number", "null"]),
        ),
        *(
            (["string", None], ["string", "null"]),
            ("Union[str, int]", ["string", "integer"]),
            ("List[List[int]]", "array"),
        ),
        *(("any", None), ("Any", None), (["str", "any"], None)),
    ],
)
def test_a_type_by_the_name_of_a_programming_language_is_that_type(name: Any, kind: Any) -> None:
    meant = {} if kind is None else {"type": kind}
    assert parameter({"type": name, "title": "T"}) == {"title": "T", **meant}
    assert parameter({"items": {"anyOf": [{"type": name}]}}) == {"items": {"anyOf": [meant]}}
    assert parameter({"$ref": "#/$defs/X"}, **{"$defs": {"X": {"type": name}}}) == {"$ref": "#/$defs/X"}
    output = check_output_schema({"type": "object", "properties": {"a": {"type": name}}})[0]
    assert output == {"type": "object", "properties": {"a": meant}}


@pytest.mark.field("B12")
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string", "nullable": True}, "x"),
        ({"type": "str", "x-nullable": True}, "x"),
        ({"type": ["string", "integer"], "nullable": True}, 5),
        ({"type": "string", "enum": ["x", "y"], "nullable": True}, "y"),
        ({"enum": ["x"], "nullable": True}, "x"),
        ({"const": "x", "nullable": True}, "x"),
        ({"$ref": "#/$defs/X", "nullable": True}, "x"),
        ({"$ref": "#/$defs/Nullable"}, "x"),
        ({"allOf": [{"$ref": "#/$defs/X"}], "nullable": True, "description": "d"}, "x"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}], "nullable": True}, 5),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}], "nullable": True}, 5),
        ({"type": "string", "allOf": [{"minLength": 1}], "nullable": True}, "x"),
        ({"type": "string", "not": {"enum": ["y"]}, "nullable": True}, "x"),
        ({"type": "array", "items": {"type": "string"}, "nullable": True, "default": None}, ["x"]),
        ({"type": "object", "properties": {"b": {"type": "string"}}, "nullable": True}, {"b": "x"}),
    ],
)
def test_what_is_nullable_admits_null_and_what_it_admitted(schema: JsonObject, value: Any) -> None:
    definitions = {"X": {"type": "string"}, "Nullable": {"type": "string", "nullable": True}}
    root = {"type": "object", "properties": {"a": schema, "b": {"items": schema}}, "$defs": definitions}
    output = check_output_schema(root)[0]
    assert output is not None
    for result in (repair_input_schema(root)[0], output, only_tool(inputSchema=root).input_schema):
        assert "nullable" not in str(result)
        validator = Draft202012Validator(result)
        for given in ({"a": None}, {"a": value}, {"b": [None, value]}):
            assert validator.is_valid(given), given
        assert not validator.is_valid({"a": 1.5})


@pytest.mark.field("B12")
@pytest.mark.parametrize(
    "schema", [{"type": "string", "nullable": False}, {"type": "string", "nullable": "yes"}, {"type": "string"}]
)
def test_what_is_not_nullable_admits_no_null(schema: JsonObject) -> None:
    assert parameter(schema) == {"type": "string"}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"minimum": 5, "exclusiveMinimum": True}, {"exclusiveMinimum": 5}),
        ({"maximum": 5, "exclusiveMaximum": False}, {"maximum": 5}),
        ({"exclusiveMaximum": True}, {}),
    ],
)
def test_exclusive_bounds_of_draft_4_are_read(given: JsonObject, shown: JsonObject) -> None:
    assert parameter(given) == shown
