"""Shapes: names and types of fields, and nothing of what they hold."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from pml_gateway.results.shapes import fields, infer, merge, sketch, without

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)
PLAIN = re.compile(r"[A-Za-z_]{1,8}\Z")


@given(st.lists(JSON, min_size=1, max_size=5))
def test_a_merged_shape_admits_every_value_it_was_made_from(values: list[Any]) -> None:
    shape: dict[str, Any] = {}
    for value in values:
        shape = merge(shape, infer(value))
    for value in values:
        Draft202012Validator(shape).validate(value)


@given(JSON)
def test_a_sketch_is_one_line_within_its_limit(value: Any) -> None:
    assert len(sketch(value, 120)) <= 120
    assert "\n" not in sketch(value, 120)


def test_a_sketch_says_how_long_lists_are_and_which_fields_are_optional() -> None:
    value = {"items": [{"id": 1, "tags": ["a"]}, {"id": 2, "tags": [], "note": None}], "total": 2.5}
    assert sketch(value) == "{items: {id: int, tags: str[], note?: null}[2], total: float}"


@pytest.mark.parametrize(
    "keys",
    [
        ["anna@example.com", "ben@example.com"],
        ["2024-01-31", "2024-02-01"],
        ["550e8400-e29b-41d4-a716-446655440000"],
        ["user_1001", "user_1002"],
        ["/home/anna/taxes.pdf"],
        ["Anna Schmidt"],
        ["42", "43"],
        ["report.pdf.txt"],
        ["sk-proj-a1b2c3d4e5f6g7h8"],
        ["example.com"],
        ["ключ"],
        ["ghp_abcdefgh1"],
        ["sk-abcdefgh1"],
        ["d41d8cd98f00b204"],
        ["2024_01_31", "2024_02_01"],
        ["m20240131"],
        ["anna@localhost"],
        ["+49 30 1234567"],
        ["x192.168.10.2"],
        ["AKIAIOSFODNN7EXAMPLE"],
        ["T01ABC23DEF"],
    ],
)
def test_keys_that_look_like_data_become_a_map(keys: list[str]) -> None:
    shape = infer({"by": dict.fromkeys(keys, 1)})
    assert shape["properties"]["by"] == {"type": "object", "additionalProperties": {"type": "integer"}}
    assert not any(key in json.dumps(shape) for key in keys)


def test_records_under_different_keys_are_a_map_whatever_the_keys_look_like() -> None:
    people = {name: {"age": 1, "email": "x"} for name in ("anna", "ben", "carl")}
    assert sketch(people) == "{[key]: {age: int, email: str}}(3)"


def test_fields_of_an_ordinary_answer_stay_fields() -> None:
    names = ("id", "created_at", "html_url", "utf8", "sha256", "x-request-id", "node_id", "ipv4", "isError", "v2")
    assert set(infer(dict.fromkeys(names, "x"))["properties"]) == set(names)


def test_keys_that_vary_without_end_become_a_map() -> None:
    shape: dict[str, Any] = {}
    for number in range(100):
        shape = merge(shape, infer({f"k{'abcdefghij'[number % 10]}{'abcdefghij'[number // 10]}": 1}))
    assert shape == {"type": "object", "additionalProperties": {"type": "integer"}}


@given(st.dictionaries(st.text(max_size=30), st.text(min_size=12, max_size=40), max_size=5))
def test_no_value_and_no_unusual_key_gets_into_a_shape(value: dict[str, str]) -> None:
    shape = infer(value)
    text = json.dumps(shape, ensure_ascii=False)
    keywords = "additionalProperties properties required type"
    for key, member in value.items():
        assert member not in text or PLAIN.match(member) or member in keywords
        assert re.fullmatch(r"[A-Za-z_$@#][\w$.:/@#-]*", key) or key not in shape.get("properties", {})


def test_a_huge_value_is_looked_at_in_bounds() -> None:
    wide = {"rows": [{"cells": [[number] * 50] * 50} for number in range(1000)]}
    assert sketch(wide).startswith("{rows: {cells: int[][]}[1000]}")


def test_keys_that_are_others_in_every_result_become_a_map() -> None:
    shape: dict[str, Any] = {}
    for name in ("anna", "ben", "cleo"):
        shape = merge(shape, infer({"total": 1, "by": {name: {"hours": 1, "days": 2}}}))
    assert shape["properties"]["by"] == {"type": "object", "additionalProperties": infer({"hours": 1, "days": 2})}
    kinds: dict[str, Any] = {}
    values: list[Any] = [{"error": "x"}, {"items": []}, {"page": 1}, {"text": "x"}]
    for value in values:
        kinds = merge(kinds, infer(value))
    assert set(kinds["properties"]) == {"error", "items", "page", "text"}, "results of several kinds keep their names"


NAMES = st.sampled_from(["a", "b_c", "items", "user-id", "$ref", "a/b", "x~y"])


@given(value=st.recursive(st.integers(), lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=12))
def test_a_shape_without_some_fields_names_them_nowhere(value: Any) -> None:
    shape = infer(value)
    every = list(fields(shape))
    assert without(shape, frozenset()) == shape
    assert not list(fields(without(shape, frozenset(every))))
    for hidden in every:
        left = set(fields(without(shape, frozenset({hidden}))))
        assert left == {each for each in every if each != hidden and not each.startswith(f"{hidden}/")}
