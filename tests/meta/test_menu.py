"""The menu of a system: what each server is for, and all tools of one or several of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.exposure.token_count import count_tokens
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

KEY = "key-of-a-narrow-client-1"


def upstreams() -> dict[str, ScriptedServer]:
    crm = ScriptedServer(
        [tool(name) for name in ("find_contact", "add_contact")],
        instructions="Customers and deals of the sales team. Ask for a deal before you change it.",
    )
    billing = ScriptedServer([tool(f"invoice_{number:02}") for number in range(60)])
    return {"crm": crm, "billing": billing, "wiki": ScriptedServer([tool("read_page")])}


async def menu(served: Serving, server: Any, query: str = "*", **arguments: Any) -> dict[str, Any]:
    given = {"query": query, **({} if server is None else {"server": server}), **arguments}
    found: dict[str, Any] = (await served.call("search_tools", given))["structuredContent"]
    return found


async def test_each_server_is_said_to_be_for_something(tmp_path: Path) -> None:
    async with serving(tmp_path, upstreams()) as served:
        about = {each["server"]: each["about"] for each in (await menu(served, None))["servers"]}
        assert about == {
            "crm": "Customers and deals of the sales team.",
            "billing": "invoice_00, invoice_01, invoice_02, invoice_03 and 56 more",
            "wiki": "read_page",
        }


@pytest.mark.parametrize("server", [["crm", "wiki"], "crm, wiki", '["crm", "wiki"]'])
async def test_one_request_has_the_menus_of_several_servers(tmp_path: Path, server: Any) -> None:
    async with serving(tmp_path, upstreams()) as served:
        for query in ("*", ""):
            found = await menu(served, server, query)
            assert found["menu"] == ["crm__add_contact()", "crm__find_contact()", "wiki__read_page()"]
        hits = (await menu(served, server, "a contact of a customer"))["hits"]
        assert {hit["name"].partition("__")[0] for hit in hits} <= {"crm", "wiki"}
        assert hits[0]["score"] > 0
        assert [hit["name"] for hit in (await menu(served, server, "*__read_*"))["hits"]] == ["wiki__read_page"]


async def test_a_menu_has_all_tools_or_says_how_to_get_the_rest(tmp_path: Path) -> None:
    async with serving(tmp_path, upstreams()) as served:
        first = await menu(served, "billing")
        rest = await menu(served, "billing", offset=first["next_offset"])
        assert len({*first["menu"], *rest["menu"]}) == 60
        assert "next_offset" not in rest
        short = await menu(served, "billing", max_tokens=100)
        assert short["omitted_by_max_tokens"] == len(first["menu"]) - len(short["menu"])
        assert short["next_offset"] == len(short["menu"]) > 0
        assert (await menu(served, "billing", max_tokens=1))["omitted_by_max_tokens"] == 50


async def test_a_large_server_says_where_each_group_of_its_tools_begins(tmp_path: Path) -> None:
    nouns = ("deal", "lead", "quote", "order", "visit", "target", "region", "partner")
    names = [f"{verb}_{noun}" for verb in ("get", "list", "create", "update", "delete", "merge") for noun in nouns]
    servers = upstreams() | {"sales": ScriptedServer([tool(name) for name in (*names, "ping", "who_am_i")])}
    async with serving(tmp_path, servers) as served:
        whole = await menu(served, "sales")
        assert [each["group"] for each in whole["groups"]] == [*sorted(nouns), "others"]
        assert sum(each["tools"] for each in whole["groups"]) == len(whole["menu"]) == 50
        for each in whole["groups"]:
            part = await menu(served, "sales", offset=each["offset"], limit=each["tools"])
            assert all(each["group"] in line for line in part["menu"]) or each["group"] == "others"
            assert "groups" not in part or not each["offset"]
        # Groups make way for lines, and an offset past the end is said to be one.
        short = await menu(served, "sales", max_tokens=60)
        assert short["menu"] and "groups" not in short
        assert short["omitted_by_max_tokens"] == 50 - len(short["menu"])
        assert (await menu(served, "sales", offset=50))["reason"] == "offset 50 is past the last of 50 tools"
        both = await menu(served, ["crm", "sales"])
        assert both["groups"][:2] == [
            {"server": "crm", "tools": 2, "offset": 0},
            {"server": "sales", "group": "deal", "tools": 6, "offset": 2},
        ]
        assert "groups" not in await menu(served, ["crm", "wiki"])


@pytest.mark.parametrize("records", [True, False])
async def test_a_menu_begins_with_what_was_used_most_if_that_is_recorded(tmp_path: Path, records: bool) -> None:
    for _ in range(2):
        async with serving(tmp_path, upstreams()) as served:
            await served.call("crm__find_contact")
    async with serving(tmp_path, upstreams(), activity={"record": records}) as served:
        used_first = ["crm__find_contact", "crm__add_contact"]
        names = [line.partition("(")[0] for line in (await menu(served, "crm"))["menu"]]
        assert names == (used_first if records else used_first[::-1])


async def test_a_line_has_the_call_its_result_its_effect_and_its_purpose(tmp_path: Path) -> None:
    text = {"type": "string"}
    find = tool(
        "find_contact",
        "Looks a customer up by any word. Slow.",
        {"words": text, "limit": {"type": "integer"}},
        annotations={"readOnlyHint": True},
        outputSchema={"type": "object", "properties": {"id": text, "name": text}},
    )
    async with serving(tmp_path, {"crm": ScriptedServer([find])}) as served:
        (line,) = (await menu(served, "crm"))["menu"]
        assert line == "crm__find_contact(words?, limit?: int) -> {id, name} [read] # Looks a customer up by any word"
        for detail in ("name", "signature", "schema"):
            (hit,) = (await menu(served, "crm", detail=detail))["hits"]
            assert hit["name"] == "crm__find_contact"


async def test_an_exact_name_has_its_schema_or_its_signature(tmp_path: Path) -> None:
    async with serving(tmp_path, upstreams()) as served:
        for asked, shown in (
            ({}, "inputSchema"),
            ({"detail": "schema"}, "inputSchema"),
            ({"detail": "signature"}, "signature"),
        ):
            hit = (await menu(served, None, "wiki__read_page", **asked))["hits"][0]
            assert hit.keys() & {"signature", "inputSchema"} == {shown}


async def test_a_server_that_there_is_not_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    async with serving(tmp_path, upstreams()) as served:
        error = (await menu(served, ["crm", "sales"]))["error"]
        assert (error["code"], error["hint"]) == ("INVALID_INPUT", "servers: crm, billing, wiki")
        assert "'sales'" in error["message"]


@pytest.mark.parametrize(
    ("instructions", "about"),
    [
        ("# CRM\n\nKeeps customers. More.", "Keeps customers."),
        ("CRM server\n==========\n## Use\nKeeps customers.", "Keeps customers."),
        ("## The CRM ##", "The CRM"),
        ("#1 for customers.", "#1 for customers."),
    ],
)
async def test_a_heading_does_not_say_what_a_server_is_for(tmp_path: Path, instructions: str, about: str) -> None:
    server = ScriptedServer([tool("a")], instructions=instructions)
    async with serving(tmp_path, {"crm": server}) as served:
        (only,) = (await served.call("search_tools", {"query": "*"}))["structuredContent"]["servers"]
    assert only["about"] == about


async def test_the_list_of_servers_is_within_max_tokens(tmp_path: Path) -> None:
    servers = {f"s{number:02}": ScriptedServer([tool("a"), tool("b")]) for number in range(12)}
    async with serving(tmp_path, servers) as served:
        whole = (await served.call("search_tools", {"query": "*"}))["structuredContent"]
        assert "omitted_by_max_tokens" not in whole
        asked = {"query": "*", "max_tokens": 80}
        answer = (await served.call("search_tools", asked))["structuredContent"]
        told = json.dumps({"servers": answer["servers"]}, separators=(",", ":"))
    assert 0 < len(answer["servers"]) < 12
    assert count_tokens(told) <= 80
    assert answer["omitted_by_max_tokens"] == 12 - len(answer["servers"])
    assert answer["total_tools"] == 24


async def test_a_menu_says_nothing_about_what_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K", KEY)
    client = {"key": "${env:K}", "allow": ["billing:invoice_0*"]}
    async with serving(tmp_path, upstreams(), clients={"a": client}) as served:
        answer = await served.call("search_tools", {"query": "*"}, key=KEY)
        (only,) = answer["structuredContent"]["servers"]
        assert only["about"] == "invoice_00, invoice_01, invoice_02, invoice_03 and 6 more"
        assert "sales" not in json.dumps(answer)
