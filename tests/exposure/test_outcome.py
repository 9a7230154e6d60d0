"""What a signature says of results: the most telling fields on one short line, and what a call does."""

from __future__ import annotations

from statistics import mean
from typing import Any

import pytest
from hypothesis import given, settings

from pml_gateway.demo.servers import calc
from pml_gateway.exposure.schema_text import MAX_RETURNED, outcome, typescript_type
from pml_gateway.exposure.token_count import count_tokens
from pml_gateway.results.shapes import unwrapped
from pml_gateway.types import Effect, JsonObject, effect_of
from tests.catalog.listings import SCHEMA_LIKE
from tests.support.examples import examples

ISSUE = {
    "type": "object",
    "properties": {
        "body": {"type": "string"},
        "labels": {"type": "array", "items": {"type": "string"}},
        "number": {"type": "integer"},
        "author": {"type": "object", "properties": {"login": {}}},
        "title": {"type": "string"},
    },
    "required": ["number", "title", "body"],
}
ISSUES = {"type": "object", "properties": {"issues": {"type": "array", "items": {"$ref": "#/$defs/Issue"}}}}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (None, ""),
        ({}, ""),
        ({"type": "object"}, " -> object"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, " -> {[key]: int}"),
        ({"type": "string"}, " -> str"),
        ({"type": ["string", "null"]}, " -> str | null"),
        ({"enum": ["open", "closed"]}, ' -> "open" | "closed"'),
        ({"type": "array", "items": {"type": "string"}}, " -> [str]"),
        (ISSUE, " -> {number, title, labels: [str], body, author: {login}}"),
        ({**ISSUES, "$defs": {"Issue": ISSUE}}, " -> {issues: [{number, title, labels: […], body, author: {…}}]}"),
        ({"anyOf": [{"$ref": "#/$defs/I"}, {"type": "null"}], "$defs": {"I": ISSUE}},
         " -> {number, title, labels: […], body, author: {…}} | null"),
        ({"allOf": [{"properties": {"a": {}}}]}, " -> {a}"),
        ({"properties": {"a b": {}, "c\n": {}}}, ' -> {"a b", "c\\n"}'),
        ({"properties": {f"field_number_{i}": {} for i in range(9)}}, " -> {field_number_0, field_number_1, …}"),
    ],
)  # fmt: skip
def test_what_comes_back_is_named_by_its_most_telling_fields(schema: Any, text: str) -> None:
    assert outcome(Effect.UNKNOWN, schema) == text


def test_what_was_learned_is_marked() -> None:
    assert outcome(Effect.UNKNOWN, {"type": "object", "properties": {"id": {}}}, is_learned=True) == " -> ~{id}"


@pytest.mark.parametrize(
    ("effect", "mark"),
    [
        (Effect.READ, " [read]"),
        (Effect.WRITE, " [write]"),
        (Effect.DESTRUCTIVE, " [destructive]"),
        (Effect.UNKNOWN, ""),
    ],
)
def test_a_call_is_marked_by_its_effect_if_that_is_known(effect: Effect, mark: str) -> None:
    assert outcome(effect, None) == mark
    assert outcome(effect, {"type": "string"}) == f" -> str{mark}"


@settings(max_examples=examples(100))
@given(schema=SCHEMA_LIKE)
def test_any_schema_gives_one_short_line(schema: JsonObject) -> None:
    text = outcome(Effect.UNKNOWN, {"type": "object", "properties": {"p": schema}, **schema})
    assert "\n" not in text
    assert len(text) <= MAX_RETURNED + len(" -> ")


def test_definitions_are_written_out_as_typescript_types_and_end_where_they_repeat() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}, "name": {"type": "string"}}}
    schema = {
        "type": "object",
        "properties": {
            "node": {"$ref": "#/$defs/Node", "description": "The first one."},
            "both": {"allOf": [{"$ref": "#/$defs/Node"}, {"type": "object", "properties": {"x": {"type": "null"}}}]},
            "none": {"$ref": "#/$defs/Nowhere"},
        },
        "$defs": {"Node": node},
    }
    text = typescript_type(schema)
    written = "{ next?: unknown; name?: string; }"
    assert " ".join(text.split()) == (
        f"{{ /** The first one. */ node?: {written}; both?: {written} & {{ x?: null; }}; none?: unknown; }}"
    )
    assert typescript_type({"$ref": "#/$defs/Node"}, 1, schema).startswith("{")


@pytest.mark.anyio
async def test_it_takes_a_dozen_tokens_of_a_hit() -> None:
    tools = [each.to_mcp_tool().model_dump(mode="json", by_alias=True) for each in await calc.build().list_tools()]
    ends = [
        outcome(effect_of(each["annotations"]), unwrapped(each["outputSchema"], {each["name"]}) or each["outputSchema"])
        for each in tools
    ]
    assert all("->" in each and each.endswith("[read]") for each in ends)
    assert mean(map(count_tokens, ends)) <= 14
