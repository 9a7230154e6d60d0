"""Skills through the meta-tools: found beside tools, read by one call, and absent for clients that may not see them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.extensions.test_skills import skilled
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

KEY, NARROW, WITHOUT = "key-of-everything-1", "key-of-a-narrow-client-1", "key-without-skills-1"
REFUNDS = "Use when a customer wants money back: the steps of a refund, who approves it, and what to write."
DESCRIPTIONS = {"refunds": REFUNDS, "mail": "How to write mail to customers in the tone of the house."}


def upstreams(*, modern: bool = False) -> dict[str, ScriptedServer]:
    crm = ScriptedServer([tool("find_contact", "Find a contact of a customer."), tool("send_mail", "Send one mail.")])
    return {
        "crm": crm,
        "desk": skilled("desk", "refunds", "mail", descriptions=DESCRIPTIONS, modern=modern),
        "shop": skilled("shop", "refunds", modern=modern),
    }


@asynccontextmanager
async def all_of(folder: Path, servers: dict[str, ScriptedServer], **sections: Any) -> AsyncIterator[Serving]:
    """A gateway all of whose servers have listed what they have, and whose index is complete."""
    async with serving(folder, servers, **sections) as served:
        await served.gateway.refresh(30)
        assert await served.gateway.indexer.wait(30)
        yield served


async def search(served: Serving, query: str, **options: Any) -> dict[str, Any]:
    key = options.pop("key", None)
    result = await served.call("search_tools", {"query": query, **options}, key=key)
    found: dict[str, Any] = result["structuredContent"]
    return found


async def read(served: Serving, ref: str, **options: Any) -> dict[str, Any]:
    key = options.pop("key", None)
    result = await served.call("read_result", {"ref": ref, **options}, key=key)
    answer: dict[str, Any] = result["structuredContent"]
    error: dict[str, Any] | None = answer.get("error")
    return error or answer


@pytest.mark.parametrize("modern", [False, True])
async def test_a_skill_is_found_by_meaning_and_read_as_the_hit_says(tmp_path: Path, modern: bool) -> None:
    async with all_of(tmp_path, upstreams(modern=modern)) as served:
        [first, *_] = (await search(served, "the buyer asks to get the money back"))["hits"]
        assert first.pop("score") > 0.5
        assert first == {
            "kind": "skill",
            "name": "refunds",
            "server": "desk",
            "description": REFUNDS,
            "read": 'read_result({"ref": "skill://refunds/SKILL.md"})',
        }
        page = await read(served, "skill://refunds/SKILL.md")
    assert page == {
        "ref": "skill://refunds/SKILL.md",
        "skill": "refunds",
        "server": "desk",
        "files": ["skill://refunds/references/MORE.md"],
        "kind": "text",
        "text": "desk skill://refunds/SKILL.md",
        "offset": 0,
        "total": 29,
    }


async def test_skills_change_neither_rank_nor_score_of_tools(tmp_path: Path) -> None:
    queries = ["send a mail to a customer", "find_contact", "who is the contact", "refunds"]
    without = {name: ScriptedServer(each.tools) for name, each in upstreams().items()}
    scores = []
    for number, servers in enumerate((without, upstreams())):
        async with all_of(tmp_path / str(number), servers) as served:
            found = [(await search(served, query, limit=50))["hits"] for query in queries]
        scores.append([[hit for hit in hits if "kind" not in hit] for hits in found])
    assert scores[0] == scores[1]
    assert any(scores[0])


async def test_without_skills_nothing_speaks_of_them(tmp_path: Path) -> None:
    async with all_of(tmp_path, {"crm": upstreams()["crm"]}) as served:
        assert "skill" not in json.dumps(await served.result("tools/list"))
        assert "skill" not in json.dumps(await search(served, "*"))
    async with all_of(tmp_path, upstreams()) as served:
        listed = {each["name"]: each for each in (await served.result("tools/list"))["tools"]}
    assert "skill" in listed["search_tools"]["description"]
    assert "skill" in listed["read_result"]["description"]


async def test_files_are_read_by_what_a_model_would_try(tmp_path: Path) -> None:
    async with all_of(tmp_path, upstreams()) as served:
        more = "desk skill://refunds/references/MORE.md"
        for ref in ("skill://refunds/references/MORE.md", "skill://refunds/./references/MORE.md"):
            assert (await read(served, ref))["text"] == more
        for ref in ("mail", "mail/SKILL.md", "desk:mail", "skill://mail", "skill://mail/"):
            assert (await read(served, ref))["text"] == "desk skill://mail/SKILL.md"
        assert (await read(served, "desk:refunds/references/MORE.md"))["text"] == more
        other = (await search(served, "shop:refunds"))["hits"][0]
        assert other["server"] == "shop"
        uri = json.loads(other["read"].removeprefix("read_result(").removesuffix(")"))["ref"]
        assert (await read(served, uri))["text"] == "shop skill://refunds/SKILL.md"
        # References in a skill lead to the server of that skill.
        [file] = (await read(served, uri))["files"]
        assert (await read(served, file))["text"] == "shop skill://refunds/references/MORE.md"


async def test_pages_lines_and_searches_are_those_of_stored_results(tmp_path: Path) -> None:
    async with all_of(tmp_path, upstreams()) as served:
        page = await read(served, "mail", offset=5, limit=5)
        assert (page["text"], page["next_offset"]) == ("skill", 10)
        assert (await read(served, "mail", search="skill.md"))["matches"] == 1
        assert "desk skill" in json.dumps(await read(served, "mail", lines="1"))


async def test_what_cannot_be_read_says_what_can(tmp_path: Path) -> None:
    async with all_of(tmp_path, upstreams()) as served:
        error = await read(served, "refunds")
        assert (error["code"], "pml://shop/skill://refunds/SKILL.md" in error["hint"]) == ("INVALID_INPUT", True)
        error = await read(served, "skill://mail/references/LESS.md")
        assert (error["code"], "skill://mail/references/MORE.md" in error["hint"]) == ("NOT_FOUND", True)
        for ref in ("skill://nothing/SKILL.md", "skill://mail/../other", "https://example.org/x", "nothing"):
            assert (await read(served, ref))["code"] == "NOT_FOUND"
        for method, arguments in (("tool_schema", {"names": ["mail"]}), ("call_tool", {"name": "mail"})):
            result = await served.call(method, arguments)
            assert "skill://mail/SKILL.md" in result["structuredContent"]["error"]["hint"]


async def test_menus_count_and_list_skills(tmp_path: Path) -> None:
    servers = upstreams()
    servers["desk"].tools.clear()
    async with all_of(tmp_path, servers) as served:
        overview = await search(served, "*")
        assert [(each["server"], each.get("tools"), each.get("skills")) for each in overview["servers"]] == [
            ("crm", 2, None),
            ("shop", 1, 1),
            ("desk", None, 2),
        ]
        assert overview["total_skills"] == 3
        menu = (await search(served, "", server="desk"))["menu"]
        assert menu[0] == f'skill refunds: read_result({{"ref": "skill://refunds/SKILL.md"}}) # {REFUNDS}'
        assert [hit["name"] for hit in (await search(served, "desk:*"))["hits"]] == ["refunds", "mail"]


async def test_hidden_skills_leave_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"ALL_KEY": KEY, "NARROW_KEY": NARROW, "WITHOUT_KEY": WITHOUT}
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    clients = {
        "all": {"key": "${env:ALL_KEY}"},
        "narrow": {"key": "${env:NARROW_KEY}", "deny": ["desk:skill://refunds/*", "shop:*"]},
        "without": {"key": "${env:WITHOUT_KEY}", "allow": ["crm:*"]},
    }
    hidden = ["skill://refunds/SKILL.md", "refunds", "desk:refunds", "skill://refunds", "pml://shop/skill://refunds"]
    async with all_of(tmp_path, upstreams(), clients=clients) as served:
        assert len((await search(served, "*refunds*", key=KEY))["hits"]) == 2
        for key, seen in ((NARROW, {"mail"}), (WITHOUT, set[str]())):
            texts = [json.dumps(await served.result("tools/list", key=key))]
            for query in ("refunds", "money back for a customer", "*", "*refunds*", "desk:refunds"):
                found = await search(served, query, limit=50, key=key)
                texts.append(json.dumps(found).replace(query, "the query"))
            for ref in hidden:
                error = await read(served, ref, key=key)
                unknown = await read(served, ref.replace("refunds", "nothing"), key=key)
                assert json.dumps(error).replace("refunds", "nothing") == json.dumps(unknown)
                texts.append(json.dumps(unknown))
            for name in ("refunds", "refund", "skill://refunds/SKILL.md"):
                result = await served.call("call_tool", {"name": name}, key=key)
                texts.append(json.dumps(result["structuredContent"]["error"]).replace(f"'{name}'", "the name"))
            listed = await served.message("skills/list", key=key)
            texts.append(json.dumps(listed))
            names = {each["frontmatter"]["name"] for each in listed.get("result", {}).get("skills", ())}
            assert names == seen
            assert not [text for text in texts if "efund" in text]
            assert ("skill" in texts[0]) is bool(seen)
