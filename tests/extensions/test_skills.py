"""Skills of servers (SEP-2640): one list, and files that clients read under the URIs that the list names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from pml_gateway.config.settings import Settings
from tests.extensions.test_relay import CLIENTS, NOT_FOUND, SERVERS, client_of
from tests.gateway.test_trust import POISON
from tests.support.memory import settings_for
from tests.support.scripted_server import RESOURCES, ScriptedServer, resource, tool
from tests.support.serving import Serving, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("gateways")]

SKILLS = "io.modelcontextprotocol/skills"
METHODS = frozenset({"skills/list", "skills/get", "resources/directory/read"})


def entry(name: str, description: str = "") -> dict[str, Any]:
    """A skill of two files."""
    files = [f"skill://{name}/SKILL.md", f"skill://{name}/references/MORE.md"]
    return {
        "uri": files[0],
        "frontmatter": {"name": name, "description": description or f"How to do {name}.", "metadata": {"uri": "kept"}},
        "resources": [{"uri": uri, "digest": "sha256:" + "0" * 64, "size": 3} for uri in files],
    }


def skilled(
    server: str,
    *names: str,
    descriptions: Mapping[str, str] | None = None,
    modern: bool = False,
    page: int = 10,
    fails: bool = False,
    settings: dict[str, Any] | None = None,
) -> ScriptedServer:
    """A server with skills."""
    said = {} if descriptions is None else descriptions

    async def answer(_ctx: Any, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        known = {f"skill://{name}/SKILL.md": entry(name, said.get(name, "")) for name in names}
        uri = params.get("uri")
        match method:
            case "skills/list":
                if fails:
                    raise MCPError(-32603, "no skills today")
                start = int(params.get("cursor") or 0)
                more = {"nextCursor": str(start + page)} if start + page < len(known) else {}
                return {"skills": [*known.values()][start : start + page], "ttlMs": 0, "cacheScope": "private", **more}
            case "skills/get":
                if uri not in known:
                    raise MCPError(-32602, "unknown skill", {"uri": uri})
                return {"skill": known[uri], "ttlMs": 0, "cacheScope": "private"}
            case "resources/directory/read":
                return {"resources": [{"uri": f"{uri}/SKILL.md", "name": "SKILL.md"}]}
            case "resources/read":
                return {"contents": [{"uri": uri, "text": f"{server} {uri}"}], "ttlMs": 0, "cacheScope": "private"}
        return None

    return ScriptedServer(
        [tool(f"{server}_tool")],
        declares={"extensions": {SKILLS: settings or {}}},
        beyond=METHODS,
        methods=RESOURCES,
        resources=[resource(f"skill://{name}/SKILL.md") for name in names],
        answer=answer,
        modern=modern,
    )


@asynccontextmanager
async def all_listed(
    folder: Path, upstreams: dict[str, ScriptedServer], settings: Settings | None = None
) -> AsyncIterator[Serving]:
    """A gateway all of whose servers have listed before a client connects."""
    async with serving(folder, upstreams, settings) as served:
        await served.all_listed()
        yield served


@CLIENTS
@SERVERS
async def test_the_skills_of_all_servers_are_one_list_whose_files_can_be_read(
    tmp_path: Path, client: str, modern: bool
) -> None:
    upstreams = {
        "one": skilled("one", "refunds", "mail", "post", modern=modern, page=1, settings={"directoryRead": True}),
        "two": skilled("two", "refunds", modern=modern),
        "plain": ScriptedServer([tool("t")], modern=modern),
    }
    async with all_listed(tmp_path, upstreams) as served, client_of(served, client) as caller:
        assert (await caller.declared())["extensions"] == {SKILLS: {"directoryRead": True}}
        listed = (await caller.result("skills/list"))["skills"]
        assert [each["frontmatter"]["name"] for each in listed] == ["refunds", "mail", "post", "refunds"]
        assert len({each["uri"] for each in listed}) == 4
        for server, each in zip(["one"] * 3 + ["two"], listed, strict=True):
            name = each["frontmatter"]["name"]
            assert each["frontmatter"]["metadata"] == {"uri": "kept"}
            assert (await caller.result("skills/get", {"uri": each["uri"]}))["skill"] == each
            for file, path in zip(each["resources"], ("SKILL.md", "references/MORE.md"), strict=True):
                assert file["uri"].startswith(each["uri"].removesuffix("SKILL.md"))
                [content] = (await caller.result("resources/read", {"uri": file["uri"]}))["contents"]
                assert content["text"] == f"{server} skill://{name}/{path}"
            folder = each["uri"].removesuffix("/SKILL.md")
            read = await caller.result("resources/directory/read", {"uri": folder})
            assert [each["uri"] for each in read["resources"]] == [f"{folder}/SKILL.md"]
        unknown = await caller.message("skills/get", {"uri": "skill://nothing/SKILL.md"})
    assert "error" in unknown


@CLIENTS
async def test_a_server_that_fails_does_not_keep_the_skills_of_others(tmp_path: Path, client: str) -> None:
    upstreams = {"one": skilled("one", "mail", fails=True), "two": skilled("two", "post")}
    async with all_listed(tmp_path, upstreams) as served, client_of(served, client) as caller:
        listed = (await caller.result("skills/list"))["skills"]
    assert [each["frontmatter"]["name"] for each in listed] == ["post"]
    async with serving(tmp_path, {"one": upstreams["one"]}) as served, client_of(served, client) as caller:
        assert (await caller.result("skills/list"))["skills"] == []


@CLIENTS
async def test_a_skill_whose_files_are_hidden_does_not_exist(tmp_path: Path, client: str) -> None:
    upstreams = {"one": skilled("one", "mail", "post")}
    settings = settings_for(upstreams, gateway={"blacklisted_tools": ["one:skill://mail/*"]})
    async with all_listed(tmp_path, upstreams, settings) as served, client_of(served, client) as caller:
        listed = (await caller.result("skills/list"))["skills"]
        hidden = await caller.message("skills/get", {"uri": "skill://mail/SKILL.md"})
    assert [each["frontmatter"]["name"] for each in listed] == ["post"]
    assert hidden["error"]["code"] == NOT_FOUND
    assert [params for method, params in upstreams["one"].asked if method == "skills/get"] == []


@CLIENTS
async def test_without_skills_the_method_does_not_exist(tmp_path: Path, client: str) -> None:
    async with serving(tmp_path, {"one": ScriptedServer([tool("t")])}) as served, client_of(served, client) as caller:
        assert (await caller.message("skills/list"))["error"]["code"] == NOT_FOUND


@CLIENTS
async def test_a_poisoned_change_of_a_skill_is_not_passed_on(tmp_path: Path, client: str) -> None:
    said = {"mail": "How to write mail."}
    upstreams = {"one": skilled("one", "mail", "post", descriptions=said)}
    async with all_listed(tmp_path, upstreams) as served, client_of(served, client) as caller:
        before = await caller.result("skills/list")
        said |= {"mail": POISON, "post": POISON}
        await served.refresh(10)
        assert served.gateway.trust_gate.held_count == 2
        assert await caller.result("skills/list") == before
        for each in before["skills"]:
            assert (await caller.result("skills/get", {"uri": each["uri"]}))["skill"] == each
        for arguments in ({"query": "mail"}, {"query": "", "server": "one"}):
            found = await caller.result("tools/call", {"name": "search_tools", "arguments": arguments})
            assert "id_rsa" not in str(found)
        said["mail"] = "How to write mail to customers."
        await served.refresh(10)
        [mail, _] = (await caller.result("skills/list"))["skills"]
    assert mail["frontmatter"]["description"] == "How to write mail to customers."
