"""The gateway as a whole: what it answers before servers do, whose names it keeps, and what a restart knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from pml_gateway.gateway.gateway import open_gateway
from pml_gateway.upstreams.connector import UpstreamState
from tests.support.memory import MemoryStreams, paths_in, settings_for
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import serving
from tests.support.waiting import swapped

pytestmark = pytest.mark.anyio


async def test_a_manifest_answers_before_any_upstream_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pml_gateway.gateway.gateway.FIRST_LIST_WAIT", 3600.0)
    good = {"a": ScriptedServer([tool("one")]), "b": ScriptedServer([tool("two")])}
    async with serving(tmp_path, good) as served:
        assert await served.names("/full_proxy") == ["a__one", "b__two"]
        await swapped(served.gateway, lambda: served.gateway.pool.upstreams["b"].connector.state is UpstreamState.READY)
    bad = {"a": ScriptedServer(hang=True), "b": ScriptedServer(refuse=True)}
    async with serving(tmp_path, bad) as served:
        with anyio.fail_after(60):
            assert await served.names("/full_proxy") == ["a__one", "b__two"]
        error = (await served.call("b__two"))["structuredContent"]["error"]
        assert (error["code"], error["retryable"]) == ("UPSTREAM_UNAVAILABLE", True)
        await swapped(served.gateway, lambda: served.gateway.state.catalog.tools[1].stale)
        found = await served.call("search_tools", {"query": "b__two"})
        assert found["structuredContent"]["hits"][0]["unavailable"] is True


async def test_without_a_manifest_the_first_list_waits_for_the_living_and_not_for_the_hanging(tmp_path: Path) -> None:
    upstreams = {"a": ScriptedServer([tool("one")]), "h": ScriptedServer(hang=True), "d": ScriptedServer(refuse=True)}
    # Less than the connect timeout.
    with anyio.fail_after(14):
        async with serving(tmp_path, upstreams) as served:
            assert await served.names("/full_proxy") == ["a__one"]


async def test_names_stay_when_a_colliding_server_is_added_in_front(tmp_path: Path) -> None:
    first = {"b": ScriptedServer([tool("read"), tool("x" * 200), tool("resolve-library-id"), tool("größe")])}
    sections: dict[str, Any] = {"naming": {"prefix": "on_collision"}}
    async with serving(tmp_path, first, **sections) as served:
        before = await served.names("/full_proxy")
    both = {"a": ScriptedServer([tool("read")]), **first}
    async with serving(tmp_path, both, **sections) as served:
        await swapped(served.gateway, lambda: len(served.gateway.state.catalog.tools) == 5)
        after = await served.names("/full_proxy")
        assert set(before) < set(after)
        assert "read" in before
        assert (await served.call("read"))["content"][0]["text"].startswith("read")
        assert len(first["b"].calls) == 1, "the first owner keeps the name"
        for name in after:
            assert len(name) <= 64
            assert "error" not in str((await served.call(name)).get("structuredContent"))


async def test_malformed_definitions_are_listed_repaired_and_callable(tmp_path: Path) -> None:
    broken = ScriptedServer(
        [
            {"name": "no_schema"},
            {"name": "no_type", "inputSchema": {"properties": {"a": {"type": "strng"}}}},
            {"name": "any_of", "inputSchema": {"anyOf": [{"properties": {"a": {"type": "string"}}}]}},
            {"name": "bad_output", "inputSchema": {"type": "object"}, "outputSchema": {"type": "nonsense"}},
            {"name": "bad_description", "description": 5, "inputSchema": {"type": "object"}, "annotations": "x"},
        ]
    )
    async with serving(tmp_path, {"up": broken}) as served:
        listed = (await served.result("tools/list", path="/full_proxy"))["tools"]
        assert len(listed) == 5
        assert all(each["inputSchema"]["type"] == "object" for each in listed)
        for each in listed:
            assert (await served.call(each["name"]))["content"]
    repaired = [each for each in served.gateway.state.catalog.tools if each.repairs]
    assert len(repaired) == 5


async def test_two_refreshes_at_once_both_end(tmp_path: Path) -> None:
    upstream = ScriptedServer([tool("t")])
    streams = MemoryStreams({"up": upstream})
    settings = settings_for({"up": upstream})
    async with open_gateway(settings, paths_in(tmp_path), identity="t", open_streams=streams) as gateway:
        with anyio.fail_after(25):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(gateway.refresh, 30)
                tasks.start_soon(gateway.refresh, 30)


async def test_a_refresh_during_a_listing_waits_for_the_next_one(tmp_path: Path) -> None:
    is_asked, goes_on = anyio.Event(), anyio.Event()

    async def answer(_ctx: Any, method: str, _params: dict[str, Any]) -> dict[str, Any] | None:
        if method == "prompts/list":
            is_asked.set()
            await goes_on.wait()
        return None

    upstream = ScriptedServer([tool("one")], methods=frozenset({"prompts/list"}), answer=answer)
    streams = MemoryStreams({"up": upstream})
    settings = settings_for({"up": upstream})
    async with open_gateway(settings, paths_in(tmp_path), identity="t", open_streams=streams) as gateway:
        await is_asked.wait()
        upstream.tools.append(tool("two"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gateway.refresh, 30)
            await anyio.wait_all_tasks_blocked()
            goes_on.set()
        assert [each.name for each in gateway.state.catalog.tools] == ["one", "two"]


async def test_each_way_of_naming_keeps_its_own_names(tmp_path: Path) -> None:
    upstream = ScriptedServer([tool("one")])
    streams = MemoryStreams({"up": upstream})
    always = settings_for({"up": upstream})
    never = settings_for({"up": upstream}, naming={"prefix": "never"})
    async with open_gateway(always, paths_in(tmp_path), identity="t", open_streams=streams) as gateway:
        await gateway.refresh(5)
        await gateway.updates.apply_settings(never)
        upstream.tools.append(tool("two"))
        await gateway.refresh(5)
        assert [each.qualified_name for each in gateway.state.catalog.tools] == ["one", "two"]
    async with open_gateway(always, paths_in(tmp_path), identity="t", open_streams=streams) as gateway:
        await gateway.refresh(5)
        assert [each.qualified_name for each in gateway.state.catalog.tools] == ["up__one", "up__two"]
