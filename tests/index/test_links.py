"""Tools are linked by what the results of one are worth to the parameters of another."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.index.concepts import LinkedTool, ends_of
from pml_gateway.index.links import Links, feeds
from pml_gateway.types import JsonObject

TEXT: JsonObject = {"type": "string"}


def tool(key: str, description: str = "", output: JsonObject | None = None, /, **parameters: JsonObject) -> LinkedTool:
    server, _, name = key.partition("__")
    inputs = {"type": "object", "properties": parameters, "required": list(parameters)}
    return LinkedTool(key, server, name, description, inputs, output)


def array(**properties: JsonObject) -> JsonObject:
    return {"type": "array", "items": {"type": "object", "properties": properties}}


ISSUES = {"type": "object", "properties": {"issues": array(number={"type": "integer"}, title=TEXT)}}


def fed(producer: LinkedTool, consumer: LinkedTool) -> list[tuple[str, str]]:
    return [(feed.path, feed.parameter) for feed in feeds(ends_of(producer), ends_of(consumer))]


@pytest.mark.parametrize(
    ("producer", "consumer", "expected"),
    [
        pytest.param(
            tool("hub__list_issues", "", ISSUES, state=TEXT),
            tool("hub__add_comment", "", None, issue_number={"type": "integer"}, body=TEXT),
            [(".issues[*].number", "issue_number")],
            id="a field with what it is a field of",
        ),
        pytest.param(
            tool("hub__search", "", {"type": "array", "items": {"type": "object", "properties": {"skyId": TEXT}}}),
            tool("air__book", "", None, originSkyId=TEXT),
            [("[*].skyId", "originSkyId")],
            id="a field whose name is the end of a parameter's",
        ),
        pytest.param(
            tool("crm__get_customer", "", {"type": "object", "properties": {"e-mail": TEXT, "email": TEXT}}, name=TEXT),
            tool("mail__send", "", None, recipient={"type": "string", "description": "email address of the customer"}),
            [(".email", "recipient")],
            id="a field that a description names",
        ),
        pytest.param(
            tool("crm__find_customers", "", None, name=TEXT),
            tool("crm__close", "", None, customer_id=TEXT),
            [("", "customer_id")],
            id="only the name tells what comes",
        ),
        pytest.param(
            tool("crm__get_customer", "", None, customer_id=TEXT),
            tool("crm__close", "", None, customer_id=TEXT),
            [],
            id="what a tool takes it does not yield",
        ),
        pytest.param(
            tool("crm__delete_customer", "", None, name=TEXT),
            tool("crm__close", "", None, customer_id=TEXT),
            [],
            id="what is deleted is of no use",
        ),
        pytest.param(
            tool("crm__count", "", {"type": "object", "properties": {"limit": {"type": "integer"}}}),
            tool("crm__find", "", None, limit={"type": "integer"}),
            [],
            id="options are no things",
        ),
        pytest.param(
            tool("crm__find_state", "", {"type": "object", "properties": {"order_state": TEXT}}),
            tool("crm__list", "", None, order_state={"enum": ["open", "closed"]}),
            [],
            id="a choice is the caller's",
        ),
    ],
)
def test_fields_feed_the_parameters_that_mean_them(
    producer: LinkedTool, consumer: LinkedTool, expected: list[tuple[str, str]]
) -> None:
    assert fed(producer, consumer) == expected


def test_the_path_of_a_field_is_jmespath() -> None:
    row = {"Row": array(order_id=TEXT)}
    output = {"type": "object", "properties": {"odd name": {"$ref": "#/$defs/Row"}}, "$defs": row}
    assert fed(tool("a__list", "", output), tool("a__buy", "", None, order_id=TEXT)) == [
        ('."odd name"[*].order_id', "order_id")
    ]


def shop() -> list[LinkedTool]:
    fillers = [tool(f"hub__rotate_key{n}", f"Rotates signing material {n}", None, seed=TEXT) for n in range(30)]
    return [
        *fillers,
        tool("hub__create_issue", "Create an issue.", None, title=TEXT),
        tool("hub__list_issues", "List issues.", None, repo=TEXT),
        tool("hub__comment", "Comment on an issue.", None, issue_number=TEXT, body=TEXT),
        tool("git__add", "Adds file contents to the staging area", None, files=TEXT),
        tool("git__commit", "Records changes to the repository", None, message=TEXT),
        tool("docs__resolve_library", "Finds a library.", None, title=TEXT),
        tool("docs__get_docs", "Needs an id, call resolve_library first.", None, token=TEXT),
    ]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("hub__create_issue", "hub__comment"),
        ("hub__comment", "hub__list_issues"),
        ("git__add", "git__commit"),
        ("git__commit", "git__add"),
        ("docs__get_docs", "docs__resolve_library"),
        ("docs__resolve_library", "docs__get_docs"),
    ],
)
def test_producers_consumers_and_the_next_step_are_related(key: str, expected: str) -> None:
    assert expected in Links.build(shop()).related(key)[:2]


def test_tools_of_a_large_server_that_nothing_links_are_not_related() -> None:
    assert Links.build(shop()).related("hub__rotate_key3") == ()


def test_a_word_that_all_names_of_a_server_begin_with_links_nothing() -> None:
    pages = [
        tool(f"web__browser_{verb}", "Acts on the browser", None, browser_name=TEXT)
        for verb in (f"shake{n}" for n in range(30))
    ]
    assert Links.build(pages).related("web__browser_shake1") == ()


def test_the_search_for_links_can_be_stopped() -> None:
    def stop() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        Links.build(shop(), stop)


SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {}, optional={"type": st.sampled_from(["string", "object", "array", ["null", "x"], 3, None])}
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "array", "string"]),
            "properties": st.dictionaries(st.text(max_size=6), inner, max_size=3) | st.none(),
            "items": inner | st.booleans(),
            "additionalProperties": inner | st.booleans(),
            "anyOf": st.lists(inner, max_size=2) | st.text(max_size=2),
            "$ref": st.sampled_from(["#/$defs/a", "#", "x"]),
            "$defs": st.dictionaries(st.just("a"), inner) | st.none(),
            "required": st.lists(st.text(max_size=3), max_size=2) | st.booleans(),
            "description": st.text(max_size=12) | st.integers(),
        },
    ),
    max_leaves=8,
)


@given(st.lists(st.tuples(st.text(max_size=10), st.text(max_size=20), SCHEMAS, SCHEMAS | st.none()), max_size=5))
def test_any_definition_can_be_linked_and_no_tool_with_itself(definitions: list[tuple[str, str, Any, Any]]) -> None:
    tools = [LinkedTool(f"{at}", "s", *definition) for at, definition in enumerate(definitions)]
    links = Links.build(tools)
    for each in tools:
        assert each.key not in links.related(each.key)
        for other in tools:
            feeds(ends_of(each), ends_of(other))
