"""An edit or a changed listing touches what it changes, and nothing else is built again."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from pml_gateway.config.settings import Settings
from pml_gateway.gateway.gateway import Gateway, open_gateway
from pml_gateway.gateway.request import RequestScope
from pml_gateway.gateway.tool_list import list_tools, render
from pml_gateway.policy.principal import LOCAL
from pml_gateway.types import ExposureMode
from tests.support.memory import MemoryStreams, paths_in, settings_for
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.waiting import swapped

pytestmark = pytest.mark.anyio

BROKEN = {"inputSchema": {"properties": {"a": {"type": "strng"}}}}
WORKFLOWS = {
    "triage": {
        "description": "Look at one.",
        "steps": [{"id": "one", "tool": "a__one", "arguments": {}, "hidden": True}],
    }
}


def servers() -> dict[str, ScriptedServer]:
    return {
        "a": ScriptedServer([tool("one") | BROKEN, tool("two") | BROKEN]),
        "b": ScriptedServer([tool("three") | BROKEN]),
    }


@asynccontextmanager
async def opened(folder: Path, upstreams: dict[str, ScriptedServer], settings: Settings) -> AsyncIterator[Gateway]:
    streams = MemoryStreams(upstreams)
    async with open_gateway(settings, paths_in(folder), identity="t", open_streams=streams) as gateway:
        assert await gateway.refresh(30)
        yield gateway


@pytest.mark.parametrize(
    "edit",
    [
        {"gateway": {"intent": "find a document"}},
        {"gateway": {"tools_exposure": "full_proxy"}},
        {"gateway": {"hybrid": {"max_underlying_tools": 3}}},
        {"references": {"threshold_tokens": 77}},
        {"upstreams": {"refresh_interval": 77}},
    ],
    ids=lambda edit: next(iter(edit)),
)
async def test_an_edit_that_touches_neither_servers_nor_names_rebuilds_nothing(
    tmp_path: Path, edit: dict[str, Any]
) -> None:
    upstreams = servers()
    async with opened(tmp_path, upstreams, settings_for(upstreams)) as gateway:
        before = gateway.state
        seen = before.view(LOCAL)
        await gateway.reload(settings_for(upstreams, **edit))
        assert gateway.state.settings != before.settings
        assert gateway.state.catalog is before.catalog
        assert gateway.state.view(LOCAL) is seen


async def test_a_blacklist_edit_keeps_the_catalog_and_makes_new_views(tmp_path: Path) -> None:
    upstreams = servers()
    async with opened(tmp_path, upstreams, settings_for(upstreams)) as gateway:
        before = gateway.state
        assert before.view(LOCAL).resolve("one") is not None
        await gateway.reload(settings_for(upstreams, gateway={"blacklisted_tools": ["a:one"]}))
        assert gateway.state.catalog is before.catalog
        assert gateway.state.view(LOCAL).resolve("one") is None


async def test_a_listing_replaces_only_the_tools_that_its_server_changed(tmp_path: Path) -> None:
    upstreams = servers()
    async with opened(tmp_path, upstreams, settings_for(upstreams)) as gateway:
        before = gateway.state.catalog
        listed = {name: each.last_listed for name, each in gateway.pool.upstreams.items()}
        upstreams["a"].tools = [*copy.deepcopy(upstreams["a"].tools[:1]), tool("two", "Another description.") | BROKEN]
        await upstreams["a"].announce_change()
        await swapped(gateway, lambda: gateway.state.catalog is not before)
        after = gateway.state.catalog
        assert [each.source for each in after.tools if each is not before.by_name(each.qualified_name)] == ["a:two"]
        answered = gateway.pool.upstreams["a"].last_listed
        first = listed["a"]
        assert answered is not None and first is not None and answered is not first
        assert [now is then for now, then in zip(answered.tools, first.tools, strict=True)] == [True, False]


async def test_a_listing_that_says_the_same_changes_nothing(tmp_path: Path) -> None:
    upstreams = servers()
    async with opened(tmp_path, upstreams, settings_for(upstreams)) as gateway:
        before, listed = gateway.state, gateway.pool.upstreams["a"].last_listed
        upstreams["a"].tools = copy.deepcopy(upstreams["a"].tools)
        assert await gateway.refresh(30)
        assert gateway.state.catalog is before.catalog
        answered = gateway.pool.upstreams["a"].last_listed
        assert answered is not None and listed is not None and answered is not listed
        assert all(now is then for now, then in zip(answered.tools, listed.tools, strict=True))


async def test_a_restart_knows_its_tools_by_the_manifest_and_replaces_none_that_are_listed_again(
    tmp_path: Path,
) -> None:
    upstreams = servers()
    async with opened(tmp_path, upstreams, settings_for(upstreams)):
        pass
    streams = MemoryStreams(upstreams)
    settings = settings_for(upstreams)
    async with open_gateway(settings, paths_in(tmp_path), identity="t", open_streams=streams, connect=False) as gateway:
        remembered = gateway.state.catalog
        assert len(remembered.tools) == 3
        assert await gateway.refresh(30)
        assert gateway.state.catalog is remembered


async def test_new_names_keep_the_repaired_schemas(tmp_path: Path) -> None:
    upstreams = servers()
    async with opened(tmp_path, upstreams, settings_for(upstreams)) as gateway:
        before = {each.source: each for each in gateway.state.catalog.tools}
        await gateway.reload(settings_for(upstreams, naming={"prefix": "never"}))
        after = {each.source: each for each in gateway.state.catalog.tools}
        assert {each.qualified_name for each in after.values()} == {"one", "two", "three"}
        for source, each in after.items():
            assert each.definition["inputSchema"] is before[source].definition["inputSchema"]
            assert each.repairs == before[source].repairs


async def test_a_server_that_comes_and_goes_leaves_the_tools_of_the_others_alone(tmp_path: Path) -> None:
    upstreams = servers()
    one = settings_for({"a": upstreams["a"]})
    async with opened(tmp_path, upstreams, one) as gateway:
        before = gateway.state.catalog.tools
        await gateway.reload(settings_for(upstreams))
        await swapped(gateway, lambda: gateway.state.catalog.by_name("b__three") is not None)
        assert gateway.state.catalog.tools[:2] == before
        await gateway.reload(one)
        assert gateway.state.catalog.tools == before
        assert set(gateway.pool.upstreams) == {"a"}


async def test_of_edits_at_once_the_last_one_wins(tmp_path: Path) -> None:
    upstreams = servers()
    first = settings_for(upstreams)
    async with opened(tmp_path, upstreams, first) as gateway:
        edits = [settings_for({"a": upstreams["a"]}), settings_for(upstreams, naming={"prefix": "never"}), first]
        async with anyio.create_task_group() as tasks:
            for edit in edits:
                tasks.start_soon(gateway.updates.apply_settings, edit)
        assert gateway.state.settings == first
        assert set(gateway.pool.upstreams) == {"a", "b"}
        assert {each.source for each in gateway.state.catalog.tools} == {"a:one", "a:two", "b:three"}


async def test_a_list_that_no_intent_selects_outlives_a_new_index(tmp_path: Path) -> None:
    upstreams = servers()
    settings = settings_for(upstreams, search={"ranking": "lexical"})
    async with opened(tmp_path, upstreams, settings) as gateway:
        assert await gateway.indexer.wait(30)
        scope = RequestScope(mode=ExposureMode.FULL_PROXY)
        before = await list_tools(gateway, scope, None, "2025-11-25")
        assert gateway.state.index is not None
        gateway.current.swap_index(gateway.state.index)
        after = await list_tools(gateway, scope, None, "2025-11-25")
        assert after.tools_json is before.tools_json


async def test_lists_that_are_asked_for_at_once_are_made_once(tmp_path: Path) -> None:
    upstreams = servers()
    made: list[bytes] = []
    async with opened(tmp_path, upstreams, settings_for(upstreams)) as gateway:

        async def ask() -> None:
            scope = RequestScope(mode=ExposureMode.FULL_PROXY)
            made.append((await list_tools(gateway, scope, None, "2025-11-25")).tools_json)

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(ask)
    assert len(made) == 5
    assert all(each is made[0] for each in made)


async def test_a_tool_that_a_workflow_kept_off_the_lists_is_listed_once_the_workflow_is_gone(tmp_path: Path) -> None:
    upstreams = servers()
    async with opened(tmp_path, upstreams, settings_for(upstreams, workflows=WORKFLOWS)) as gateway:
        assert "a__one" not in gateway.state.view(LOCAL).names
        await gateway.reload(settings_for(upstreams))
        assert "a__one" in gateway.state.view(LOCAL).names


async def test_workflows_are_the_very_same_tools_after_another_servers_listing(tmp_path: Path) -> None:
    upstreams = servers()
    async with opened(tmp_path, upstreams, settings_for(upstreams, workflows=WORKFLOWS)) as gateway:
        before = gateway.state.catalog
        upstreams["b"].tools.append(tool("four"))
        await upstreams["b"].announce_change()
        await swapped(gateway, lambda: gateway.state.catalog.by_name("b__four") is not None)
        for each in before.tools:
            assert gateway.state.catalog.by_name(each.qualified_name) is each


async def test_a_new_server_is_listed_and_those_that_are_connected_are_not_asked_again(tmp_path: Path) -> None:
    upstreams = servers()
    first = {"a": upstreams["a"]}
    async with opened(tmp_path, upstreams, settings_for(first)) as gateway:
        asked = upstreams["a"].lists
        await gateway.reload(settings_for(upstreams))
        await swapped(gateway, lambda: gateway.state.view(LOCAL).resolve("b__three") is not None)
        assert (upstreams["a"].lists, upstreams["b"].lists) == (asked, 1)


async def test_a_list_that_was_being_made_during_an_edit_is_made_by_the_new_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstreams = servers()
    settings = settings_for(upstreams, gateway={"tools_exposure": "full_proxy"})
    denied = settings_for(upstreams, gateway={"tools_exposure": "full_proxy", "blacklisted_tools": ["a:one"]})
    begun, go_on = threading.Event(), threading.Event()
    async with opened(tmp_path, upstreams, settings) as gateway:

        def render_late(*arguments: Any) -> bytes:
            rendered = render(*arguments)
            if not begun.is_set():
                begun.set()
                assert go_on.wait(30)
            return rendered

        monkeypatch.setattr("pml_gateway.gateway.tool_list.render", render_late)
        lists: list[list[str]] = []

        async def list_all() -> None:
            listed = await list_tools(gateway, RequestScope(), None, "2025-11-25")
            lists.append([each["name"] for each in json.loads(listed.tools_json)])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(list_all)
            assert await anyio.to_thread.run_sync(begun.wait, 30)
            await gateway.updates.apply_settings(denied)
            go_on.set()
    assert lists == [["a__two", "b__three"]]
