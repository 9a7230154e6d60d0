"""Values of another type than declared: read as that type where there is one way, and else left alone."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.exposure.coercion import coerced
from pml_gateway.exposure.validation import argument_problems, fitted
from tests.catalog.listings import only_tool
from tests.support.examples import examples

INTEGER: dict[str, Any] = {"type": "integer"}
TEXT: dict[str, Any] = {"type": "string"}
LIST: dict[str, Any] = {"type": "array", "items": TEXT}


def read(schema: Any, value: Any, **more: Any) -> Any:
    changed, done = coerced({"properties": {"x": schema}, **more}, {"x": value})
    assert bool(done) == (changed != {"x": value})
    return changed.get("x")


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (INTEGER, "12", 12),
        (INTEGER, "-1", -1),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),
        (LIST, "a", ["a"]),
        (LIST, '["a", "b"]', ["a", "b"]),
        ({"type": "array", "items": INTEGER}, "1", [1]),
        ({"type": "array", "items": INTEGER}, ["1", 2], [1, 2]),
        ({"type": "array"}, 5, [5]),
        ({"type": "object", "properties": {"n": INTEGER}}, '{"n": "1"}', {"n": 1}),
        ({"type": ["integer", "null"]}, "3", 3),
        ({"anyOf": [INTEGER, {"type": "null"}], "default": None}, "3", 3),
        ({"enum": [1, 2]}, "2", 2),
        ({"$ref": "#/$defs/n"}, "3", 3),
        (INTEGER, None, None),
    ],
)
def test_what_can_be_read_in_one_way_is(schema: Any, value: Any, expected: Any) -> None:
    assert read(schema, value, **{"$defs": {"n": INTEGER}}) == expected


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": ["string", "integer"]}, "1"),
        ({"anyOf": [INTEGER, TEXT]}, "1"),
        ({"anyOf": [INTEGER, {"type": "array", "items": INTEGER}]}, "1"),
        (INTEGER, "1.5"),
        (INTEGER, "007"),
        (INTEGER, "1e3"),
        (INTEGER, " 1"),
        (INTEGER, "1_000"),
        (INTEGER, "9" * 30),
        (INTEGER, True),
        (TEXT, 5),
        (TEXT, ["a"]),
        ({"type": "boolean"}, "yes"),
        ({"type": "boolean"}, 1),
        (LIST, "a, b"),
        (LIST, 5),
        ({"type": "object"}, "[1]"),
        ({"type": "object"}, "{"),
        ({"type": "integer", "anyOf": [{}]}, "1"),
        ({"anyOf": [INTEGER, {"not": {}}]}, "1"),
        ({}, "1"),
        (True, "1"),
        ({"$ref": "#/nowhere"}, "1"),
        ({"$ref": "#/properties/x"}, "1"),
        ({"type": ["integer", "null"]}, None),
    ],
)
def test_what_cannot_stays_as_it_is(schema: Any, value: Any) -> None:
    changed, done = coerced({"properties": {"x": schema}}, {"x": value})
    assert (changed, done) == ({"x": value}, {})


def test_a_required_null_is_not_left_out() -> None:
    schema = {"properties": {"x": INTEGER}, "required": ["x"]}
    assert coerced(schema, {"x": None}) == ({"x": None}, {})


def test_what_is_not_known_yet_is_left_alone() -> None:
    schema = {"properties": {"x": LIST, "y": INTEGER}}
    changed, done = coerced(schema, {"x": "$0.a", "y": "1"}, frozenset({"/x"}))
    assert (changed, set(done)) == ({"x": "$0.a", "y": 1}, {"/y"})


def test_schemas_that_name_each_other_end() -> None:
    both = {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}
    assert read({"$ref": "#/$defs/a"}, "1", **{"$defs": {"a": both}}) == "1"
    nested = {"type": "array", "items": {"$ref": "#/$defs/b"}}
    read({"$ref": "#/$defs/b"}, "1", **{"$defs": {"b": nested}})


plain = st.recursive(
    st.sampled_from(["string", "integer", "number", "boolean", "null"]).map(lambda kind: {"type": kind}),
    lambda inner: (
        inner.map(lambda items: {"type": "array", "items": items})
        | st.dictionaries(st.sampled_from("ab"), inner, max_size=2).map(
            lambda fields: {"type": "object", "properties": fields}
        )
        | st.lists(inner, min_size=1, max_size=2).map(lambda choices: {"anyOf": choices})
    ),
    max_leaves=4,
)
sent = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["", "1", "1.5", "true", "a", "[1]", '{"a": "1"}']),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=examples(80))
@given(plain, sent)
def test_what_the_schema_admits_is_sent_as_it_is_and_what_is_changed_it_admits(schema: Any, value: Any) -> None:
    tool = only_tool(inputSchema={"type": "object", "properties": {"x": schema}})

    async def check() -> None:
        admitted = not await argument_problems(tool, {"x": value})
        fitting, problems = await fitted(tool, {"x": value})
        if admitted:
            assert (fitting.arguments, fitting.coerced, problems) == ({"x": value}, {}, [])
        elif not problems:
            assert fitting.coerced
            assert await argument_problems(tool, fitting.arguments) == []

    anyio.run(check)
