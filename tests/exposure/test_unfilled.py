"""Placeholders that a model left in arguments: which texts are one, and which real texts only look like one."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.exposure.unfilled import MAX_TOLD, filled
from tests.support.examples import examples
from tests.support.scripted_server import ScriptedServer, text_result
from tests.support.serving import serving

pytestmark = pytest.mark.anyio

TEXT = {"type": "string"}
NUMBER = {"type": "integer"}
ISSUE: dict[str, Any] = {
    "number": NUMBER,
    "title": TEXT,
    "owner": TEXT,
    "repo": TEXT,
    "path": TEXT,
    "query": TEXT,
    "content": TEXT,
    "start_date": TEXT,
    "userId": TEXT,
    "city": TEXT,
    "ratio": {"anyOf": [{"type": "number"}, {"type": "null"}]},
    "labels": {"type": "array", "items": TEXT},
    "to": {"type": "array", "items": TEXT},
    "state": {"type": "string", "enum": ["open", "<any>"]},
    "fields": {"type": "object", "properties": {"summary": TEXT}},
}


def found(name: str, value: Any) -> list[str]:
    """The pointers of the placeholders in one argument."""
    return [problem["path"] for problem in filled(ISSUE, {name: value}, "get_issue")[1]]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("title", "<string>"),
        ("title", "<title>"),
        ("title", "‹…>"),
        ("title", "‹title›"),
        ("title", "<...>"),
        ("title", "…"),
        ("title", "<TODO>"),
        ("title", "<<title>>"),
        ("title", "[title]"),
        ("title", "[YOUR TITLE]"),
        ("title", "[Insert title here]"),
        ("title", "INSERT_TITLE_HERE"),
        ("title", "{{ title }}"),
        ("title", "{title}"),
        ("title", "${title}"),
        ("title", "<the title of the issue>"),
        ("number", "<number>"),
        ("number", "<issue_id>"),
        ("number", "<your id here>"),
        ("number", "{{id}}"),
        ("owner", "<username>"),
        ("owner", "YOUR_USERNAME"),
        ("owner", "your-user-name"),
        ("repo", "<owner>/<repo>"),
        ("path", "<path/to/file>"),
        ("path", "<path to the file>"),
        ("query", "<search query>"),
        ("query", "<str>"),
        ("content", "<content from the previous step>"),
        ("content", "<content>"),
        ("start_date", "<YYYY-MM-DD>"),
        ("start_date", "<start date in ISO format>"),
        ("userId", "<userId>"),
        ("userId", "<USER_ID>"),
        ("userId", "<user-id>"),
        ("userId", "%userId%"),
        ("city", "<location>"),
        ("city", "<insert a city>"),
        ("labels", ["bug", "<label>"]),
        ("to", ["<recipient email>"]),
        ("to", ["<user>@<domain>"]),
        ("fields", {"summary": "<summary>"}),
        ("labels", '["bug", "<label>"]'),
        ("fields", '{"summary": "<summary>"}'),
        ("ratio", "<anything>"),
        ("unknown", "<array of strings>"),
        ("unknown", "<string | null>"),
        ("oldText", "<old text>"),
        ("new_string", "{{new_string}}"),
        ("pattern", "<pattern>"),
        ("content", "..."),
        ("issue_body", "…"),
    ],
)
def test_a_text_that_only_stands_for_a_value_is_a_placeholder(name: str, text: Any) -> None:
    [path] = found(name, text)
    assert path.startswith(f"/{name}")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("project_id", text) for text in ("TODO", "TBD", "FIXME", "N/A", "string", "Integer", "uuid", "project_id")),
        *(("channelId", text) for text in ("CXXXXXXXXXX", "xxxx-xxxx", "C-XXXX-XXXX", "channel-id", "C012AB…")),
        *(("api_key", text) for text in ("sk-xxxxxxxxxxxx", "xxxxxxxx", "sk_live_XXXX", "********", "${API_KEY}")),
        *(("page_token", text) for text in ("string", "TODO", "$NEXT_TOKEN", "%TOKEN%", "xxx", "undefined")),
        *(("issueNumber", text) for text in ("number", "TODO", "#XXX", "$ISSUE_NUMBER")),
        *(("phone_number", text) for text in ("+1-XXX-XXX-XXXX", "(XXX) XXX-XXXX", "string")),
        *(("name", text) for text in ("${POD_NAME}", "$POD_NAME", "%NAME%", "${pod}", "__POD_NAME__", "XXXX")),
        *(("pod_name", text) for text in ("string", "TODO", "$POD")),
        *(("password", text) for text in ("$PASSWORD", "$DB_PASSWORD", "${DB_PASSWORD}", "string", "TODO")),
        *(("slug", text) for text in ("TODO", "XXXX", "${SLUG}")),
        *(("date", text) for text in ("YYYY-MM-DD", "XXXX-XX-XX", "DD/MM/YYYY")),
        ("user_ids", ["U1", "UXXXXXXXX"]),
    ],
)
def test_a_text_that_identifies_nothing_is_a_placeholder_of_an_identifier(name: str, text: Any) -> None:
    schema = {"type": "array", "items": TEXT} if isinstance(text, list) else TEXT
    _, [problem] = filled({name: schema}, {name: text}, "get_it")
    assert problem["path"].startswith(f"/{name}")
    assert filled({"it": {**TEXT, "format": "uuid"}}, {"it": "string"}, "get_it")[1]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("name", text) for text in ("TODO", "TBD", "uuid", "string", "N/A", "xXx", "XXX", "__init__", "$user")),
        *(("slug", text) for text in ("todo", "uuid", "string", "xxl")),
        *(("status_id", text) for text in ("TODO", "todo", "string")),
        *(("project_id", text) for text in ("todo", "none", "null", "42", "FOX", "LXXX", "box-xx", "a.b/c", "Any")),
        *(("token", text) for text in ("dGhpcyBpcw==", "xoxb-1-2", "$2b$10$abc", "***", "Bearer xyz")),
        *(("password", text) for text in ("$ECRET1", "$UMMER24", "%a%", "hunterxxx")),
        *(("sort_key", text) for text in ("number", "uuid", "date")),
        *(("variable_name", text) for text in ("${HOME}", "$HOME", "%PATH%", "string")),
        *(("text", text) for text in ("TODO", "string", "XXXX", "$HOME", "${HOME}", "%PATH%", "YYYY-MM-DD")),
        *(("command", text) for text in ("$HOME", "%PATH%", "TODO")),
        *(("date_format", text) for text in ("YYYY-MM-DD",)),
        *(("columns", text) for text in ({"id": "uuid", "token": "string"}, {"user_id": "integer"})),
        *(("url", text) for text in ("https://t.org/{z}/{x}/{y}.png", "https://t.org/?q=a<b", "https://t.org/{bbox}")),
        *(("url", text) for text in ("data:text/html,<title>Hi", "https://t.org/?q=<script>a()</script>")),
        *(
            ("url", text)
            for text in ("https://t.org/your-account", "https://t.org/?a=%20b%3Cid%3E", "{{baseUrl}}/users")
        ),
        *(("url_pattern", text) for text in ("https://t.org/{owner}/*", "https://t.org/<id>")),
        *(("content", text) for text in ("https://t.org/{owner}", "https://t.org?token=<your token>")),
    ],
)
def test_the_same_texts_are_values_of_what_somebody_names_or_writes(name: str, text: Any) -> None:
    assert filled({name: {}}, {name: text}, "get_it") == ({name: text}, [])


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("https://api.example.org/v1/me?token=<your token>", "<your token>"),
        ("https://<host>/index.html", "<host>"),
        ("https://api.github.com/repos/{owner}/site", "{owner}"),
        ("https://example.org/users/{{user_id}}/posts", "{{user_id}}"),
        ("https://example.org/?key=${API_KEY}", "${API_KEY}"),
        ("https://example.org/?key=YOUR_API_KEY&x=1", "YOUR_API_KEY"),
        ("postgres://ada:<password>@db.example.org/shop", "<password>"),
    ],
)
def test_a_placeholder_inside_a_url_is_one(text: str, left: str) -> None:
    for name in ("url", "webhook_url", "homepage"):
        arguments, [problem] = filled({name: TEXT}, {name: text}, "fetch")
        assert problem["message"] == f"{left!r} is a placeholder, and no value"
        assert arguments == {name: text}
        assert filled({name: TEXT}, {name: f"\\{text}"}, "fetch") == ({name: text}, [])


def test_a_variable_with_the_name_of_a_step_is_none() -> None:
    assert filled({"id": TEXT}, {"id": "$POD"}, "get", {"POD"})[1] == []
    assert filled({"id": TEXT}, {"id": "$POD"}, "get")[1] != []


REAL = (
    *("<div>", "<p>Hello</p>", "<br/>", "<br />", "</div>", "<a href='x'>", "<input disabled>", "<b>bold</b>", "<svg>"),
    *("<!DOCTYPE html>", "<?xml version='1.0'?>", "<root><id>5</id></root>", "<!-- comment -->", "<my-element>"),
    *("a@b.c", "<a@b.c>", "Ada <ada@b.c>", "<https://example.org>", "<@U123>", "<#C123>", "<!here>"),
    *("List<string>", "Map<string, List<int>>", "<T>", "<K, V>", "vector<T>", "#include <string>", "<stdio.h>"),
    *("a < b > c", "1 < 2", "if (a<b && c>d)", "<>", "<=>", "<-", "->", "<3", "<0.5", "<5 ms", "> 3", "<<EOF"),
    *("<Enter>", "<C-a>", "<Shift-Enter>", "<|im_start|>", "<s>", "<no subject>", "<none>", "<unknown>"),
    *("<Button>", "<UserName>", "<script>", "<%= x %>", "{% if x %}", "{{#each}}", "{{user.name}}", "Hello {{name}}"),
    *("${HOME}", "$HOME", "%PATH%", "%d", "100%", "{}", "{0}", "{a,b}", '{"id": 1}', "[]", "[1, 2]", "[x]", "[ ]"),
    *("[draft]", "[WIP]", "[bug] crash", "[id]: https://x", "[[Main Page]]", "[link](url)", "[a-z]", "[tool.poetry]"),
    *("‹Zitat›", "«Bonjour le monde»", "/users/<id>/posts", "https://x/<id>", "^<title>$", "Dear <name>, hello"),
    *("N/A", "TODO", "?", "*", "..", "./...", "__init__", "your_file.txt", "Your order is here", "here", "", " "),
    *("the title of the issue", "string", "id", "number", "<title>The title</title>", "<name>Ada</name>"),
)


@pytest.mark.parametrize("name", ["query", "content", "path", "title", "city", "labels", "unknown"])
def test_real_texts_pass_as_they_are(name: str) -> None:
    for text in REAL:
        value = [text] if name == "labels" else text
        arguments, problems = filled(ISSUE, {name: value}, "write_file")
        assert problems == [], text
        assert arguments == {name: value}


def test_what_the_schema_itself_gives_as_a_value_is_one() -> None:
    assert found("state", "<any>") == []
    assert found("state", "<state>") == ["/state"]


def test_all_placeholders_of_a_call_are_told_with_what_they_stand_for() -> None:
    parameters = {"id": {"type": "integer", "description": "The number of the issue. Not its id."}, "title": TEXT}
    _, problems = filled(parameters, {"id": "<id>", "title": "<title>"}, "close")
    assert [each["path"] for each in problems] == ["/id", "/title"]
    assert problems[0]["message"] == "'<id>' is a placeholder, and no value"
    hint = "write the id that is meant instead of <id> (integer: The number of the issue)"
    assert problems[0]["hint"] == f"{hint}; a backslash before it makes it text"


WORDS = st.text(string.ascii_letters, min_size=1, max_size=8)
TAGS = st.sampled_from(["div", "p", "title", "name", "id", "string", "item", "xs:string", "my-el", "h1"])
ADDRESSES = st.tuples(WORDS, WORDS).map(lambda parts: f"{parts[0]}@{parts[1]}.org")
REAL_TEXTS = st.one_of(
    st.tuples(TAGS, WORDS).map(lambda parts: f"<{parts[0]}>{parts[1]}</{parts[0]}>"),
    st.tuples(TAGS, WORDS, WORDS).map(lambda parts: f'<{parts[0]} {parts[1]}="{parts[2]}">'),
    st.tuples(TAGS, TAGS).map(lambda parts: f"<{parts[0]}><{parts[1]}/></{parts[0]}>"),
    st.tuples(WORDS, TAGS).map(lambda parts: f"{parts[0]}<{parts[1]}>"),
    st.tuples(WORDS, WORDS, WORDS).map(lambda parts: f"{parts[0]} < {parts[1]} > {parts[2]}"),
    st.tuples(WORDS, ADDRESSES).map(lambda parts: f"{parts[0]} <{parts[1]}>"),
    ADDRESSES.map(lambda address: f"<{address}>"),
    st.tuples(WORDS, st.sampled_from(["<id>", "{{id}}", "[id]", "${id}"])).map(lambda parts: f"{parts[0]} {parts[1]}"),
    st.dictionaries(WORDS, WORDS, min_size=1, max_size=3).map(json.dumps),
    st.lists(st.integers(), max_size=3).map(str),
)


@settings(max_examples=examples(400))
@given(REAL_TEXTS, st.sampled_from(list(ISSUE)))
def test_markup_addresses_types_comparisons_and_sentences_pass(text: str, name: str) -> None:
    arguments, problems = filled({name: TEXT}, {name: text}, "tool")
    assert (arguments, problems) == ({name: text}, [])


PIECES = st.sampled_from(["<", ">", "{{", "}}", "[", "]", "…", "...", "\\", " ", "id", "your", "title", "string", "/"])


@settings(max_examples=examples(400))
@given(st.lists(PIECES | st.text(max_size=3), max_size=8).map("".join), st.sampled_from(["title", "number", "query"]))
def test_a_backslash_makes_any_placeholder_text_and_changes_no_other(text: str, name: str) -> None:
    assert filled(ISSUE, {name: text}, "tool")[0] == {
        name: text[1:] if text[:1] == "\\" and is_one(text, name) else text
    }
    if is_one(text, name) and text[:1] != "\\":
        assert filled(ISSUE, {name: f"\\{text}"}, "tool") == ({name: text}, [])


def is_one(text: str, name: str) -> bool:
    return bool(found(name, text.lstrip("\\")))


def server() -> ScriptedServer:
    async def reply(_: Any, call: dict[str, Any]) -> dict[str, Any]:
        return text_result("<id>" if call["name"] == "read" else "done")

    properties = {"id": {"type": "integer", "description": "The issue."}, "text": TEXT, "note": TEXT}
    write = {"name": "write", "inputSchema": {"type": "object", "properties": properties, "required": ["id"]}}
    return ScriptedServer([write, {"name": "read", "inputSchema": {"type": "object"}}], reply)


WRITTEN = {"id": "<id>", "text": "<text>", "nosuch": 1}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(
            ("old_string", "your_api_key"),
            ("newText", "<your name>"),
            ("pattern", "<TODO>"),
            ("template", "{{your_id}}"),
        ),
        *(("query", "[TODO]"), ("query", "your_name"), ("query", "..."), ("message", "…"), ("path", "...")),
        *(("body", "[placeholder]"), ("comment", "..."), ("search_expression", "<your-id>"), ("text", "insert-here")),
    ],
)
def test_texts_that_are_looked_for_or_put_in_as_they_stand_pass(name: str, text: str) -> None:
    assert filled({name: TEXT}, {name: text}, "edit_file") == ({name: text}, [])
    assert filled({"id": NUMBER}, {"id": text}, "edit_file")[1]
    assert filled({name: TEXT}, {name: f"<your {name}>"}, "edit_file")[1] or name not in ("query", "message", "path")


@pytest.mark.parametrize("text", ["<a>x" * 29, "<a b><c>/<d>e", "your-team-of-old", "%a b %c"])
def test_only_so_many_texts_are_read_however_many_there_are(text: str) -> None:
    assert found("unknown", [*[text] * 10, "<your id>"]) == ["/unknown/10"]
    assert found("unknown", [*[text] * 5_000, "<your id>"]) == []
    assert found("unknown", ["<your id>"] * 20_000) == [f"/unknown/{at}" for at in range(MAX_TOLD)]


async def test_a_call_a_batch_and_a_workflow_refuse_placeholders_with_all_other_faults(tmp_path: Path) -> None:
    fake = server()
    async with serving(tmp_path, {"up": fake}, trust={"new_servers": "accept"}) as served:
        told = await served.call("call_tool", {"name": "up__write", "arguments": WRITTEN})
        error = told["structuredContent"]["error"]
        assert [each["path"] for each in error["details"]["errors"]] == ["/id", "/text", "/nosuch"]
        assert "write the id that is meant instead of <id> (integer: The issue)" in error["hint"]
        calls = [{"name": "up__write", "arguments": WRITTEN}, {"name": "up__read"}]
        slots = (await served.call("call_batch", {"calls": calls}))["structuredContent"]["slots"]
        paths = [each["path"] for each in slots[0]["error"]["details"]["errors"]]
        assert paths == ["/calls/0/arguments/id", "/calls/0/arguments/text"]
        assert slots[1]["ok"]
        fake.calls.clear()
        steps = [{"tool": "up__read"}, {"id": "w", "tool": "up__write", "arguments": WRITTEN}]
        expected = [f"/steps/1/arguments/{name}" for name in ("id", "text", "nosuch")]
        dry = (await served.call("execute_workflow", {"steps": steps, "dry_run": True}))["structuredContent"]
        assert [each["path"] for each in dry["steps"][1]["problems"]] == expected
        real = (await served.call("execute_workflow", {"steps": steps}))["structuredContent"]
        assert [each["path"] for each in real["error"]["details"]["errors"]] == expected
        assert fake.calls == []


async def test_text_with_a_backslash_and_results_that_look_like_placeholders_are_passed(tmp_path: Path) -> None:
    fake = server()
    async with serving(tmp_path, {"up": fake}, trust={"new_servers": "accept"}) as served:
        sent = {"id": 1, "text": r"\<text>", "note": r"\d"}
        meant = {"id": 1, "text": "<text>", "note": r"\d"}
        await served.call("call_tool", {"name": "up__write", "arguments": sent})
        await served.call("call_batch", {"calls": [{"name": "up__write", "arguments": sent}]})
        steps = [{"id": "r", "tool": "up__read"}, {"tool": "up__write", "arguments": {**sent, "note": "$r"}}]
        await served.call("execute_workflow", {"steps": steps})
    written = [call["arguments"] for call in fake.calls if call["name"] == "write"]
    assert written == [meant, meant, {**meant, "note": "<id>"}]
