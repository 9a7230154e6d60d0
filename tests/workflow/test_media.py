"""Images and audio that steps answer stay what they are: blocks of content that the answer names, or references."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from pml_gateway.results.content import content_of
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio


def image(size: int, kind: str = "image/png") -> dict[str, Any]:
    data = base64.b64encode(bytes((7 * position**2) % 256 for position in range(size))).decode()
    return {"type": kind.partition("/")[0], "data": data, "mimeType": kind}


SMALL, OTHER, LARGE, SOUND = image(1234), image(300, "image/jpeg"), image(20_000), image(500, "audio/wav")
NOTE = "content block 2: image/png, 1,234 bytes"
RESULTS: dict[str, dict[str, Any]] = {
    "shot": {"content": [SMALL]},
    "large": {"content": [LARGE]},
    "both": {"content": [{"type": "text", "text": "taken"}, OTHER]},
    "sound": {"content": [SOUND], "structuredContent": {"seconds": 3}},
}


def upstream() -> ScriptedServer:
    async def answer(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        given = RESULTS.get(call["name"])
        return given or text_result(json.dumps(call["arguments"]))

    tools = [tool(name) for name in RESULTS]
    return ScriptedServer([*tools, tool("take", properties={"data": {"type": "string"}})], answer)


async def call(served: Serving, session: Any, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The result in the stateless era, or in the session of a handshake."""
    if session is None:
        return await served.call(name, arguments)
    params = {"name": name, "arguments": arguments}
    result: dict[str, Any] = await anyio.to_thread.run_sync(session.result, "tools/call", params)
    return result


@pytest.mark.parametrize("era", ["2025", "2026"])
@pytest.mark.slow
async def test_slots_and_steps_name_the_blocks_that_follow_the_answer(tmp_path: Path, era: str) -> None:
    steps = [
        {"id": "shot", "tool": "up__shot"},
        {"id": "again", "transform": "{picture: $shot, size: length($shot)}"},
        {"id": "each", "tool": "up__both", "for_each": [1, 2]},
        {"id": "sound", "tool": "up__sound"},
        {"id": "take", "tool": "up__take", "arguments": {"data": "$each[0][1].data"}},
    ]
    async with serving(tmp_path, {"up": (fake := upstream())}) as served, served.handshake() as handshake:
        session = handshake if era == "2025" else None
        batch = await call(served, session, "call_batch", {"calls": [{"name": "up__shot"}, {"name": "up__both"}]})
        run = await call(served, session, "execute_workflow", {"steps": steps})
    assert batch["content"][1:] == [SMALL, OTHER]
    assert [slot["result"] for slot in batch["structuredContent"]["slots"]] == [
        NOTE,
        [{"type": "text", "text": "taken"}, "content block 3: image/jpeg, 300 bytes"],
    ]
    assert json.loads(batch["content"][0]["text"]) == batch["structuredContent"]
    assert run["content"][1:] == [SMALL, OTHER, SOUND], "each once, wherever it is named"
    shot, again, each, sound, take = [step["result"] for step in run["structuredContent"]["steps"]]
    assert (shot, again) == (NOTE, {"picture": NOTE, "size": len(SMALL["data"])})
    assert each == [[{"type": "text", "text": "taken"}, "content block 3: image/jpeg, 300 bytes"]] * 2
    assert sound == {"content": ["content block 4: audio/wav, 500 bytes"], "structuredContent": {"seconds": 3}}
    assert fake.calls[-1]["arguments"] == {"data": OTHER["data"]}, "steps pass the bytes on"
    assert take == {"data": "content block 3: image/jpeg, 300 bytes"}


async def test_media_are_shown_although_their_text_would_be_over_the_threshold(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": upstream()}) as served:
        batch = await served.call("call_batch", {"calls": [{"name": "up__large"}, {"name": "up__shot"}]})
        run = await served.call("execute_workflow", {"steps": [{"tool": "up__large"}], "budget": {"max_tokens": 2000}})
    assert batch["content"][1:] == [LARGE, SMALL]
    assert run["content"][1:] == [LARGE], "it costs what a model takes to see it"
    assert "exceeded" not in run["structuredContent"]


async def test_media_over_their_limit_are_references_that_are_read_as_what_they_are(tmp_path: Path) -> None:
    steps = [{"id": "large", "tool": "up__large"}, {"id": "named", "transform": "{picture: $large}"}]
    async with serving(tmp_path, {"up": upstream()}, references={"media_bytes": 9000}) as served:
        batch = await served.call("call_batch", {"calls": [{"name": "up__large"}, {"name": "up__shot"}]})
        run = await served.call("execute_workflow", {"steps": steps})
        large, shot = batch["structuredContent"]["slots"]
        read = await served.call("read_result", {"ref": large["reference"]["ref"]})
        named = run["structuredContent"]["steps"][1]["result"]["picture"]
        again = await served.call("read_result", {"ref": named["ref"]})
    assert (large["reference"]["mime"], shot["result"]) == ("image/png", NOTE)
    assert batch["content"][1:] == [SMALL]
    assert len(run["content"]) == 1
    assert read["content"][1] == again["content"][1] == LARGE


async def test_without_references_all_media_are_blocks(tmp_path: Path) -> None:
    workflow = {"steps": [{"tool": "up__shot"}], "budget": {"max_tokens": 100}}
    async with serving(tmp_path, {"up": upstream()}, references={"mode": "off"}) as served:
        batch = await served.call("call_batch", {"calls": [{"name": "up__large"}]})
        cut = await served.call("execute_workflow", workflow)
    assert batch["structuredContent"]["slots"][0]["result"] == "content block 2: image/png, 20,000 bytes"
    assert batch["content"][1:] == [LARGE]
    assert cut["structuredContent"]["steps"][0]["truncated"] == '"image/png, 1,234 bytes, left out"'
    assert len(cut["content"]) == 1


async def test_outputs_of_composite_tools_name_blocks_and_steps_still_read_the_bytes(tmp_path: Path) -> None:
    report = {
        "description": "A picture with a title.",
        "steps": [{"id": "shot", "tool": "up__shot"}, {"id": "both", "tool": "up__both"}],
        "output": {"title": "hello", "picture": "$shot", "other": "$both[1]"},
    }
    steps = [
        {"id": "made", "tool": "workflows:report"},
        {"id": "take", "tool": "up__take", "arguments": {"data": "$made.picture"}},
        {"id": "title", "transform": "$made.title"},
    ]
    async with serving(tmp_path, {"up": (fake := upstream())}, workflows={"report": report}) as served:
        direct = await served.call("workflows__report")
        through = await served.call("call_tool", {"name": "workflows__report"})
        run = await served.call("execute_workflow", {"steps": steps, "return": ["made", "title"]})
    shown = {"title": "hello", "picture": NOTE, "other": "content block 3: image/jpeg, 300 bytes"}
    for result in (direct, through):
        assert result["structuredContent"] == shown
        assert result["content"][1:] == [SMALL, OTHER]
    assert run["structuredContent"]["steps"][0]["result"] == shown
    assert run["structuredContent"]["steps"][2]["result"] == "hello"
    assert run["content"][1:] == [SMALL, OTHER]
    assert fake.calls[-1]["arguments"] == {"data": SMALL["data"]}


async def test_a_step_takes_media_of_another_server_only_as_they_are() -> None:
    structured = {"said": "content block 2: image/png, 7 bytes"}
    assert content_of({"content": [{"type": "text", "text": ""}, SMALL], "structuredContent": structured}).value == {
        "content": [{"type": "text", "text": ""}, SMALL],
        "structuredContent": structured,
    }
