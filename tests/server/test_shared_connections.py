"""What one client, one server or one edit does must not cost the others their calls."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from pml_gateway.config.settings import Settings
from pml_gateway.gateway.calling import Caller
from pml_gateway.gateway.gateway import Gateway, open_gateway
from pml_gateway.gateway.request import CallOptions, RequestScope
from pml_gateway.meta.meta_tools import ALL_META_TOOLS
from tests.support.memory import FakeUpstream, MemoryStreams, paths_in, settings_for, text_result, tool
from tests.support.serving import serving

pytestmark = pytest.mark.anyio

SERVER = Path(__file__).parents[1] / "support" / "upstream_server.py"


async def call(gateway: Gateway, name: str, arguments: dict[str, Any], results: list[dict[str, Any]]) -> None:
    results.append(await Caller(gateway).call(RequestScope(), name, arguments, CallOptions()))


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "up__echo", "arguments": '{"message": "\\ud83d"}'},
        {"name": "up__echo", "arguments": {"message": "\ud83d"}},
        {"name": "up__echo", "arguments": "[" * 100_000},
    ],
)
async def test_text_that_no_message_can_carry_is_refused_and_ends_nobody_elses_call(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    settings = Settings.model_validate({"servers": {"up": {"command": sys.executable, "args": [str(SERVER)]}}})
    started = tmp_path / "started"
    slow: list[dict[str, Any]] = []
    bad: list[dict[str, Any]] = []
    async with open_gateway(settings, paths_in(tmp_path), identity="t", meta_tools=ALL_META_TOOLS) as gateway:
        await gateway.refresh(20)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, gateway, "up__slow", {"seconds": 1, "started": str(started)}, slow)
            await call(gateway, "call_tool", arguments, bad)
    assert bad[0]["structuredContent"]["error"]["code"] == "INVALID_INPUT"
    assert slow[0]["content"][0]["text"] == "slept"


async def test_a_listing_that_fails_leaves_the_running_call_and_the_tools_alone(tmp_path: Path) -> None:
    started, release = anyio.Event(), anyio.Event()

    async def wait(_ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        started.set()
        await release.wait()
        return text_result("done")

    upstream = FakeUpstream([tool("t")], wait)
    results: list[dict[str, Any]] = []
    streams = MemoryStreams({"up": upstream})
    settings = settings_for({"up": upstream})
    async with open_gateway(settings, paths_in(tmp_path), identity="t", open_streams=streams) as gateway:
        await gateway.refresh(30)
        lists = upstream.lists
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, gateway, "up__t", {}, results)
            with anyio.fail_after(30):
                await started.wait()
            upstream.page_size = 0  # every page leads to itself
            gateway.pool.request_all()
            with anyio.fail_after(30):
                while upstream.lists < lists + 2:
                    await anyio.lowlevel.checkpoint()
            release.set()
        assert results[0]["content"][0]["text"] == "done"
        assert gateway.state.catalog.by_name("up__t") is not None
    assert upstream.opened == 1


async def test_queued_calls_of_a_server_that_is_configured_anew_are_made_and_a_waiting_one_fails_at_once(
    tmp_path: Path,
) -> None:
    started, release = anyio.Event(), anyio.Event()

    async def wait(_ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        started.set()
        await release.wait()
        return text_result("done")

    upstream = FakeUpstream([tool("t")], wait)
    settings = settings_for({"up": upstream}, upstreams={"max_concurrent": 1})
    edited = settings_for({"up": upstream}, upstreams={"max_concurrent": 1, "refresh_interval": 30})
    results: list[dict[str, Any]] = []
    streams = MemoryStreams({"up": upstream})
    async with open_gateway(settings, paths_in(tmp_path), identity="t", open_streams=streams) as gateway:
        await gateway.refresh(30)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(call, gateway, "up__t", {}, results)
            with anyio.fail_after(30):
                await started.wait()
            await gateway.apply_settings(edited)
            release.set()
    assert [result["content"][0]["text"] for result in results] == ["done"] * 3
    upstream.hang = True
    async with open_gateway(edited, paths_in(tmp_path), identity="t", open_streams=streams, connect=False) as gateway:
        waiting: list[dict[str, Any]] = []
        opened = upstream.opened
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call, gateway, "up__t", {}, waiting)
                while upstream.opened == opened:
                    await anyio.lowlevel.checkpoint()
                await gateway.apply_settings(edited.model_copy(update={"servers": {}}))
    assert waiting[0]["structuredContent"]["error"]["code"] == "UPSTREAM_UNAVAILABLE"


async def test_two_refreshes_at_once_both_end(tmp_path: Path) -> None:
    upstream = FakeUpstream([tool("t")])
    streams = MemoryStreams({"up": upstream})
    settings = settings_for({"up": upstream})
    async with open_gateway(settings, paths_in(tmp_path), identity="t", open_streams=streams) as gateway:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(gateway.refresh, 30)
                tasks.start_soon(gateway.refresh, 30)


async def test_each_way_of_naming_keeps_its_own_names(tmp_path: Path) -> None:
    upstream = FakeUpstream([tool("one")])
    streams = MemoryStreams({"up": upstream})
    always = settings_for({"up": upstream})
    never = settings_for({"up": upstream}, naming={"prefix": "never"})
    async with open_gateway(always, paths_in(tmp_path), identity="t", open_streams=streams) as gateway:
        await gateway.refresh(5)
        await gateway.apply_settings(never)
        upstream.tools.append(tool("two"))
        await gateway.refresh(5)
        assert [each.qualified_name for each in gateway.state.catalog.tools] == ["one", "two"]
    async with open_gateway(always, paths_in(tmp_path), identity="t", open_streams=streams) as gateway:
        await gateway.refresh(5)
        assert [each.qualified_name for each in gateway.state.catalog.tools] == ["up__one", "up__two"]


async def test_a_tool_of_a_server_that_has_not_answered_yet_is_unavailable_rather_than_unknown(tmp_path: Path) -> None:
    upstreams = {"ok": FakeUpstream([tool("t")]), "late": FakeUpstream(hang=True)}
    async with serving(tmp_path, upstreams) as served:
        late = (await served.call("late__anything"))["structuredContent"]["error"]
        assert (late["code"], late["retryable"]) == ("UPSTREAM_UNAVAILABLE", True)
        unknown = (await served.call("nobody__anything"))["structuredContent"]["error"]
        assert unknown["code"] == "NOT_FOUND"


async def test_a_removed_key_ends_its_open_streams(tmp_path: Path) -> None:
    from httpx2 import AsyncClient
    from mcp.client.client import Client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.client.subscriptions import SubscriptionLost

    key = "key-of-client-a-0123456789"
    upstream = FakeUpstream([tool("t")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PML_TEST_KEY_A", key)
        patch.setenv("PML_TEST_KEY_B", key[::-1])
        both = {"a": {"key": "${env:PML_TEST_KEY_A}"}, "b": {"key": "${env:PML_TEST_KEY_B}"}}
        async with (
            serving(tmp_path, {"up": upstream}, clients=both) as served,
            AsyncClient(headers={"Authorization": f"Bearer {key}"}) as http,
            Client(streamable_http_client(served.url, http_client=http)) as client,
        ):
            with anyio.fail_after(30):
                async with client.listen(tools_list_changed=True) as subscription:
                    only_b = settings_for({"up": upstream}, clients={"b": both["b"]})
                    await served.gateway.apply_settings(only_b)
                    with pytest.raises((SubscriptionLost, StopAsyncIteration)):
                        await subscription.__anext__()
