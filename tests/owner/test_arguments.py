"""Words of a command line become arguments of the types the tool's schema wants."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.errors import InvalidInputError
from pml_gateway.owner.arguments import flags_of, given_arguments, read_flags
from pml_gateway.types import JsonObject

SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "max_lines": {"type": "integer"},
        "ratio": {"type": ["number", "null"]},
        "dryRun": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "sizes": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
        "level": {"enum": ["low", "high", 3]},
        "filter": {"$ref": "#/$defs/filter"},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "anything": {},
    },
    "required": ["path"],
    "$defs": {
        "filter": {"type": "object", "properties": {"name": {"type": "string"}, "deep": {"$ref": "#/$defs/filter"}}}
    },
}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--path 7", {"path": "7"}),
        ("--path=a=b", {"path": "a=b"}),
        ("--max-lines 3", {"max_lines": 3}),
        ("--max_lines 3 --maxLines 4", {"max_lines": 4}),
        ("--ratio null", {"ratio": None}),
        ("--ratio 1", {"ratio": 1}),
        ("--dry-run", {"dryRun": True}),
        ("--no-dry-run", {"dryRun": False}),
        ("--dryRun=no --path x", {"dryRun": False, "path": "x"}),
        ("--dry-run false --path x", {"dryRun": False, "path": "x"}),
        ("--tags a --tags 1", {"tags": ["a", "1"]}),
        ('--tags ["x","y"] --tags z', {"tags": ["x", "y", "z"]}),
        ("--sizes 1 --sizes 2", {"sizes": [1, 2]}),
        ("--level 3", {"level": 3}),
        ("--filter.name n --filter.deep.name m", {"filter": {"name": "n", "deep": {"name": "m"}}}),
        ('--filter {"name":"n"} --filter.deep.name m', {"filter": {"name": "n", "deep": {"name": "m"}}}),
        ("--either 7 --anything x", {"either": 7, "anything": "x"}),
        ("--either seven --anything [1]", {"either": "seven", "anything": [1]}),
        ("--path --dry-run", {"path": "--dry-run"}),
    ],
)
def test_words_are_read_by_the_schema(words: str, expected: JsonObject) -> None:
    assert read_flags(SCHEMA, words.split()) == expected


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ("--pahth x", "no parameter --pahth", "did you mean --path?"),
        ("--path", "--path needs a value", "string"),
        ("--max-lines many", "'many' is no integer", ""),
        ("--level medium", "'medium' is none of its choices", "low | high | 3"),
        ("--no-path x", "no parameter --no-path", ""),
        ("--no-dry-run=1", "--no-dry-run takes no value", ""),
        ("stray", "'stray' is no option", "--name VALUE"),
    ],
)
def test_what_cannot_be_read_is_named_with_what_can_be_done(words: str, message: str, hint: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        read_flags(SCHEMA, words.split())
    assert message in raised.value.message
    assert hint in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("text", "what"), [("zone=UTC", "not JSON: 'zone=UTC' (Exp"), ("[1]", "not a JSON object: '[1]'")]
)
def test_arguments_that_are_not_an_object_are_named_with_both_ways_to_write_them(text: str, what: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        given_arguments(text, [])
    assert what in raised.value.message
    assert "--path a.txt" in raised.value.hint


def test_flags_go_over_what_was_given_and_leave_the_rest() -> None:
    given_before = {"path": "a", "tags": ["old"], "filter": {"name": "n"}}
    assert read_flags(SCHEMA, ["--tags", "new", "--filter.deep.name", "m"], given_before) == {
        "path": "a",
        "tags": ["new"],
        "filter": {"name": "n", "deep": {"name": "m"}},
    }
    assert given_before["tags"] == ["old"]


def test_required_parameters_come_first_and_schemas_that_refer_to_themselves_end() -> None:
    options = [flag.option for flag in flags_of(SCHEMA)]
    assert options[0] == "--path"
    assert "--filter.deep.deep.deep.name" not in options
    assert flags_of({"properties": {"x": {"$ref": "#/properties/x"}}})[0].values == "any JSON"


NAMES = st.text(st.sampled_from("abcXYZ_09"), min_size=1, max_size=8)
VALUES: st.SearchStrategy[tuple[str, Any, str]] = st.one_of(
    st.text(max_size=20).map(lambda text: ("string", text, text)),
    st.integers(-(10**12), 10**12).map(lambda number: ("integer", number, str(number))),
    st.booleans().map(lambda flag: ("boolean", flag, str(flag).lower())),
)


@given(values=st.dictionaries(NAMES, VALUES, max_size=6))
def test_whatever_the_names_and_values_they_arrive_as_they_were_meant(values: dict[str, tuple[str, Any, str]]) -> None:
    schema = {"properties": {name: {"type": kind} for name, (kind, _, _) in values.items()}}
    words = [f"--{name}={text}" for name, (_, _, text) in values.items()]
    assert read_flags(schema, words) == {name: value for name, (_, value, _) in values.items()}
