"""Names inside of arguments are read or refused as those at the top: none vanishes without a word."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import pytest

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.model import UpstreamListing
from pml_gateway.errors import InvalidInputError
from pml_gateway.exposure.coercion import undeclared_in
from pml_gateway.exposure.parameter_names import ToolSubject
from pml_gateway.exposure.validation import ValidArguments, check_arguments, open_problems
from tests.catalog.listings import only_tool

EDIT = {
    "type": "object",
    "properties": {"old_text": {"type": "string"}, "new_text": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["old_text"],
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "edits": {"type": "array", "items": EDIT},
        "options": {"type": "object", "properties": {"dry_run": {"type": "boolean"}, "limit": {}}},
        "where": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]},
        "free": {"type": "object"},
        "open": {"type": "object", "properties": {"a": {}}, "additionalProperties": True},
        "either": {"anyOf": [EDIT, {"type": "object", "properties": {"line": {"type": "integer"}}}]},
        "pair": {"type": "array", "prefixItems": [EDIT], "items": EDIT},
    },
    "$defs": {
        "place": {"type": "object", "properties": {"line": {"type": "integer"}, "inner": {"$ref": "#/$defs/place"}}}
    },
}


def checked(arguments: dict[str, Any], schema: dict[str, Any] = SCHEMA) -> ValidArguments:
    return anyio.run(check_arguments, only_tool(inputSchema=schema), arguments)


def refused(arguments: dict[str, Any], schema: dict[str, Any] = SCHEMA) -> list[tuple[str, str, str]]:
    with pytest.raises(InvalidInputError) as caught:
        checked(arguments, schema)
    return [(each["path"], each["message"], each.get("hint", "")) for each in caught.value.details["errors"]]


def test_another_spelling_of_a_nested_name_is_read_and_told() -> None:
    found = checked({"edits": [{"old_text": "a"}, {"oldText": "b", "newText": "c"}], "options": {"dryRun": True}})
    assert found.arguments == {
        "edits": [{"old_text": "a"}, {"old_text": "b", "new_text": "c"}],
        "options": {"dry_run": True},
    }
    assert found.coerced == {
        "/edits/1/oldText": "read as 'old_text'",
        "/edits/1/newText": "read as 'new_text'",
        "/options/dryRun": "read as 'dry_run'",
    }


def test_a_value_under_another_spelling_is_coerced_as_well_and_told_where_it_stood() -> None:
    found = checked({"edits": [{"oldText": "a", "Count": "3"}]})
    assert found.arguments == {"edits": [{"old_text": "a", "count": 3}]}
    assert found.coerced["/edits/0/Count"] == "read as 'count', text read as integer"


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"edits": [{"old_text": "a", "replaceAll": True}]}, "/edits/0/replaceAll"),
        ({"options": {"verbose": 1}}, "/options/verbose"),
        ({"where": {"inner": {"inner": {"column": 3}}}}, "/where/inner/inner/column"),
    ],
)
@pytest.mark.parametrize("closed", [False, True])
def test_a_nested_name_that_nothing_declares_is_refused_with_its_place(
    arguments: dict[str, Any], path: str, closed: bool
) -> None:
    schema = SCHEMA
    if closed:
        closed_edit = {**EDIT, "additionalProperties": False}
        properties = {**SCHEMA["properties"], "edits": {"type": "array", "items": closed_edit}}
        schema = {**SCHEMA, "properties": properties}
    [(at, message, _)] = refused(arguments, schema)
    assert (at, message) == (path, f"{path.rpartition('/')[2]!r} is none of its keys")


def test_what_is_missing_beside_it_is_suggested() -> None:
    [missing, unknown] = refused({"edits": [{"text": "a"}]})
    assert missing[:2] == ("/edits/0", "'old_text' is a required property")
    assert unknown == (
        "/edits/0/text",
        "'text' is none of its keys",
        'write "old_text" or "new_text" instead of "text"',
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"free": {"anything": {"deep": 1}}},
        {"open": {"a": 1, "b": {"c": 2}}},
        {"either": {"line": 1, "old_text": "a", "column": 2}},
        {"pair": [{"old_text": "a", "x": 1}]},
        {"where": None},
    ],
)
def test_where_other_names_are_allowed_or_several_schemas_apply_nothing_is_refused(arguments: dict[str, Any]) -> None:
    assert checked(arguments).arguments == arguments


def test_a_reference_under_another_spelling_stays_unknown() -> None:
    tool = only_tool(inputSchema=SCHEMA)
    given = {"edits": [{"oldText": {"$ref": "a"}}]}
    assert open_problems(tool, given, frozenset({"/edits/0/oldText"})) == []
    assert open_problems(tool, {"edits": {"$ref": "a"}}, frozenset({"/edits"})) == []
    [problem] = open_problems(tool, {"edits": [{"old_text": "x", "all": 1}]}, frozenset({"/path"}))
    assert problem["path"] == "/edits/0/all"


def test_the_names_of_many_objects_are_told_a_few_times_only() -> None:
    names = {f"p{number}": {"type": "string"} for number in range(300)}
    item = {"type": "object", "properties": names}
    schema = {"type": "object", "properties": {"xs": {"type": "array", "items": item}}}
    assert undeclared_in(schema, {"xs": [{}] * 2000}, ToolSubject) == []
    assert 0 < len(undeclared_in(schema, {"xs": [{"q": 1}] * 1000}, ToolSubject)) <= 40


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"properties": {"f": {"$ref": "#/$defs/b", "properties": {"extra": {}}}}}, {"f": {"extra": "y"}}),
        (
            {
                "properties": {"c": {"type": "object", "properties": {"kind": {}, "at": {}}}},
                "oneOf": [{"properties": {"c": {"properties": {"host": {}}}}}],
            },
            {"c": {"kind": "a", "host": "h"}},
        ),
        ({"properties": {"h": {"type": "object", "properties": {"Authorization": {}}}}}, {"h": {"X-Api-Key": "k"}}),
        ({"properties": {"m": {"type": "object", "properties": {"ref": {}, "x": {}}}}, "a": 1}, {"m": {"ref": 1}}),
    ],
)
def test_what_more_than_one_schema_or_none_decides_is_left_alone(
    schema: dict[str, Any], arguments: dict[str, Any]
) -> None:
    whole = {"type": "object", "$defs": {"b": {"type": "object", "properties": {"a": {}, "b": {}}}}, **schema}
    assert checked(arguments, whole).arguments == arguments


def test_a_name_of_a_reference_is_no_spelling_of_another() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "object", "properties": {"ref": {}, "text": {}}}}}
    [(path, _, _)] = refused({"q": {"$ref": "#/x"}}, schema)
    assert path == "/q/$ref"


def test_a_problem_is_told_where_it_stood_in_the_request() -> None:
    schema = {"type": "object", "properties": {"file_path": {"type": "integer"}}}
    [(path, _, _)] = refused({"filePath": "abc"}, schema)
    assert path == "/filePath"


REMARK = {"type": "object", "additionalProperties": False}
AT_LINE = {
    **REMARK,
    "properties": {"path": {"type": "string"}, "line": {"type": "integer"}, "body": {"type": "string"}},
    "required": ["path", "line", "body"],
}
AT_TIME = {
    **REMARK,
    "properties": {"path": {"type": "string"}, "second": {"type": "integer"}, "body": {"type": "string"}},
    "required": ["path", "second", "body"],
}


def test_the_only_one_of_several_schemas_that_takes_the_names_reads_them() -> None:
    schema = {"type": "object", "properties": {"remarks": {"type": "array", "items": {"anyOf": [AT_LINE, AT_TIME]}}}}
    sent = {"remarks": [{"file": "a.py", "line": 3, "comment": "b"}, {"path": "a.mp3", "second": 3, "text": "b"}]}
    assert checked(sent, schema).arguments == {
        "remarks": [{"path": "a.py", "line": 3, "body": "b"}, {"path": "a.mp3", "second": 3, "body": "b"}]
    }
    assert refused({"remarks": [{"file": "a.py", "comment": "b"}]}, schema)


def test_an_object_that_takes_any_name_is_read_for_what_is_missing_only() -> None:
    edit = {**EDIT, "additionalProperties": True}
    schema = {"type": "object", "properties": {"edit": edit}}
    found = checked({"edit": {"oldText": "a", "new": "b", "note": "c"}}, schema).arguments
    assert found == {"edit": {"old_text": "a", "new": "b", "note": "c"}}
    whole = {"edit": {"old_text": "a", "new_text": "b", "replacement": "c"}}
    assert checked(whole, schema).arguments == whole


@pytest.mark.anyio
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "additionalProperties": True, "required": ["a"], "$defs": {"a": {}}},
        {"type": "object", "properties": {"": {}}},
        {"type": "object", "properties": {"_": {}, "-": {}, "a": {}}, "required": ["_"]},
    ],
)
@pytest.mark.parametrize("given", ["b", "base", "from", "id", ""])
async def test_schemas_without_names_are_no_trouble(schema: dict[str, Any], given: str) -> None:
    catalog = build_catalog([UpstreamListing("up", ({"name": "t", "inputSchema": schema},))])
    with suppress(InvalidInputError):
        await check_arguments(catalog.tools[0], {given: None})
