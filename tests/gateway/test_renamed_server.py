"""A server that gets another name while clients use it: what they call by the old one, and what goes on with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pml_gateway.config.settings import Settings
from pml_gateway.gateway.gateway import open_gateway
from pml_gateway.policy.client import LOCAL
from pml_gateway.results.content import RENAMED
from tests.support.memory import MemoryStreams, paths_in
from tests.support.scripted_server import ScriptedServer, prompt, tool
from tests.support.serving import Serving, serving
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

NOW = {"old__add": "new__add"}
STEPS = [{"tool": "old:add", "arguments": {}}]
WORKFLOW = {"w": {"description": "Adds.", "steps": [{"tool": "old__add", "arguments": {}}]}}


def settings_of(name: str, *formerly: str, **sections: Any) -> Settings:
    servers = {name: {"command": "in-memory", "formerly": formerly}}
    return Settings.model_validate({"servers": servers, "trust": {"new_servers": "review"}, **sections})


def upstream() -> ScriptedServer:
    return ScriptedServer([tool("add"), tool("drop")], prompts=[prompt("plan")])


async def renamed(served: Serving, **sections: Any) -> None:
    await served.gateway.reload(settings_of("new", "old", **sections))


@pytest.fixture
def streams() -> MemoryStreams:
    server = upstream()
    return MemoryStreams({"old": server, "new": server})


async def test_calls_by_the_old_name_reach_the_tool_and_are_told_the_new_one(
    tmp_path: Path, streams: MemoryStreams
) -> None:
    given = settings_of("old", workflows=WORKFLOW, trust={})
    async with serving(tmp_path, {}, given, open_streams=streams) as served:
        await until(lambda: "old__add" in served.gateway.state.view(LOCAL).names)
        assert RENAMED not in (await served.call("old__add")).get("_meta", {})

        await renamed(served, workflows=WORKFLOW, trust={})

        names = await served.names("/full_proxy")
        assert [name for name in names if name.endswith(("add", "drop"))] == ["new__add", "new__drop"]
        direct = await served.call("old__add")
        assert direct["_meta"][RENAMED] == NOW
        by_meta_tool = await served.call("call_tool", {"name": "old:add"})
        assert by_meta_tool["_meta"][RENAMED] == {"old:add": "new__add"}
        by_server = await served.call("call_tool", {"server": "old", "name": "add"})
        assert by_server["_meta"][RENAMED] == {"old:add": "new__add"}
        steps = await served.call("execute_workflow", {"steps": STEPS})
        assert steps["structuredContent"]["status"] != "failed"
        assert steps["_meta"][RENAMED] == {"old:add": "new__add"}
        slots = await served.call("call_batch", {"calls": [{"tool": "old__add"}, {"tool": "new__add"}]})
        assert slots["_meta"][RENAMED] == NOW
        assert not (await served.call("workflows__w")).get("isError")
        found = await served.call("search_tools", {"query": "add", "server": "old"})
        assert [hit["name"] for hit in found["structuredContent"]["hits"]][:1] == ["new__add"]
        for name in ("new__add", "new:add"):
            assert RENAMED not in (await served.call(name)).get("_meta", {})


async def test_what_is_denied_by_the_old_name_stays_denied(tmp_path: Path, streams: MemoryStreams) -> None:
    rules = {"gateway": {"blacklisted_tools": ["old__drop"]}, "trust": {}}
    async with serving(tmp_path, {}, settings_of("old", **rules), open_streams=streams) as served:
        await until(lambda: "old__add" in served.gateway.state.view(LOCAL).names)

        await renamed(served, **rules)

        assert "new__drop" not in await served.names("/full_proxy")
        for name in ("old__drop", "new__drop", "old:drop"):
            refused = await served.call(name)
            assert refused["structuredContent"]["error"]["code"] == "NOT_FOUND"


async def test_a_namespace_is_called_by_its_old_name_as_well(tmp_path: Path, streams: MemoryStreams) -> None:
    style = {"gateway": {"style": "namespaces"}, "trust": {}}
    async with serving(tmp_path, {}, settings_of("new", "old", **style), open_streams=streams) as served:
        await until(lambda: "new__add" in served.gateway.state.view(LOCAL).names)
        done = await served.call("old", {"action": "add"})
        assert not done.get("isError")
        assert done["_meta"][RENAMED] == {"old": "new"}


async def test_what_the_owner_accepted_stays_accepted_and_lists_are_known_at_once(
    tmp_path: Path, streams: MemoryStreams
) -> None:
    before, after = settings_of("old", trust={}), settings_of("new", "old")
    async with open_gateway(before, paths_in(tmp_path), identity="t", open_streams=streams) as gateway:
        await gateway.refresh(30)
        names = [each.qualified_name for each in gateway.state.catalog.tools]
        await gateway.reload(after)
        assert [each.qualified_name for each in gateway.state.catalog.tools] == ["new__add", "new__drop"]
        assert not any(pins.held for pins in gateway.warden.servers.values())
        await gateway.refresh(30)
        assert not any(pins.held for pins in gateway.warden.servers.values())
    assert names == ["old__add", "old__drop"]
    async with open_gateway(after, paths_in(tmp_path), identity="t", open_streams=streams, connect=False) as gateway:
        state = gateway.state
        assert [each.qualified_name for each in state.catalog.tools] == ["new__add", "new__drop"]
        called = state.view(LOCAL).resolve("old__add")
        assert called is not None and called.source == "new:add"


async def test_a_gateway_that_starts_with_the_new_name_knows_what_it_knew(
    tmp_path: Path, streams: MemoryStreams
) -> None:
    async with open_gateway(
        settings_of("old", trust={}), paths_in(tmp_path), identity="t", open_streams=streams
    ) as gateway:
        await gateway.refresh(30)
    after = settings_of("new", "old")
    async with open_gateway(after, paths_in(tmp_path), identity="t", open_streams=streams, connect=False) as gateway:
        assert [each.qualified_name for each in gateway.state.catalog.tools] == ["new__add", "new__drop"]
        assert not any(pins.held for pins in gateway.warden.servers.values())
