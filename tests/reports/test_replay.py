"""A recorded week: the plan says exactly which calls change their path, and at every stage none is lost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.to_thread
import pytest

from pml_gateway.activity.history import History, RecordFilter, most_used, read_history
from pml_gateway.activity.stages import Stage, stage_in, values_of, with_values
from pml_gateway.config.load import LoadedSettings
from pml_gateway.gateway.request import CallOptions, RequestScope
from pml_gateway.gateway.tool_list import list_tools
from pml_gateway.policy.principal import LOCAL
from pml_gateway.reports.replay import PlannedMigration, plan_migration
from pml_gateway.serve.runtime import Runtime, open_runtime
from tests.activity.week import CALLS, WeekCall, upstreams, week
from tests.support.memory import MemoryStreams, paths_in, settings_for

pytestmark = pytest.mark.anyio

VERSION = "2025-11-25"


@asynccontextmanager
async def running(home: Path) -> AsyncIterator[Runtime]:
    fakes = upstreams()
    settings = settings_for(fakes, gateway={"tools_exposure": "full_proxy"})
    loaded = LoadedSettings(settings, origins={}, warnings=(), files=())
    streams = MemoryStreams(fakes)
    async with open_runtime(loaded, paths_in(home), identity="t", load=lambda: loaded, open_streams=streams) as runtime:
        await runtime.gateway.refresh(60)
        await runtime.gateway.wait_for_search(60)
        yield runtime


async def listed(runtime: Runtime) -> set[str]:
    found = await list_tools(runtime.gateway, RequestScope(), None, VERSION)
    return {entry["name"] for entry in json.loads(found.tools_json)}


async def called(runtime: Runtime, name: str, arguments: dict[str, object] | None = None) -> dict[str, object]:
    result = await runtime.caller.call(RequestScope(), name, arguments or {}, CallOptions())
    assert not result.get("isError"), result
    structured = result.get("structuredContent")
    return structured if isinstance(structured, dict) else {}


async def record_week(runtime: Runtime, calls: list[WeekCall]) -> None:
    for call in calls:
        if call.query is not None:
            await called(runtime, "search_tools", {"query": call.query})
        await called(runtime, call.name)


async def replayed(runtime: Runtime, calls: list[WeekCall], plan: PlannedMigration) -> Counter[str]:
    """Make every call as a model would at this stage; what had to be searched."""
    tools = await listed(runtime)
    queries = {each["name"]: each["query"] for each in plan["changes"]}
    searched: Counter[str] = Counter()
    for call in calls:
        if call.name in tools:
            await called(runtime, call.name)
            continue
        searched[call.name] += 1
        found = await called(runtime, "search_tools", {"query": call.query or queries[call.name]})
        hits = found["hits"]
        assert isinstance(hits, list)
        assert call.name in [hit["name"] for hit in hits]
        await called(runtime, "call_tool", {"name": call.name, "arguments": {}})
    return searched


async def history(runtime: Runtime, home: Path) -> History:
    """All records, once they are on disk."""
    file = paths_in(home).activity_file
    with anyio.fail_after(30):
        while True:
            found = await anyio.to_thread.run_sync(read_history, file, RecordFilter("t"))
            if found.calls and len(found.calls) % CALLS == 0:
                return found
            await anyio.to_thread.run_sync(runtime.gateway.shared.activity.flush)


@pytest.mark.slow
async def test_the_plan_says_which_calls_change_path_and_no_stage_loses_one(tmp_path: Path) -> None:
    calls = week()
    async with running(tmp_path) as runtime:
        gateway = runtime.gateway
        await record_week(runtime, calls)
        recorded = (await history(runtime, tmp_path)).calls
        assert [call.tool for call in recorded] == [tuple(call.name.split("__", 1)) for call in calls]
        # A call without a search of its own may still follow from an earlier one.
        assert all(call.query in (None, kept.query) for call, kept in zip(calls, recorded, strict=True))
        for stage in list(Stage)[1:]:
            before = await listed(runtime)
            values = values_of(stage, gateway.state.settings)
            ranking = most_used(paths_in(tmp_path).activity_file, "t") if stage.mode.value == "hybrid" else ()
            plan = plan_migration(gateway.state, recorded, stage, ranking=ranking)
            assert (plan["calls"], plan["calls_of_gone_tools"], plan["lost_calls"]) == (CALLS, 0, 0)

            await gateway.reload(with_values(gateway.state.settings, values))
            assert stage_in(gateway.state.settings) is stage
            searched = await replayed(runtime, calls, plan)
            await history(runtime, tmp_path)

            predicted: Counter[str] = Counter()
            for each in plan["changes"]:
                predicted[each["name"]] += each["calls"]
            assert predicted == searched
            changing = {each["name"] for each in plan["changes"] if each["listed_now"]}
            assert changing == {name for name in searched if name in before}


async def test_the_whitelist_of_the_week_keeps_nearly_all_calls_at_few_tokens(tmp_path: Path) -> None:
    async with running(tmp_path) as runtime:
        await record_week(runtime, [WeekCall(call.name, None) for call in week()])
        recorded = (await history(runtime, tmp_path)).calls
        state = runtime.gateway.state
        plan = plan_migration(state, recorded, Stage.META_ONLY, keep=0.95)
        assert plan["whitelist"]["calls"] >= 0.95 * CALLS
        assert plan["whitelist"]["tokens"] <= 0.3 * plan["whitelist"]["full_tokens"]
        assert len(state.view(LOCAL).tools) == 120
        everything = plan_migration(state, recorded, Stage.META_ONLY)
        assert everything["whitelist"]["calls"] == CALLS
