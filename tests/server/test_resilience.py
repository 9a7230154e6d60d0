"""Upstreams that are late, silent, gone or change their minds; and what survives a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client

from pml_gateway.gateway.gateway import Gateway
from pml_gateway.upstreams.lifecycle import UpstreamState
from tests.support.memory import FakeUpstream, settings_for, text_result, tool
from tests.support.serving import serving

pytestmark = pytest.mark.anyio


async def until(gateway: Gateway, condition: Any) -> None:
    """Wait for a swap after which the condition holds."""
    changed = anyio.Event()

    def look(*_: object) -> None:
        if condition():
            changed.set()

    stop = gateway.on_swap(look)
    look()
    try:
        with anyio.fail_after(30):
            await changed.wait()
    finally:
        stop()


async def test_a_manifest_answers_before_any_upstream_is_up(tmp_path: Path) -> None:
    good = {"a": FakeUpstream([tool("one")]), "b": FakeUpstream([tool("two")])}
    async with serving(tmp_path, good) as served:
        assert await served.names("/full_proxy") == ["a__one", "b__two"]
        await until(served.gateway, lambda: served.gateway.pool.upstreams["b"].state is UpstreamState.READY)
    bad = {"a": FakeUpstream(hang=True), "b": FakeUpstream(refuse=True)}
    async with serving(tmp_path, bad) as served:
        with anyio.fail_after(2):
            assert await served.names("/full_proxy") == ["a__one", "b__two"]
        error = (await served.call("b__two"))["structuredContent"]["error"]
        assert (error["code"], error["retryable"]) == ("UPSTREAM_UNAVAILABLE", True)
        found = await served.call("search_tools", {"query": "b__two"})
        assert found["structuredContent"]["hits"][0]["unavailable"] is True


async def test_without_a_manifest_the_first_list_waits_for_the_living_and_not_for_the_hanging(tmp_path: Path) -> None:
    upstreams = {"a": FakeUpstream([tool("one")]), "h": FakeUpstream(hang=True), "d": FakeUpstream(refuse=True)}
    with anyio.fail_after(6):
        async with serving(tmp_path, upstreams) as served:
            assert await served.names("/full_proxy") == ["a__one"]


async def test_a_hung_upstream_comes_back_without_a_restart(tmp_path: Path) -> None:
    late = FakeUpstream([tool("late")], hang=True)
    upstreams = {"late": late, "ok": FakeUpstream([tool("ok")])}
    settings = settings_for(upstreams, upstreams={"connect_timeout": 0.3})
    async with serving(tmp_path, upstreams, settings) as served:
        late.hang = False
        await until(served.gateway, lambda: served.gateway.state.catalog.by_name("late__late") is not None)
        assert "late__late" in await served.names("/full_proxy")
        assert (await served.call("late__late"))["content"][0]["text"].startswith("late")


async def test_a_crash_during_a_call_says_that_its_execution_is_unknown_and_the_next_call_works(tmp_path: Path) -> None:
    started = anyio.Event()

    async def once(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        if call["arguments"].get("crash"):
            started.set()
            await anyio.sleep_forever()
        return text_result("alive")

    upstream = FakeUpstream([tool("t")], once)
    async with serving(tmp_path, {"up": upstream}) as served:
        results: list[dict[str, Any]] = []

        async def crash() -> None:
            results.append(await served.call("up__t", {"crash": True}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(crash)
            with anyio.fail_after(30):
                await started.wait()
            upstream.kill()
        error = results[0]["structuredContent"]["error"]
        assert error["code"] == "UPSTREAM_UNAVAILABLE"
        assert error["details"]["executed"] == "unknown"
        assert (await served.call("up__t"))["content"][0]["text"] == "alive"
        assert upstream.opened == 2


async def test_list_changed_upstream_is_coalesced_and_reaches_clients_whose_list_changed(tmp_path: Path) -> None:
    upstream = FakeUpstream([tool("one")])
    async with serving(tmp_path, {"up": upstream}, gateway={"tools_exposure": "full_proxy"}) as served:
        told: list[str] = []
        noticed = anyio.Event()

        async def on_message(message: Any) -> None:
            told.append(type(message).__name__)
            noticed.set()

        async with (
            Client(served.url, mode="legacy", message_handler=on_message) as full,
            Client(f"{served.url}/meta_only", mode="legacy", message_handler=_refuse) as meta,
            Client(served.url) as modern,
            modern.listen(tools_list_changed=True) as subscription,
        ):
            await full.list_tools()
            await meta.list_tools()
            before = upstream.lists
            upstream.tools.append(tool("two"))
            for _ in range(20):
                await upstream.announce_change()
            with anyio.fail_after(30):
                await noticed.wait()
                event = await subscription.__anext__()
            assert type(event).__name__ == "ToolsListChanged"
            assert [each.name for each in (await full.list_tools()).tools] == ["up__one", "up__two"]
            assert told == ["ToolListChangedNotification"]
            assert upstream.lists - before <= 3, "twenty announcements cost at most a few listings"


async def _refuse(message: Any) -> None:
    raise AssertionError(f"this client's list did not change, yet it got {message}")


async def test_pagination_is_followed_and_a_repeated_cursor_is_an_error(tmp_path: Path) -> None:
    paged = FakeUpstream([tool(f"t{number}") for number in range(25)], page_size=10)
    async with serving(tmp_path / "a", {"up": paged}) as served:
        assert len(await served.names("/full_proxy")) == 25
    looping = FakeUpstream([tool("t")] * 3, page_size=0)
    async with serving(tmp_path / "b", {"up": looping, "ok": FakeUpstream([tool("t")])}) as served:
        assert await served.names("/full_proxy") == ["ok__t"]
        assert "cursor" in str(served.gateway.pool.upstreams["up"].last_error)


async def test_names_stay_when_a_colliding_server_is_added_in_front(tmp_path: Path) -> None:
    first = {"b": FakeUpstream([tool("read"), tool("x" * 200), tool("resolve-library-id"), tool("größe")])}
    sections: dict[str, Any] = {"naming": {"prefix": "on_collision"}}
    async with serving(tmp_path, first, **sections) as served:
        before = await served.names("/full_proxy")
    both = {"a": FakeUpstream([tool("read")]), **first}
    async with serving(tmp_path, both, **sections) as served:
        await until(served.gateway, lambda: len(served.gateway.state.catalog.tools) == 5)
        after = await served.names("/full_proxy")
        assert set(before) < set(after)
        assert "read" in before
        assert (await served.call("read"))["content"][0]["text"].startswith("read")
        assert len(first["b"].calls) == 1, "the first owner keeps the name"
        for name in after:
            assert len(name) <= 64
            assert "error" not in str((await served.call(name)).get("structuredContent"))


async def test_malformed_definitions_are_listed_repaired_and_callable(tmp_path: Path) -> None:
    broken = FakeUpstream(
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
