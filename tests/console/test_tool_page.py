"""The page of a tool: a form made from its schema, whatever that says, and calls that pass the pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pml_gateway.console.tool_page import MAX_FIELDS, argument_fields, given_arguments
from pml_gateway.errors import InvalidInputError
from pml_gateway.types import JsonObject
from tests.console.pages import Browser, console, hidden_fields
from tests.support.scripted_server import ScriptedServer, tool

SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "What to say.", "default": "hello"},
        "count": {"type": "integer"},
        "loud": {"type": "boolean"},
        "kind": {"enum": ["a", "b", 3]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "where": {"type": "object", "properties": {"x": {"type": "number"}, "deep": {"$ref": "#/$defs/deep"}}},
        "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "any": {},
        "odd": True,
    },
    "required": ["count"],
    "$defs": {"deep": {"type": "object", "properties": {"y": {"type": "string"}}}},
}


def values(**given: str) -> dict[str, str]:
    """Return the values of a form by the names of parameters, with `__` for a member."""
    names = {field.label: field.name for field in argument_fields(SCHEMA)}
    return {names[label.replace("__", ".")]: text for label, text in given.items()}


def test_each_parameter_has_a_field_of_its_kind() -> None:
    fields = {field.label: field for field in argument_fields(SCHEMA)}
    assert [*fields] == ["count", "text", "loud", "kind", "tags", "where.x", "where.deep", "either", "any", "odd"]
    assert fields["count"].flag.required
    assert (fields["text"].default, fields["text"].flag.description) == ("hello", "What to say.")
    assert (fields["loud"].choices, fields["kind"].choices) == (("true", "false"), ("a", "b", "3"))
    assert [label for label, field in fields.items() if field.is_long] == ["tags", "where.deep", "any", "odd"]


def test_a_form_gives_typed_arguments_and_leaves_out_what_is_empty() -> None:
    given = values(
        text="", count="3", loud="false", kind="3", tags='["a"]', where__x="1.5", where__deep='{"y": "z"}', any="[1]"
    )
    assert given_arguments(SCHEMA, given | {"json": '{"more": 1, "where": {"z": 2}}'}) == {
        "more": 1,
        "where": {"z": 2, "x": 1.5, "deep": {"y": "z"}},
        "count": 3,
        "loud": False,
        "kind": 3,
        "tags": ["a"],
        "any": [1],
    }


@pytest.mark.parametrize(
    "given",
    [
        values(count="three"),
        values(kind="c"),
        {"json": "{"},
        {"json": "[1]"},
        values(where__x="1") | {"json": '{"where": 1}'},
    ],
)
def test_a_value_that_does_not_fit_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError) as raised:
        given_arguments(SCHEMA, given)
    assert "--" not in f"{raised.value.message} {raised.value.hint}"


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": None},
        {"properties": {"a": None, "b": 3, "c": []}},
        {"anyOf": [{"type": "object"}]},
        {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"properties": {"a": {"$ref": "#/$defs/a"}}}}},
        {"properties": {"a": {"$ref": "#/nowhere"}, "b": {"enum": [{"x": 1}, None]}, "c": {"default": {"x": 1}}}},
        {"properties": {f"p{number}": {"type": "string"} for number in range(100)}},
        {"properties": {"a.b": {"type": "string"}, "": {"type": "string"}, "x" * 300: {}}, "required": "a"},
    ],
)
def test_no_schema_breaks_the_form(schema: JsonObject) -> None:
    fields = argument_fields(schema)
    assert len(fields) <= MAX_FIELDS
    given_arguments(schema, {field.name: "" for field in fields})
    assert all(isinstance(field.choices, tuple) and isinstance(field.is_long, bool) for field in fields)


def mail() -> ScriptedServer:
    return ScriptedServer(
        [
            tool("read_mail", "Read an email.", {"id": {"type": "string"}}, annotations={"readOnlyHint": True}),
            tool("delete_mail", "Delete an email.", {"id": {"type": "string"}}, annotations={"destructiveHint": True}),
        ]
    )


async def shown_after(browser: Browser, answer: Any) -> str:
    """Return the page that an answer leads to."""
    assert answer.status_code == 303
    text: str = (await browser.client.get(answer.headers["location"])).text
    return text


@pytest.mark.anyio
async def test_a_tool_is_tried_and_its_result_is_shown_with_what_was_given(tmp_path: Path) -> None:
    server = mail()
    async with console(tmp_path, {"mail": server}) as browser:
        page = (await browser.page("tool?name=mail__read_mail")).text
        assert "It is called at once." in page
        back = {"back": "tool?name=mail__read_mail"}
        given = {"name": "mail__read_mail", "argument.0": "<b>7</b>", "json": "", **back}
        after = await shown_after(browser, await browser.do("call", given))
        assert "mail__read_mail answered." in after
        assert 'value="&lt;b&gt;7&lt;/b&gt;"' in after
        wrong = await shown_after(browser, await browser.do("call", {**given, "json": "{"}))
        assert "mail__read_mail was not called" in wrong
        assert "&lt;b&gt;7" in wrong
    assert [call["arguments"] for call in server.calls] == [{"id": "<b>7</b>"}]


@pytest.mark.anyio
async def test_a_tool_that_may_destroy_something_asks_first(tmp_path: Path) -> None:
    async with console(tmp_path, {"mail": mail()}) as browser:
        given = {"name": "mail__delete_mail", "argument.0": "7", "json": ""}
        asked = await browser.do("call", given)
        assert asked.status_code == 200
        assert "mail__delete_mail may destroy something." in asked.text
        assert "{&#34;id&#34;: &#34;7&#34;}" in asked.text
        other = await browser.do("call", {**hidden_fields(asked.text), "argument.0": "8"})
        assert "changed since you looked" in other.text
        assert (await browser.do("call", hidden_fields(other.text))).status_code == 303


@pytest.mark.slow
@pytest.mark.anyio
async def test_rules_decide_about_a_call_of_the_page(tmp_path: Path) -> None:
    rules = [{"match": {"tool": "mail:read_*"}, "do": "deny"}]
    async with console(tmp_path, {"mail": mail()}, rules=rules) as browser:
        after = await shown_after(browser, await browser.do("call", {"name": "mail__read_mail", "json": ""}))
    assert "mail__read_mail failed." in after


@pytest.mark.slow
@pytest.mark.anyio
async def test_the_page_of_a_huge_tool_is_bounded(tmp_path: Path) -> None:
    huge = {
        f"p{number}_{'n' * 300}": {
            "enum": [f"{each}-{'v' * 90}" for each in range(300)],
            "description": "d" * 5_000,
            "default": "x" * 5_000,
        }
        for number in range(60)
    }
    server = ScriptedServer([tool("huge", "D" * 50_000, huge)])
    async with console(tmp_path, {"up": server}) as browser:
        page = await browser.page("tool?name=up__huge")
        assert page.status_code == 200
        assert len(page.content) < 200_000
