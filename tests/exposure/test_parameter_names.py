"""Names that a tool does not declare are read if they have one reading, and refused with what is needed otherwise."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from pml_gateway.errors import InvalidInputError
from pml_gateway.exposure.validation import ValidArguments, check_arguments, open_problems
from tests.catalog.listings import only_tool

STRING, NUMBER, INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}


def schema(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def checked(name: str, inputs: dict[str, Any], sent: dict[str, Any], **definition: Any) -> ValidArguments:
    return anyio.run(check_arguments, only_tool(name=name, inputSchema=inputs, **definition), sent)


def hint(name: str, inputs: dict[str, Any], sent: dict[str, Any], **definition: Any) -> str:
    with pytest.raises(InvalidInputError) as caught:
        checked(name, inputs, sent, **definition)
    return "; ".join(each["hint"] for each in caught.value.details["errors"] if "hint" in each)


def check_only_needed(inputs: dict[str, Any], sent: dict[str, Any], says: str) -> None:
    """Check that the hint says what is needed, and neither what to write instead nor what to leave out."""
    found = hint("do_it", inputs, sent)
    assert says in found
    assert "instead of" not in found
    assert "leave out" not in found


MOVE = schema("source", "destination", source=STRING, destination=STRING)
SEARCH = schema("query", query=STRING, max_results=INTEGER, sort_by={"type": "string", "enum": ["date", "size"]})
MONEY = schema("amount", amount=NUMBER, from_currency=STRING, to_currency=STRING)
ISSUE = schema("issue_number", issue_number=INTEGER, body=STRING, labels={"type": "array", "items": STRING})
EVENT = schema("start_time", "end_time", start_time=STRING, end_time=STRING, summary=STRING)
ACCOUNT = schema("account_id", account_id=STRING, start_date=STRING, end_date=STRING, min_amount=NUMBER)
IMAGE = schema("image_url", image_url=STRING, image_width=INTEGER)
FLAG = schema(dry_run={"type": "boolean"}, private={"type": "boolean"})


@pytest.mark.parametrize(
    ("tool", "inputs", "sent", "meant"),
    [
        ("move_file", MOVE, {"from": "/a", "to": "/b"}, {"source": "/a", "destination": "/b"}),
        ("move_file", MOVE, {"srcPath": "/a", "dst-path": "/b"}, {"source": "/a", "destination": "/b"}),
        ("search_mail", SEARCH, {"q": "x", "limit": 3}, {"query": "x", "max_results": 3}),
        ("search_mail", SEARCH, {"searchTerm": "x", "pageSize": 3}, {"query": "x", "max_results": 3}),
        ("search_mail", SEARCH, {"query": "x", "max_mails": "3"}, {"query": "x", "max_results": 3}),
        ("search_mail", SEARCH, {"query": "x", "order_by": "Date"}, {"query": "x", "sort_by": "date"}),
        ("convert", MONEY, {"amount": 1, "from": "USD", "to": "EUR"}, {"amount": 1, "from_currency": "USD"}),
        ("get_issue", ISSUE, {"id": 3}, {"issue_number": 3}),
        ("get_issue", ISSUE, {"issue": 3}, {"issue_number": 3}),
        ("add_comment", ISSUE, {"issueId": 3, "comment": "x", "tag": "a"}, {"issue_number": 3, "body": "x"}),
        ("add_event", EVENT, {"start": "2026-01-01T10:00", "end": "2026-01-01T11:00", "title": "t"}, {"summary": "t"}),
        ("list", ACCOUNT, {"account": "A1", "since": "2026-01-01"}, {"account_id": "A1", "start_date": "2026-01-01"}),
        ("resize_image", IMAGE, {"image": "https://a.example/b.png"}, {"image_url": "https://a.example/b.png"}),
        ("add", FLAG, {"preview": True, "is_private": True}, {"dry_run": True, "private": True}),
        ("add", schema("title", title=STRING), {"titel": "x"}, {"title": "x"}),
        ("wait", schema("time", time={**NUMBER, "description": "Seconds to wait"}), {"seconds": 3}, {"time": 3}),
        ("set", schema("to", to={**STRING, "description": "Name of the assigned agent"}), {"to": "a"}, {"to": "a"}),
        ("weather", schema("city", city=STRING), {"location": "Bern"}, {"city": "Bern"}),
        ("run", schema(timeout_seconds=INTEGER), {"timeout_secs": 3}, {"timeout_seconds": 3}),
        ("weather", schema("q", q={**STRING, "description": "City name, as London"}), {"city": "x"}, {"q": "x"}),
        ("read", schema(max_size={**INTEGER, "description": "How many words"}), {"max_words": 3}, {"max_size": 3}),
    ],
)
def test_a_name_with_one_reading_is_read_and_told(
    tool: str, inputs: dict[str, Any], sent: dict[str, Any], meant: dict[str, Any]
) -> None:
    found = checked(tool, inputs, sent)
    assert found.arguments.keys() <= inputs["properties"].keys()
    assert meant.items() <= found.arguments.items()
    renamed = {f"/{name}" for name in sent if name not in inputs["properties"]}
    assert {pointer for pointer, what in found.coerced.items() if what.startswith("read as")} >= renamed


@pytest.mark.parametrize(
    ("inputs", "sent", "says"),
    [
        (schema("years", years=NUMBER), {"months": 360}, '"years" is needed, in years, not "months"'),
        (schema("amount_cents", amount_cents=INTEGER), {"amount": 5}, '"amount_cents" is needed, in cents'),
        (schema("timeout_ms", timeout_ms=INTEGER), {"timeout_s": 5}, '"timeout_ms" is needed, in milliseconds'),
        (schema("radius", radius={**NUMBER, "description": "In miles"}), {"radius_km": 5}, "in miles"),
        (schema("delay", delay=NUMBER), {"delay_seconds": 5}, "in a unit that its description does not say"),
        (schema("user_id", user_id=STRING), {"username": "ada"}, '"user_id" is needed, not "username"'),
        (schema("user_id", user_id=STRING), {"user": "Ada Lovelace"}, '"user_id" is needed, not "user"'),
        (schema("charge_id", charge_id=STRING), {"payment_id": "p1"}, '"charge_id" is needed, not "payment_id"'),
        (schema("city", city=STRING), {"country": "CH"}, '"city" is needed, not "country"'),
        (schema(offset=INTEGER), {"page": 2}, '"offset" is needed, not "page"'),
        (schema(ascending={"type": "boolean"}), {"descending": True}, '"ascending" is needed, not "descending"'),
        (schema("path", path=STRING), {"verbose": True}, '"path" is needed, not "verbose"'),
        (schema("assignee", assignee=STRING), {"reporter": "ada"}, '"assignee" is needed, not "reporter"'),
    ],
)
def test_another_unit_or_kind_is_refused_with_what_is_needed(
    inputs: dict[str, Any], sent: dict[str, Any], says: str
) -> None:
    check_only_needed(inputs, sent, says)


@pytest.mark.parametrize(
    ("inputs", "sent", "says"),
    [
        (ACCOUNT, {"account_id": "A1", "date": "2026-01-01"}, 'write "start_date" or "end_date" instead of "date"'),
        (schema(sender=STRING, start=STRING), {"from": "a"}, 'write "sender" or "start" instead of "from"'),
        (schema(content=STRING, commit_message=STRING), {"message": "a"}, '"commit_message" or "content"'),
        (schema(ui_lang=STRING, search_lang=STRING), {"language": "de"}, '"ui_lang" or "search_lang"'),
        (
            schema("first_name", "last_name", first_name=STRING, last_name=STRING),
            {"name": "A B"},
            '"first_name" and "last_name" are needed',
        ),
    ],
)
def test_a_name_with_two_readings_is_refused_with_both(inputs: dict[str, Any], sent: dict[str, Any], says: str) -> None:
    assert says in hint("search", inputs, sent)


@pytest.mark.parametrize(
    ("tool", "inputs", "sent"),
    [
        ("list", ACCOUNT, {"account_id": "A1", "amount": 5}),
        ("list", ACCOUNT, {"account_id": "A1", "max_amount": 5}),
        ("list", ACCOUNT, {"account_id": "A1", "until_amount": 5}),
        ("book_flight", schema(origin=STRING), {"departure_date": "2026-01-01"}),
        ("put_policy", schema(policy_name=STRING), {"role_name": "x"}),
        ("distance", schema(city2=STRING), {"city1": "x"}),
        ("holidays", schema(country=STRING), {"county": "x"}),
        ("call", schema(callee=STRING), {"caller": "x"}),
        ("scrape", schema(max_pages=INTEGER), {"page": 3}),
        ("delete_user", schema("number", number=INTEGER), {"user": 3}),
        ("find", schema(limit=INTEGER), {"max_price": 3}),
    ],
)
def test_what_is_not_the_same_is_never_read(tool: str, inputs: dict[str, Any], sent: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        checked(tool, inputs, sent)


def test_a_destructive_tool_takes_no_slip_and_no_word_of_a_description() -> None:
    inputs = schema("where", where={**STRING, "description": "Branch name"})
    assert checked("switch", inputs, {"branch": "a"}).arguments == {"where": "a"}
    assert hint("switch", inputs, {"branch": "a"}, annotations={"destructiveHint": True})
    assert hint("delete_ref", inputs, {"branch": "a"})
    assert hint("delete_ref", schema("branch", branch=STRING), {"brnach": "a"})
    assert "leave out" not in hint("delete", schema(kind=STRING, namespace=STRING), {"kind": "pod", "pod": "a"})


def test_two_names_for_one_parameter_are_both_refused() -> None:
    assert hint("read_file", schema("path", path=STRING), {"file": "a", "filename": "b"}).count('write "path"') == 2


def test_a_value_of_another_type_decides_against_a_reading() -> None:
    inputs = schema("repo_path", "files", repo_path=STRING, files={"type": "array", "items": STRING})
    assert checked("git_add", inputs, {"repo_path": "r", "paths": ["a"]}).arguments["files"] == ["a"]
    assert hint("say", schema("text", text=STRING), {"message": {"a": 1}}) == 'write "text" instead of "message"'


def test_objects_in_lists_are_read_with_the_words_of_what_holds_them() -> None:
    entity = schema("name", "entityType", name=STRING, entityType=STRING)
    inputs = schema("entities", entities={"type": "array", "items": entity})
    found = checked("create", inputs, {"Entities": [{"entity_name": "a", "type": "b"}]})
    assert found.arguments == {"entities": [{"name": "a", "entityType": "b"}]}
    assert found.coerced["/Entities/0/type"] == "read as 'entityType'"


def test_a_value_that_is_not_known_yet_may_be_of_any_kind() -> None:
    tool = only_tool(name="get_issue", inputSchema=ISSUE)
    assert open_problems(tool, {"issue": "$found.number"}, frozenset({"/issue"})) == []


LIST = {"type": "array", "items": STRING}
IMAGES = {"type": "string", "enum": ["png", "jpeg"], "description": "Image encoding of the file"}


@pytest.mark.parametrize(
    ("tool", "inputs", "sent", "target"),
    [
        ("grep", schema("path", path=STRING, match_lines=INTEGER), {"path": "a", "match": 3}, "match_lines"),
        ("crawl", schema("url", url=STRING, skip_globs=LIST), {"url": "a", "skip": ["b"]}, "skip_globs"),
        (
            "make",
            schema("team", "cost_center", team=STRING, cost_center=STRING),
            {"team": "a", "center": "b"},
            "cost_center",
        ),
        (
            "push",
            schema("content", "tag_message", content=STRING, tag_message=STRING),
            {"content": "a", "message": "b"},
            "tag_message",
        ),
        (
            "lock",
            schema("path", path=STRING, wanted_tree_sha=STRING),
            {"path": "a", "tree_sha": "b1"},
            "wanted_tree_sha",
        ),
        ("page", schema(tip={**NUMBER, "description": "Show only the newest N entries"}), {"newest_entries": 3}, "tip"),
        ("shoot", schema(kind=IMAGES), {"encoding": "png"}, "kind"),
        (
            "find",
            schema(near={"type": "object", "description": "Optional middle of the area"}),
            {"middle": {"a": 1}},
            "near",
        ),
        (
            "press",
            schema("at", "text", at={**STRING, "description": "Reference or css locator"}, text=STRING),
            {"at": "a", "value": "b"},
            "text",
        ),
        ("press", schema("at", at={**STRING, "description": "Reference or css locator"}), {"locator": "a"}, "at"),
        (
            "tunnel",
            schema("localHost", "peerHost", localHost=STRING, peerHost=STRING),
            {"localHost": "a", "remote_host": "b"},
            "peerHost",
        ),
        ("fork_tag", schema("tag", tag=STRING, base_tag=STRING), {"tag": "a", "from": "b"}, "base_tag"),
        ("fork_tag", schema("tag", tag=STRING, from_tag=STRING), {"tag": "a", "base": "b"}, "from_tag"),
        ("link", schema("linkKind", linkKind=STRING), {"link": "owns"}, "linkKind"),
    ],
)
def test_a_part_of_the_only_name_that_fits_is_read(
    tool: str, inputs: dict[str, Any], sent: dict[str, Any], target: str
) -> None:
    [value] = [value for name, value in sent.items() if name not in inputs["properties"]]
    assert checked(tool, inputs, sent).arguments[target] == value
    assert hint(tool, inputs, sent, annotations={"destructiveHint": True})


@pytest.mark.parametrize(
    ("tool", "inputs", "sent"),
    [
        ("grep", schema(match_lines=INTEGER, match_files=INTEGER), {"match": 3}),
        ("read", schema(old_text=STRING, new_text=STRING), {"text": "b"}),
        ("read", schema(page_rows=INTEGER), {"page": 3}),
        ("read", schema(retry_delay=INTEGER), {"retry": 3}),
        ("zoom", schema(scale={**NUMBER, "description": "Factor of the width"}), {"width": 3}),
        ("books", schema("isbn", isbn={**STRING, "description": "ISBN of the book by the author"}), {"author": "a"}),
        ("run", schema("sql", sql={**STRING, "description": "Statement to run in the table"}), {"table": "a"}),
        ("load", schema(source=STRING), {"base": "b"}),
        ("get", schema("user_agent", user_agent=STRING), {"user": "ada"}),
        ("get", schema(page_token=STRING), {"token": "s3cret"}),
        ("get", schema(error_message=STRING), {"message": "hi"}),
        ("list_pulls", schema(head=STRING, base=STRING), {"from": "a"}),
        ("tell", schema(to=STRING, base=STRING), {"from": "a"}),
        ("tunnel", schema("localHost", "peerHost", localHost=STRING, peerHost=STRING), {"host": "b"}),
        (
            "cut",
            schema(top={**NUMBER, "description": "First N lines"}, foot={**NUMBER, "description": "Last N lines"}),
            {"lines": 3},
        ),
        ("say", schema("channel_id", channel_id={**STRING, "description": "Channel of the user"}), {"user": "ada"}),
    ],
)
def test_a_part_of_two_names_or_of_another_thing_is_not_read(
    tool: str, inputs: dict[str, Any], sent: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInputError):
        checked(tool, inputs, sent)


@pytest.mark.parametrize(
    ("inputs", "sent", "says"),
    [
        (
            schema(max_length={**INTEGER, "description": "In characters"}),
            {"max_tokens": 5},
            '"max_length" is needed, in characters',
        ),
        (schema(max_keys=INTEGER), {"max_bytes": 5}, '"max_keys" is needed'),
        (schema(min_width=INTEGER), {"min_score": 5}, '"min_width" is needed'),
        (
            schema("room_id", "thread_key", room_id=STRING, thread_key=STRING),
            {"id": "a1"},
            '"room_id" and "thread_key" are needed',
        ),
        (
            schema("page_id", "field_id", page_id=STRING, field_id=STRING),
            {"id": "a1"},
            '"page_id" and "field_id" are needed',
        ),
        (schema(tip=NUMBER), {"max_bytes": 5}, "say it by one of the declared parameters"),
        (schema(ground=STRING), {"from": "main"}, "say it by one of the declared parameters"),
        (
            schema(near=schema(lat=NUMBER, lon=NUMBER)),
            {"near": {"zip": "3000"}},
            'it takes "lat" and "lon", not "zip"',
        ),
        (
            schema(size=schema(width=NUMBER, height=NUMBER)),
            {"size": {"preset": "A4"}},
            'it takes "width" and "height", not "preset"',
        ),
    ],
)
def test_a_hint_never_changes_what_is_counted_nor_drops_what_may_be_meant(
    inputs: dict[str, Any], sent: dict[str, Any], says: str
) -> None:
    check_only_needed(inputs, sent, says)
