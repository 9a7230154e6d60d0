"""References as arguments: the same in every way to call, and clear errors where they cannot stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.memory import settings_for
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

LARGE = json.dumps([{"id": number, "name": f"näme {number}"} for number in range(9000)], ensure_ascii=False)


def maker() -> ScriptedServer:
    async def answer(_ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        return text_result(LARGE)

    return ScriptedServer([tool("make", "Make a lot of text.")], answer)


def taker() -> ScriptedServer:
    return ScriptedServer([tool("take", "Take text.", {"content": {"type": "string"}, "more": {}})])


async def made(served: Serving) -> str:
    result = await served.call("call_tool", {"name": "maker__make"})
    return str(result["structuredContent"]["ref"])


def ways(arguments: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    """The same call in every way there is."""
    return {
        "direct": ("taker__take", arguments),
        "call_tool": ("call_tool", {"name": "taker__take", "arguments": arguments}),
        "call_batch": ("call_batch", {"calls": [{"name": "taker__take", "arguments": arguments}]}),
        "execute_workflow": ("execute_workflow", {"steps": [{"tool": "taker__take", "arguments": arguments}]}),
    }


@pytest.mark.parametrize("way", list(ways({})))
async def test_a_reference_reaches_an_upstream_as_its_value_in_every_way_to_call(tmp_path: Path, way: str) -> None:
    upstream = taker()
    async with serving(tmp_path, {"maker": maker(), "taker": upstream}, references={"mode": "meta"}) as served:
        ref = await made(served)
        more: list[Any] = [{"first": {"$ref": ref, "path": "[0].name"}}, {"$ref": "#/definitions/kept"}, "$0.kept"]
        given = {"content": {"$ref": ref}, "more": more[:2] if way == "execute_workflow" else more}
        result = await served.call(*ways(given)[way])
    assert not result.get("isError"), result
    expected = [{"first": "näme 0"}, *(more[1:2] if way == "execute_workflow" else more[1:])]
    assert [call["arguments"] for call in upstream.calls] == [{"content": LARGE, "more": expected}]


@pytest.mark.parametrize("way", list(ways({})))
async def test_a_reference_that_is_no_object_cannot_stand_for_all_arguments(tmp_path: Path, way: str) -> None:
    upstream = taker()
    async with serving(tmp_path, {"maker": maker(), "taker": upstream}, references={"mode": "meta"}) as served:
        ref = await made(served)
        whole = await served.call(*ways({"$ref": ref})[way])
        fits = await served.call(*ways({"$ref": ref, "path": "{content: [0].name}"})[way])
    assert "the arguments are a text instead of an object" in json.dumps(whole)
    assert whole["isError"]
    assert not fits.get("isError")
    assert [call["arguments"] for call in upstream.calls] == [{"content": "näme 0"}]


@pytest.mark.parametrize("way", list(ways({})))
async def test_a_malformed_reference_is_refused_in_every_way_to_call(tmp_path: Path, way: str) -> None:
    upstream = taker()
    async with serving(tmp_path, {"maker": maker(), "taker": upstream}, references={"mode": "meta"}) as served:
        ref = await made(served)
        result = await served.call(*ways({"content": {"$ref": ref, "pfad": "[0]"}})[way])
        gone = await served.call(*ways({"content": {"$ref": f"{ref[:-4]}AAAA"}})[way])
    assert "has other keys: pfad" in json.dumps(result)
    assert "NOT_FOUND" in json.dumps(gone)
    assert upstream.calls == []


async def test_what_was_made_of_a_tools_result_is_hidden_with_the_tool(tmp_path: Path) -> None:
    upstreams = {"maker": maker(), "taker": taker()}
    steps = [
        {"id": "made", "tool": "maker:make"},
        {"id": "middle", "transform": "$made[*].name"},
        {"id": "names", "transform": "{all: $middle}"},
    ]
    async with serving(tmp_path, upstreams) as served:
        answer = await served.call("execute_workflow", {"steps": steps, "return": ["names"]})
        [step] = [one for one in answer["structuredContent"]["steps"] if one["id"] == "names"]
        asked = {"ref": step["reference"]["ref"], "path": "all[0]"}
        before = await served.call("read_result", asked)
        settings = settings_for(upstreams, gateway={"blacklisted_tools": ["maker:*"]})
        await served.gateway.updates.apply_settings(settings)
        after = await served.call("read_result", asked)
    assert before["structuredContent"]["text"] == "näme 0"
    assert after["structuredContent"]["error"]["code"] == "NOT_FOUND"
