"""Large results inside composite tools: answered as the composite tool's own, under its own rights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

LARGE = "many words " * 3000
META_TOOLS = ["call_tool", "call_batch", "read_result", "gateway_info"]


def upstreams() -> dict[str, ScriptedServer]:
    async def answer(_ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        return text_result(LARGE)

    return {"up": ScriptedServer([tool("make", annotations={"readOnlyHint": True})], answer)}


def serve(folder: Path, mode: str, **composite: Any) -> Any:
    steps = [{"id": "made", "tool": "up__make", "hidden": True}]
    report = {"description": "Make a report.", "input": {"type": "object"}, "steps": steps, **composite}
    return serving(
        folder,
        upstreams(),
        references={"mode": mode},
        workflows={"report": report},
        gateway={"meta_tools": META_TOOLS},
    )


async def read(served: Serving, ref: str) -> Any:
    result = await served.call("read_result", {"ref": ref, "limit": 10})
    return result["structuredContent"].get("text", result)


async def test_a_direct_call_is_answered_whole_where_only_steps_are_answered_by_reference(tmp_path: Path) -> None:
    async with serve(tmp_path, "workflow") as served:
        result = await served.call("workflows__report")
    assert result["content"][0]["text"] == LARGE


async def test_a_reference_for_a_composite_tool_can_be_read_though_its_step_is_hidden(tmp_path: Path) -> None:
    async with serve(tmp_path, "all") as served:
        direct = await served.call("workflows__report")
        slots = await served.call("call_batch", {"calls": [{"name": "workflows__report"}]})
        [slot] = slots["structuredContent"]["slots"]
        pages = [await read(served, one["ref"]) for one in (direct["structuredContent"], slot["reference"])]
    assert pages == [LARGE[:10]] * 2


async def test_output_as_reference_says_when_and_from_what_it_was_made(tmp_path: Path) -> None:
    async with serve(tmp_path, "workflow", output_as="reference") as served:
        result = await served.call("workflows__report", {"week": 7})
        ref = result["structuredContent"]["ref"]
        assert await read(served, ref) == LARGE[:10]
        lineage = (await served.call("gateway_info", {"section": "lineage", "ref": ref}))["structuredContent"]
    [call] = [node for node in lineage["nodes"] if node["kind"] == "call"]
    assert (call["tool"], call["inputs"]) == ("workflows__report", "{week: int}")
    assert not call["at"].startswith("1970")
