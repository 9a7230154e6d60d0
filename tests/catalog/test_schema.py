"""Bad schemas are repaired with a reason that says where, good ones pass untouched."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from jsonschema import Draft202012Validator

from pml_gateway.catalog.hidden_characters import visible_schema
from pml_gateway.catalog.schema import (
    MAX_BYTES,
    MAX_DEPTH,
    check_output_schema,
    is_flawless,
    repair_input_schema,
)
from pml_gateway.types import JsonObject
from tests.catalog.listings import JSON, SCHEMA_LIKE, nested
from tests.support.examples import examples

SOUND: tuple[JsonObject, ...] = (
    {"type": "object"},
    {"type": "object", "properties": {"a": {"type": "string", "enum": ["x"]}, "b": {}}, "required": ["a"]},
    {"type": "object", "properties": {"tree": {"$ref": "#"}}, "additionalProperties": False},
    {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {}},
    {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}}},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": ["string", "null"]}}},
    {"type": "object", "x-vendor": {"any": ["thing", 1.5, None]}, "properties": {"type": {"type": "string"}}},
    {"type": "object", "properties": {"pattern": {"type": "string", "pattern": r"^\p{L}+$", "minLength": 1}}},
    {"type": "object", "dependencies": {"a": ["b"], "b": {"required": ["c"]}}, "dependentRequired": {"a": ["b"]}},
)


def repaired(schema: object) -> JsonObject:
    return repair_input_schema(schema)[0]


def reasons(schema: object) -> tuple[str, ...]:
    return repair_input_schema(schema)[1]


def is_legal(schema: object) -> bool:
    # Without formats: `pattern` holds ECMA-262 expressions, which Python's `re` need not understand.
    Draft202012Validator.check_schema(schema, format_checker=None)
    return True


@pytest.mark.parametrize("schema", SOUND)
def test_a_sound_schema_comes_back_as_the_same_object(schema: JsonObject) -> None:
    before = json.dumps(schema)
    result, why = repair_input_schema(schema)
    assert result is schema
    assert why == ()
    assert json.dumps(schema) == before


@settings(max_examples=examples(400))
@example(schema={"items": [{}], "additionalItems": []})
@given(schema=SCHEMA_LIKE | JSON)
def test_any_json_becomes_a_legal_schema_of_an_object(schema: Any) -> None:
    before = json.dumps(schema)
    result, why = repair_input_schema(schema)
    assert result["type"] == "object"
    assert is_legal(result)
    assert (result is schema) == (not why)
    assert all(reason.startswith("/") and ": " in reason for reason in why)
    assert json.dumps(schema) == before, "the upstream's own schema is left alone"


@given(schema=SCHEMA_LIKE)
def test_a_repaired_schema_needs_no_second_repair(schema: JsonObject) -> None:
    once = repaired(schema)
    assert repair_input_schema(once) == (once, ())


@settings(max_examples=examples(400))
@example(schema={"dependencies": {"a": 1}})
@example(schema={"enumNames": ["\x1b[0m"]})
@example(schema={"properties": {"a": nested(MAX_DEPTH, key="not")}})
@example(schema={"properties": {"a": {"description": "\u200b"}}})
@example(schema={"properties": {str(at): {"const": False, "enum": [False] * 40} for at in range(1000)}})
@given(schema=SCHEMA_LIKE)
def test_what_is_flawless_at_a_glance_is_so_by_a_close_look(schema: JsonObject) -> None:
    schema = {**schema, "type": "object"}
    if is_flawless(schema):
        assert repair_input_schema(schema) == (schema, ())
        assert visible_schema(schema) is schema


def test_a_glance_is_enough_for_usual_schemas() -> None:
    assert [is_flawless(schema) for schema in SOUND] == ["dependencies" not in schema for schema in SOUND]


@given(schema=SCHEMA_LIKE | JSON)
def test_an_output_schema_is_kept_or_else_rewritten_or_dropped_with_reasons(schema: Any) -> None:
    result, why = check_output_schema(schema)
    if not why:
        assert result is schema
    start = "outputSchema: /" if result is not None else "outputSchema dropped: /"
    assert all(reason.startswith(start) for reason in why)
    assert check_output_schema(result) == (result, ())


@pytest.mark.parametrize(
    ("schema", "kind"),
    [(None, "missing"), (True, "a boolean"), ("x", "a string"), (1, "a number"), ([], "a list")],
)
def test_what_is_no_object_accepts_any_arguments(schema: object, kind: str) -> None:
    assert repair_input_schema(schema) == (
        {"type": "object"},
        (f"/: inputSchema is {kind}, not an object; any arguments are accepted",),
    )


def test_a_missing_type_is_set() -> None:
    schema: JsonObject = {"properties": {"a": {}}}
    assert repair_input_schema(schema) == ({"type": "object", **schema}, ("/type: missing; set to object",))


def test_a_nullable_root_is_narrowed_to_an_object() -> None:
    schema = {"type": ["object", "null"], "properties": {"a": {}}}
    assert repaired(schema) == {"type": "object", "properties": {"a": {}}}
    assert reasons(schema) == ("/type: ['object', 'null'] narrowed to object",)


def test_a_root_of_another_type_accepts_any_arguments() -> None:
    assert repaired({"type": "array", "items": {}}) == {"type": "object"}
    assert reasons({"type": "string"}) == ("/type: root is 'string', not object; any arguments are accepted",)


@pytest.mark.parametrize("kind", ["string", "Object", 5, ["nothing"], []])
def test_a_root_with_properties_is_an_object_whatever_its_type_says(kind: object) -> None:
    result, why = repair_input_schema({"type": kind, "properties": {"a": {}}, "required": ["a"]})
    assert result == {"type": "object", "properties": {"a": {}}, "required": ["a"]}
    assert why[0].startswith("/type: ")


@pytest.mark.parametrize(("keyword", "required"), [("oneOf", ["a"]), ("anyOf", ["a"]), ("allOf", ["a", "b", "c"])])
def test_root_alternatives_become_one_object(keyword: str, required: list[str]) -> None:
    schema = {
        keyword: [
            {"properties": {"a": {"type": "string"}, "b": {}}, "required": ["a", "b"]},
            {"$ref": "#/$defs/other"},
        ],
        "$defs": {"other": {"properties": {"c": {"type": "integer"}}, "required": ["c", "a"]}},
    }
    result, why = repair_input_schema(schema)
    assert keyword not in result
    assert result["properties"] == {"a": {"type": "string"}, "b": {}, "c": {"type": "integer"}}
    assert sorted(result["required"]) == required
    assert why == ("/: root oneOf/anyOf/allOf merged into one object",)


def test_a_parameter_that_differs_between_alternatives_admits_each_of_them() -> None:
    schema = {
        "oneOf": [
            {"properties": {"kind": {"const": "file"}, "path": {"type": "string"}}, "required": ["kind"]},
            {"properties": {"kind": {"const": "url"}, "href": {"type": "string"}}, "required": ["kind"]},
        ]
    }
    result = repaired(schema)
    assert result["properties"]["kind"] == {"anyOf": [{"const": "file"}, {"const": "url"}]}
    assert result["required"] == ["kind"]


def test_an_alternative_that_admits_anything_makes_nothing_required() -> None:
    assert "required" not in repaired({"anyOf": [True, {"required": ["a"]}]})
    assert repaired({"anyOf": [False, {"required": ["a"]}]})["required"] == ["a"]


def test_nested_alternatives_and_references_are_merged_as_well() -> None:
    schema = {
        "allOf": [{"anyOf": [{"allOf": [{"$ref": "#/$defs/deep"}]}]}],
        "$defs": {"deep": {"properties": {"found": {"type": "string"}}, "required": ["found"]}},
    }
    result = repaired(schema)
    assert (result["properties"], result["required"]) == ({"found": {"type": "string"}}, ["found"])


def test_a_root_reference_is_replaced_by_its_target_and_its_siblings() -> None:
    schema = {
        "$ref": "#/$defs/Args",
        "properties": {"more": {}},
        "required": ["more"],
        "$defs": {"Args": {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "required": ["a"]}, "A": {}},
    }
    result, why = repair_input_schema(schema)
    assert result == {
        "type": "object",
        "properties": {"more": {}, "a": {"$ref": "#/$defs/A"}},
        "required": ["more", "a"],
        "$defs": schema["$defs"],
    }
    assert why == ("/$ref: root reference '#/$defs/Args' replaced by what it refers to",)


@pytest.mark.parametrize("reference", ["#", "#/$defs/missing", "#/$defs/loop", "#/$ref", "http://example.com/schema"])
def test_a_root_reference_that_leads_nowhere_leaves_an_object(reference: str) -> None:
    result, why = repair_input_schema({"$ref": reference, "$defs": {"loop": {"$ref": "#/$defs/loop"}}})
    assert result["type"] == "object"
    assert "$ref" not in result
    assert why[0].startswith("/$ref: ")


def test_references_that_name_each_other_exponentially_often_are_merged_at_once() -> None:
    definitions: JsonObject = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 9} for i in range(40)}
    assert is_legal(repaired({"allOf": [{"$ref": "#/$defs/a0"}] * 9, "$defs": definitions}))


@pytest.mark.parametrize("key", ["items", "not", "additionalProperties", "contains"])
@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 5_000])
def test_absurd_depth_is_cut(key: str, levels: int) -> None:
    result, why = repair_input_schema({"type": "object", "properties": {"a": nested(levels, key=key)}})
    assert is_legal(result)
    assert len(json.dumps(result)) < 2_000
    assert any(f"nested deeper than {MAX_DEPTH} levels" in reason for reason in why)


def test_absurd_depth_in_a_value_is_dropped() -> None:
    result, why = repair_input_schema({"type": "object", "default": nested(5_000), "x-extra": nested(5_000)})
    assert result == {"type": "object"}
    assert [reason.split(":")[0] for reason in why] == ["/default", "/x-extra"]


def test_numbers_that_json_does_not_have_are_dropped() -> None:
    result, why = repair_input_schema(
        {"type": "object", "properties": {"a": {"default": float("nan"), "maximum": float("inf"), "enum": [1e999]}}}
    )
    assert result == {"type": "object", "properties": {"a": {}}}
    assert len(why) == 3


def test_a_huge_schema_keeps_its_parameter_names() -> None:
    properties = {f"p{i}": {"description": "x" * 1000} for i in range(600)}
    result, why = repair_input_schema({"type": "object", "properties": properties, "required": ["p1", "p599"]})
    assert list(result["properties"]) == [f"p{i}" for i in range(500)]
    assert result["required"] == ["p1"]
    assert why == (f"/: inputSchema is larger than {MAX_BYTES} bytes; only top-level parameter names are kept",)


def test_huge_parameter_names_are_not_kept_either() -> None:
    assert repaired({"type": "object", "properties": {"x" * 300_000: {}}}) == {"type": "object"}


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("type", "strin"),
        ("type", ["string", "string"]),
        ("required", True),
        ("required", ["a", "a"]),
        ("enum", "x"),
        ("properties", []),
        ("oneOf", []),
        ("pattern", 5),
        ("description", {"en": "x"}),
        ("minLength", -1),
        ("minLength", 1.5),
        ("exclusiveMinimum", "1"),
        ("multipleOf", 0),
        ("uniqueItems", "yes"),
        ("$async", True),
        ("enum", []),
        ("dependentRequired", {"a": "b"}),
        ("dependencies", {"a": 5}),
        ("examples", "x"),
        ("$schema", 7),
    ],
)
def test_a_keyword_of_the_wrong_type_is_dropped_and_its_place_named(keyword: str, value: object) -> None:
    result, why = repair_input_schema({"type": "object", "properties": {"a/b": {keyword: value, "title": "kept"}}})
    assert result == {"type": "object", "properties": {"a/b": {"title": "kept"}}}
    (reason,) = why
    assert reason.startswith(f"/properties/a~1b/{keyword}: ")


def test_what_stands_in_the_place_of_a_schema_accepts_anything() -> None:
    result, why = repair_input_schema({"type": "object", "properties": {"a": "string", "b": None}})
    assert result["properties"] == {"a": {}, "b": {}}
    assert why == (
        "/properties/a: a string is no schema; anything is accepted",
        "/properties/b: missing is no schema; anything is accepted",
    )


def test_a_tuple_of_an_older_dialect_is_rewritten() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"point": {"items": [{"type": "number"}, {"type": "number"}], "additionalItems": False}},
    }
    result, why = repair_input_schema(schema)
    assert result["properties"]["point"] == {
        "prefixItems": [{"type": "number"}, {"type": "number"}],
        "items": False,
    }
    assert "$schema" not in result
    assert why == ("/properties/point/items: a list, as in older dialects; rewritten as prefixItems",)


def test_a_sound_output_schema_comes_back_as_the_same_object() -> None:
    for schema in ({"type": "object", "properties": {"a": {}}}, {"type": "array", "items": {}}, {}):
        assert check_output_schema(schema)[0] is schema


def test_an_output_schema_may_use_the_dialect_it_names() -> None:
    tuples = {"type": "array", "items": [{"type": "number"}]}
    draft_07 = {"$schema": "http://json-schema.org/draft-07/schema#", **tuples}
    assert check_output_schema(draft_07) == (draft_07, ())
    assert check_output_schema(tuples)[0] is None


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "object", "properties": {"a": {"type": "strin"}}},
        {"type": "object", "properties": {"a": "x"}},
        {"type": "object", "properties": {"a": nested(5_000)}},
        {"type": "object", "description": "x" * MAX_BYTES},
        {"type": "object", "const": float("nan")},
    ],
)
def test_an_invalid_output_schema_is_dropped_with_the_reason(schema: object) -> None:
    result, why = check_output_schema(schema)
    assert result is None
    assert why[0].startswith("outputSchema dropped: /")
