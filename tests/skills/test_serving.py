"""Own folders of skills behind a gateway: listed, read, found, followed, and hidden like anything else of a server."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client

from pml_gateway.config.settings import Settings
from tests.extensions.test_relay import CLIENTS, client_of
from tests.extensions.test_skills import SKILLS
from tests.gateway.test_resource_subscriptions import subscribe
from tests.gateway.test_trust import POISON
from tests.skills.test_folders import write_skill
from tests.support.serving import Serving, serving
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

LIMIT = 30
KEY, NARROW = "key-of-everything-1", "key-of-a-narrow-client-1"
REFUNDS = "Use when a customer wants money back: who approves it, and what to write."


def two_skills(root: Path) -> Path:
    folder = write_skill(root, "refunds", description=REFUNDS, body="Read references/LIMITS.md first.")
    (folder / "references").mkdir()
    (folder / "references" / "LIMITS.md").write_text("up to 100 EUR", encoding="utf-8")
    (folder / "logo.png").write_bytes(b"\x89PNG\xff")
    write_skill(root, "mail", description="How to write mail to customers.")
    return root


@asynccontextmanager
async def serving_skills(home: Path, **sections: Any) -> AsyncIterator[Serving]:
    async with serving(home, {}, Settings.model_validate(sections)) as served:
        await served.gateway.refresh(LIMIT)
        assert await served.gateway.indexer.wait(LIMIT)
        yield served


def names(listed: dict[str, Any]) -> list[str]:
    return [each["frontmatter"]["name"] for each in listed["skills"]]


@CLIENTS
async def test_a_client_with_the_extension_lists_and_reads_them(tmp_path: Path, client: str) -> None:
    root = two_skills(tmp_path / "skills")
    async with serving_skills(tmp_path, skills=str(root)) as served, client_of(served, client) as caller:
        assert (await caller.declared())["extensions"] == {SKILLS: {}}
        listed = await caller.result("skills/list")
        assert names(listed) == ["mail", "refunds"]
        refunds = listed["skills"][1]
        assert (await caller.result("skills/get", {"uri": refunds["uri"]}))["skill"] == refunds
        assert "error" in await caller.message("skills/get", {"uri": "skill://nothing/SKILL.md"})
        contents = {}
        for file in refunds["resources"]:
            [content] = (await caller.result("resources/read", {"uri": file["uri"]}))["contents"]
            contents[file["uri"]] = content
        resources = {each["uri"]: each for each in (await caller.result("resources/list"))["resources"]}
    assert contents["skill://refunds/references/LIMITS.md"]["text"] == "up to 100 EUR"
    assert contents["skill://refunds/logo.png"] == {
        "uri": "skill://refunds/logo.png",
        "mimeType": "image/png",
        "blob": "iVBOR/8=",
    }
    assert resources["skill://refunds/SKILL.md"] | {"description": ""} == {
        "uri": "skill://refunds/SKILL.md",
        "name": "refunds",
        "description": "",
        "mimeType": "text/markdown",
    }


@CLIENTS
async def test_a_client_without_it_finds_and_reads_them_by_meta_tools(tmp_path: Path, client: str) -> None:
    root = two_skills(tmp_path / "skills")
    async with serving_skills(tmp_path, skills=[str(root)]) as served, client_of(served, client) as caller:

        async def call(name: str, **arguments: Any) -> dict[str, Any]:
            answer = await caller.result("tools/call", {"name": name, "arguments": arguments})
            structured: dict[str, Any] = answer["structuredContent"]
            return structured

        [hit, *_] = (await call("search_tools", query="somebody asks to get the money back"))["hits"]
        assert (hit["kind"], hit["name"], hit["server"]) == ("skill", "refunds", "skills")
        page = await call("read_result", ref="refunds")
        assert page["text"].endswith("Read references/LIMITS.md first.")
        assert page["files"] == ["skill://refunds/logo.png", "skill://refunds/references/LIMITS.md"]
        assert (await call("read_result", ref=page["files"][1]))["text"] == "up to 100 EUR"
        overview = await call("search_tools", query="*")
        assert overview["servers"] == [
            {"server": "skills", "skills": 2, "about": "Skills of the owner of this gateway: instructions for tasks."}
        ]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_an_edit_is_told_and_served(tmp_path: Path, mode: Any) -> None:
    root = two_skills(tmp_path / "skills")
    heard: list[str] = []

    async def on_message(message: Any) -> None:
        heard.append(message.method)

    async def added(served: Serving, name: str) -> bool:
        return name in names(await served.result("skills/list"))

    async with (
        serving_skills(tmp_path, skills=[str(root)]) as served,
        Client(served.url, mode=mode, message_handler=on_message) as client,
    ):
        uri = "skill://refunds/references/LIMITS.md"
        if mode == "legacy":
            await client.list_resources()
            await subscribe(client, uri)
            (root / "refunds" / "references" / "LIMITS.md").write_text("up to 200 EUR", encoding="utf-8")
            await until(lambda: "notifications/resources/updated" in heard)
            write_skill(root, "ops/deploy")
            await until(lambda: "notifications/resources/list_changed" in heard)
        else:
            async with client.listen(resource_subscriptions=[uri]) as updates:
                (root / "refunds" / "references" / "LIMITS.md").write_text("up to 200 EUR", encoding="utf-8")
                with anyio.fail_after(LIMIT):
                    await updates.__anext__()
            async with client.listen(resources_list_changed=True) as changes:
                write_skill(root, "ops/deploy")
                with anyio.fail_after(LIMIT):
                    await changes.__anext__()
        with anyio.fail_after(LIMIT):
            while not await added(served, "deploy"):  # noqa: ASYNC110
                await anyio.sleep(0.05)
        read = await served.call("read_result", {"ref": uri})
        assert read["structuredContent"]["text"] == "up to 200 EUR"
        shutil.rmtree(root / "mail")
        with anyio.fail_after(LIMIT):
            while await added(served, "mail"):  # noqa: ASYNC110
                await anyio.sleep(0.05)
        error = (await served.call("read_result", {"ref": "mail"}))["structuredContent"]["error"]
        assert error["code"] == "NOT_FOUND"


async def test_a_folder_that_does_not_exist_yet_is_served_once_it_does(tmp_path: Path, caplog: Any) -> None:
    root = tmp_path / "later"
    caplog.set_level(logging.WARNING)
    async with serving_skills(tmp_path, skills=[str(root)]) as served:
        assert names(await served.result("skills/list")) == []
        assert f"{root}: is no folder; create it, or correct `skills`" in caplog.text
        two_skills(root)
        with anyio.fail_after(LIMIT):
            while len(names(await served.result("skills/list"))) < 2:  # noqa: ASYNC110
                await anyio.sleep(0.05)


async def test_rules_hide_them_from_a_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_KEY", KEY)
    monkeypatch.setenv("NARROW_KEY", NARROW)
    clients = {
        "all": {"key": "${env:ALL_KEY}"},
        "narrow": {"key": "${env:NARROW_KEY}", "deny": ["skills:skill://refunds/*"]},
    }
    root = two_skills(tmp_path / "skills")
    async with serving_skills(tmp_path, skills=[str(root)], clients=clients) as served:
        assert names(await served.result("skills/list", key=KEY)) == ["mail", "refunds"]
        assert names(await served.result("skills/list", key=NARROW)) == ["mail"]
        found = await served.call("search_tools", {"query": "*"}, key=NARROW)
        assert found["structuredContent"]["total_skills"] == 1
        message = await served.message("resources/read", {"uri": "skill://refunds/logo.png"}, key=NARROW)
        unknown = await served.message("resources/read", {"uri": "skill://nothing/logo.png"}, key=NARROW)
        assert str(message["error"]).replace("refunds", "nothing") == str(unknown["error"])


async def test_a_poisoned_edit_is_held_back(tmp_path: Path) -> None:
    root = two_skills(tmp_path / "skills")
    async with serving_skills(tmp_path, skills=[str(root)]) as served:
        before = await served.result("skills/list")
        text = f"---\nname: mail\ndescription: {json.dumps(POISON)}\n---\n"
        (root / "mail" / "SKILL.md").write_text(text, encoding="utf-8")
        await until(lambda: served.gateway.trust_gate.held_count > 0)
        listed = await served.result("skills/list")
        for uri in ("skill://mail/SKILL.md", "SKILL://mail/SKILL.md", "pml://skills/skill://mail/SKILL.md"):
            refused = (await served.message("resources/read", {"uri": uri}))["error"]
            assert "is held back" in refused["message"] and "id_rsa" not in str(refused)
        for ref in ("mail", "skill://mail/SKILL.md"):
            read = await served.call("read_result", {"ref": ref})
            assert read["structuredContent"]["error"]["code"] == "HELD_BACK"
        assert (await served.result("resources/read", {"uri": "skill://refunds/SKILL.md"}))["contents"]
        (root / "mail" / "SKILL.md").write_text("---\nname: mail\ndescription: Write mail.\n---\n", encoding="utf-8")
        await until(lambda: served.gateway.trust_gate.held_count == 0)
        again = await served.result("resources/read", {"uri": "skill://mail/SKILL.md"})
        assert "Write mail." in again["contents"][0]["text"]
    assert "id_rsa" not in str(listed)
    assert names(listed) == names(before)


async def test_a_server_may_be_its_own_folders_of_skills(tmp_path: Path) -> None:
    root = two_skills(tmp_path / "skills")
    servers = {"team": {"skills": str(root)}, "off": {"skills": [str(root)], "enabled": False}}
    async with serving_skills(tmp_path, servers=servers) as served:
        found = (await served.call("search_tools", {"query": "*"}))["structuredContent"]
    assert [(each["server"], each["skills"]) for each in found["servers"]] == [("team", 2)]


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"skills": ["/a"], "servers": {"skills": {"command": "x"}}}, "servers.skills is another"),
        ({"servers": {"a": {"skills": ["/a"], "url": "https://example.org"}}}, "give either `skills`"),
        ({"skills": 5}, "skills"),
    ],
)
def test_a_configuration_that_contradicts_itself_is_refused(sections: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Settings.model_validate(sections)
