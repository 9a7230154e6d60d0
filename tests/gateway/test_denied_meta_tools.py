"""A meta-tool that a client is denied does not exist for it: not listed, not called by any name, never mentioned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pml_gateway.config.settings import CALLS_BY_EFFECT, META_TOOLS
from pml_gateway.meta.meta_tools import ALL_META_TOOLS
from tests.support.memory import settings_for
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

KEY = "key-of-a-narrow-client-1"


def denying(*denied: str, **gateway: Any) -> tuple[dict[str, ScriptedServer], Any]:
    """A server, and settings whose one client is denied these."""
    upstreams = {"up": ScriptedServer([tool("one"), tool("quiet")])}
    clients = {"narrow": {"key": "${env:PML_TEST_NARROW}", "deny": denied}}
    section = {"meta_tools": META_TOOLS, **gateway}
    return upstreams, settings_for(upstreams, clients=clients, gateway=section, references={"mode": "all"})


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PML_TEST_NARROW", KEY)


async def refused(served: Serving, name: str, arguments: dict[str, Any]) -> Any:
    """What is answered to a call, with the name left out."""
    answer = await served.message("tools/call", {"name": name, "arguments": arguments}, key=KEY)
    return str({key: answer[key] for key in ("result", "error") if key in answer}).replace(name, "NAME")


@pytest.mark.parametrize("name", META_TOOLS)
@pytest.mark.parametrize("style", ["tools", "namespaces"])
async def test_it_is_not_listed_and_every_call_of_it_is_of_an_unknown_tool(
    tmp_path: Path, name: str, style: str
) -> None:
    upstreams, settings = denying(name, style=style)
    aliases = ALL_META_TOOLS.by_name(name).aliases
    async with serving(tmp_path, upstreams, settings) as served:
        for mode in ("/meta_only", "/hybrid"):
            listed = await served.result("tools/list", {}, mode, key=KEY)
            assert name not in str(listed)
            assert listed["tools"], "the others stay"
        unknown = await refused(served, "nosuchtool", {"query": "x"})
        for each in (name, *aliases):
            assert await refused(served, each, {"query": "x"}) == unknown
        told = await served.result("server/discover", key=KEY)
        assert name not in str(told)
        assert name not in str(await served.message("tools/call", {"name": "nosuchtool"}, key=KEY))


async def test_another_client_keeps_it(tmp_path: Path) -> None:
    upstreams, settings = denying("search_tools")
    local = settings.model_copy(update={"clients": {}})
    async with serving(tmp_path, upstreams, local) as served:
        assert "search_tools" in await served.names()


@pytest.mark.parametrize(
    ("denied", "gone"),
    [
        ("call_*", {"call_tool", "call_batch", *CALLS_BY_EFFECT}),
        ("search_tools ", {"search_tools"}),
        ("search", set()),
        ("*", set()),
        ("*:search*", set()),
        ("up:search", set()),
        ("up__search", set()),
    ],
)
async def test_entries_that_begin_with_a_wildcard_or_a_server_are_about_tools_of_servers(
    tmp_path: Path, denied: str, gone: set[str]
) -> None:
    upstreams, settings = denying(denied)
    async with serving(tmp_path, upstreams, settings) as served:
        assert set(META_TOOLS) - set(await served.names(key=KEY)) == gone


async def test_it_is_denied_as_a_step_and_a_slot_as_an_unknown_tool_is(tmp_path: Path) -> None:
    upstreams, settings = denying("search_tools")
    async with serving(tmp_path, upstreams, settings) as served:
        answers = []
        for name in ("search_tools", "nosuchtool"):
            batch = await served.call("call_batch", {"calls": [{"name": name}]}, key=KEY)
            plan = {"steps": [{"tool": name}], "dry_run": True}
            run = await served.call("execute_workflow", plan, key=KEY)
            single = await served.call("call_tool", {"name": name}, key=KEY)
            told = [each["structuredContent"] for each in (batch, run, single)]
            answers.append(str(told).replace(name, "NAME"))
    assert answers[0] == answers[1]
    assert "search_tools" not in answers[1]


@pytest.mark.parametrize(
    ("denied", "hint"),
    [("nothing", "search_tools finds tools by what they do"), ("search_tools", "tools/list has the names")],
)
async def test_where_no_tool_fits_it_is_no_remedy(tmp_path: Path, denied: str, hint: str) -> None:
    upstreams, settings = denying(denied)
    async with serving(tmp_path, upstreams, settings) as served:
        intent = await served.call("execute_workflow", {"intent": "buy xylophones"}, key=KEY)
    assert intent["structuredContent"]["next"] == f"no tool fits; {hint}"
