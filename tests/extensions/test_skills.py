"""Skills of servers (SEP-2640): one list, and files that clients read under the URIs that the list names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from tests.extensions.test_relay import CLIENTS, NOT_FOUND, SERVERS, client_of
from tests.support.memory import settings_for
from tests.support.scripted_server import RESOURCES, ScriptedServer, resource, tool
from tests.support.serving import serving

pytestmark = pytest.mark.anyio

SKILLS = "io.modelcontextprotocol/skills"
METHODS = frozenset({"skills/list", "skills/get", "resources/directory/read"})


def entry(name: str) -> dict[str, Any]:
    """A skill of two files."""
    files = [f"skill://{name}/SKILL.md", f"skill://{name}/references/MORE.md"]
    return {
        "uri": files[0],
        "frontmatter": {"name": name, "description": f"How to do {name}.", "metadata": {"uri": "kept"}},
        "resources": [{"uri": uri, "digest": "sha256:" + "0" * 64, "size": 3} for uri in files],
    }


def skilled(
    server: str,
    *names: str,
    modern: bool = False,
    page: int = 10,
    fails: bool = False,
    settings: dict[str, Any] | None = None,
) -> ScriptedServer:
    """A server with skills."""
    known = {f"skill://{name}/SKILL.md": entry(name) for name in names}

    async def answer(_ctx: Any, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
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
        resources=[resource(uri) for uri in known],
        answer=answer,
        modern=modern,
    )


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
    async with serving(tmp_path, upstreams) as served, client_of(served, client) as caller:
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
    async with serving(tmp_path, upstreams) as served, client_of(served, client) as caller:
        listed = (await caller.result("skills/list"))["skills"]
    assert [each["frontmatter"]["name"] for each in listed] == ["post"]
    async with serving(tmp_path, {"one": upstreams["one"]}) as served, client_of(served, client) as caller:
        failed = await caller.message("skills/list")
    assert failed["error"]["message"] == "no skills today"


@CLIENTS
async def test_a_skill_whose_files_are_hidden_does_not_exist(tmp_path: Path, client: str) -> None:
    upstreams = {"one": skilled("one", "mail", "post")}
    settings = settings_for(upstreams, gateway={"blacklisted_tools": ["one:skill://mail/*"]})
    async with serving(tmp_path, upstreams, settings) as served, client_of(served, client) as caller:
        listed = (await caller.result("skills/list"))["skills"]
        hidden = await caller.message("skills/get", {"uri": "skill://mail/SKILL.md"})
    assert [each["frontmatter"]["name"] for each in listed] == ["post"]
    assert hidden["error"]["code"] == NOT_FOUND
    assert [params for method, params in upstreams["one"].asked if method == "skills/get"] == []


@CLIENTS
async def test_without_skills_the_method_does_not_exist(tmp_path: Path, client: str) -> None:
    async with serving(tmp_path, {"one": ScriptedServer([tool("t")])}) as served, client_of(served, client) as caller:
        assert (await caller.message("skills/list"))["error"]["code"] == NOT_FOUND
