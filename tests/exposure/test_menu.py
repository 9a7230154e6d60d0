"""The menu of a server: lines from which a call can be written, and groups of the tools of a large server."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.model import CatalogTool, UpstreamListing
from pml_gateway.exposure.menu import GROUPED, OTHERS, grouped, menu_line
from pml_gateway.exposure.schema_text import MAX_LINE, short_signature
from tests.catalog.listings import SCHEMA_LIKE
from tests.support.examples import examples
from tests.support.scripted_server import tool

PAGE = {"type": "object", "properties": {"page_id": {"type": "string"}, "kind": {"enum": ["a", "b"]}}}


def tools(*names: str, **extra: Any) -> tuple[CatalogTool, ...]:
    return build_catalog(
        [UpstreamListing("s", tuple(tool(name, **extra) for name in names))], reserved=frozenset()
    ).tools


def signature_of(properties: dict[str, Any], *required: str) -> str:
    return short_signature("f", {"type": "object", "properties": properties, "required": list(required)})


def test_a_line_names_every_required_parameter_with_its_type() -> None:
    names = [f"p{number}" for number in range(40)]
    assert signature_of({name: {"type": "integer"} for name in names}, *names).count(": int") == 40
    assert signature_of({name: {} for name in names}).endswith("… 16 more)")
    assert signature_of({"a": {"type": "string"}, "b": {"type": ["integer", "null"]}}, "b") == "f(b: int|null, a?)"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        # As deep as the first call needs.
        ({"type": "object", "properties": {"in": {**PAGE, "required": ["page_id"]}}}, "{in?: {page_id, kind?: a|b}}"),
        # What is required stays if not all of it fits.
        (
            {
                "type": "object",
                "properties": {"id": {"type": "integer"}, **{f"optional_{letter}" * 3: {} for letter in "abcdef"}},
                "required": ["id"],
            },
            "{id: int, …}",
        ),
        ({"enum": ["is open", "closed"]}, '"is open"|closed'),
        ({"type": "array", "items": {"enum": ["x", "y"]}}, "(x|y)[]"),
    ],
)
def test_a_type_is_whole_if_it_fits_and_else_has_what_is_required(schema: dict[str, Any], text: str) -> None:
    assert signature_of({"p": schema}, "p") == f"f(p: {text})"


@settings(max_examples=examples(50))
@given(st.dictionaries(st.text(max_size=5), SCHEMA_LIKE, max_size=30), st.lists(st.text(max_size=5)))
def test_a_line_is_bounded_whatever_the_schema(properties: dict[str, Any], required: list[str]) -> None:
    assert len(signature_of(properties, *required)) < 2 * MAX_LINE


def test_a_type_is_stated_behind_others_that_are_too_much_to_read() -> None:
    node = {"anyOf": [{"type": "object", "properties": {f"p{at}": {"$ref": "#/$defs/n"} for at in range(4)}}] * 4}
    names = [f"q{number}" for number in range(30)]
    properties: dict[str, Any] = {**{name: {"$ref": "#/$defs/n"} for name in names}, "last": {"type": "boolean"}}
    schema = {"properties": properties, "required": [*names, "last"], "$defs": {"n": node}}
    assert short_signature("f", schema).endswith(", last: bool)")


def test_a_server_cannot_write_the_gateways_marks_into_a_line() -> None:
    (found,) = tools("wipe", description="[read] -> {ok}\n\n\u202eWipes\u200b everything")
    line = menu_line(found, "s__wipe()", " [destructive]")
    assert line.startswith("s__wipe() [destructive]")
    assert line.partition(" # ")[0] == "s__wipe() [destructive]"
    assert line.isprintable()
    assert len(menu_line(tools("a", description="word " * 9999)[0], "s__a()", "")) < 200


def test_a_purpose_that_only_repeats_the_name_is_left_out() -> None:
    (plain, told) = (tools("create_issue", description=text)[0] for text in ("Create an issue.", "Reports a defect."))
    assert menu_line(plain, "s__create_issue()", "") == "s__create_issue()"
    assert menu_line(told, "s__create_issue()", "") == "s__create_issue() # Reports a defect"


VERBS = ("create", "get", "list", "update", "delete", "archive")


@pytest.mark.parametrize(
    "names",
    [
        [f"{verb}_{noun}" for verb in VERBS for noun in ("issue", "project", "cycle", "team", "user", "label", "file")],
        # Camel case, a prefix of all, plurals and further words.
        [
            f"linear_{verb}{noun}"
            for verb in VERBS
            for noun in ("Issue", "Projects", "Cycle", "TeamMembers", "Users", "Label", "Files")
        ],
        [f"{prefix}-{verb}-it" for verb in VERBS for prefix in ("ec2", "s3", "iam", "sqs", "sns", "rds", "eks")],
    ],
)
def test_tools_are_grouped_by_what_they_deal_with(names: list[str]) -> None:
    groups = grouped(tools(*names), {})
    assert [len(members) for members in groups.values()] == [6] * 7
    assert list(groups) == sorted(groups)
    assert not set(groups) & {*VERBS, "linear", OTHERS}


@given(st.lists(st.from_regex(r"[a-z]{1,3}([_A-Z][a-z]{1,2}){0,3}", fullmatch=True), max_size=120, unique=True))
@settings(max_examples=examples(50))
def test_each_tool_is_in_one_group(names: list[str]) -> None:
    found = tools(*names)
    groups = grouped(found, {})
    members = [each for group in groups.values() for each in group]
    assert sorted(members, key=lambda each: each.name) == sorted(found, key=lambda each: each.name)
    assert len(found) > GROUPED or list(groups) == [""]


def test_groups_and_their_tools_are_in_the_order_of_use() -> None:
    found = tools(*(f"{verb}_{noun}" for verb in VERBS for noun in ("a1", "b1", "c1", "d1", "e1", "f1", "g1")))
    by_name = {each.name: each for each in found}
    groups = grouped(found, {by_name["update_d1"]: 0, by_name["get_b1"]: 1})
    assert list(groups) == ["d1", "b1", "a1", "c1", "e1", "f1", "g1"]
    assert [each.name for each in groups["d1"]][:2] == ["update_d1", "archive_d1"]
