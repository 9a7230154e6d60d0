"""Batches and workflows through the served gateway: what is called, what is answered, in both protocol eras."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client

from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import serving

pytestmark = pytest.mark.anyio

ID = {"id": {"type": "integer"}}
LISTING = {"items": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}], "total": 2}


def structured(value: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": "see structured content"}], "structuredContent": value}


async def answer(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
    match call["name"]:
        case "list":
            return structured(LISTING)
        case "get":
            return structured({"id": call["arguments"]["id"], "title": f"title {call['arguments']['id']}"})
        case "fail":
            return {"content": [{"type": "text", "text": "line one\nline two"}], "isError": True}
        case _:
            return text_result(str(call["arguments"].get("text", "")))


def upstream() -> ScriptedServer:
    return ScriptedServer(
        [
            tool("list", annotations={"readOnlyHint": True}),
            {
                **tool("get", annotations={"readOnlyHint": True}),
                "inputSchema": {"type": "object", "properties": ID, "required": ["id"]},
            },
            tool("say", properties={"text": {"type": "string"}}),
            tool("fail"),
        ],
        answer,
    )


async def test_a_batch_answers_every_call_in_its_own_slot(tmp_path: Path) -> None:
    calls = [
        {"name": "up__get", "arguments": {"id": 7}, "id": "first"},
        {"name": "up__fail"},
        {"name": "up__nothing"},
        {"name": "up__get", "arguments": {"id": "seven"}},
        {"name": "up__say", "arguments": {"text": "$9.title"}},
        {"name": "up__say", "arguments": {"text": "$first.title"}},
    ]
    async with serving(tmp_path, {"up": (fake := upstream())}) as served:
        for name in ("call_batch", "batch"):
            fake.calls.clear()
            result = await served.call(name, {"calls": calls})
            slots = result["structuredContent"]["slots"]
            assert [slot["id"] for slot in slots] == ["first", "1", "2", "3", "4", "5"]
            assert [slot["ok"] for slot in slots] == [True, False, False, False, True, False]
            assert slots[0]["result"] == {"id": 7, "title": "title 7"}
            assert slots[1]["error"]["message"] == "line one\nline two"
            assert slots[2]["error"]["code"] == "NOT_FOUND"
            assert "up__get(id: int)" in slots[3]["error"]["hint"]
            assert slots[4]["result"] == "$9.title"
            assert "execute_workflow" in slots[5]["error"]["hint"]
            assert result["isError"] is False
            assert sorted(call["name"] for call in fake.calls) == ["fail", "get", "say"]


async def test_a_batch_over_the_cap_is_refused_before_any_call(tmp_path: Path) -> None:
    fake = upstream()
    async with serving(tmp_path, {"up": fake}, workflow={"max_steps": 3}) as served:
        result = await served.call("call_batch", {"calls": [{"name": "up__list"}] * 4})
    error = result["structuredContent"]["error"]
    assert (result["isError"], error["code"]) == (True, "BUDGET_EXCEEDED")
    assert "workflow.max_steps" in error["message"]
    assert fake.calls == []


async def test_a_workflow_passes_results_on_and_reads_identical_ones_once(tmp_path: Path) -> None:
    steps = [
        {"id": "all", "tool": "up__list"},
        {"id": "again", "tool": "up:list"},
        {"id": "each", "tool": "up__get", "for_each": "$all.items", "arguments": {"id": "$item.id"}},
        {"id": "titles", "transform": "$each[*].title"},
        {"id": "say", "tool": "up__say", "arguments": {"text": "$titles[0] and $$5, of $all.total"}},
    ]
    async with serving(tmp_path, {"up": (fake := upstream())}) as served:
        result = await served.call("execute_workflow", {"steps": steps, "return": ["titles", "say"]})
        answer = result["structuredContent"]
    assert (result["isError"], answer["status"]) == (False, "completed")
    assert [step["status"] for step in answer["steps"]] == ["ok"] * 5
    assert [step["id"] for step in answer["steps"] if "result" in step] == ["titles", "say"]
    assert answer["steps"][3]["result"] == ["title 1", "title 2"]
    assert answer["steps"][4]["result"] == "title 1 and $5, of 2"
    assert [call["name"] for call in fake.calls] == ["list", "get", "get", "say"]


async def test_a_failed_step_blocks_what_needs_it_and_nothing_else(tmp_path: Path) -> None:
    steps = [
        {"id": "a", "tool": "up__fail"},
        {"id": "b", "tool": "up__say", "arguments": {"text": "$a.x"}},
        {"id": "c", "tool": "up__say", "depends_on": ["b"]},
        {"id": "d", "tool": "up__list"},
    ]
    async with serving(tmp_path, {"up": upstream()}) as served:
        answer = (await served.call("execute_workflow", {"steps": steps}))["structuredContent"]
        assert answer["status"] == "partial"
        assert [(step["status"], step.get("blocked_by")) for step in answer["steps"]] == [
            ("error", None),
            ("skipped", ["a"]),
            ("skipped", ["a"]),
            ("ok", None),
        ]
        failed = await served.call("execute_workflow", {"steps": steps[:3]})
        assert (failed["isError"], failed["structuredContent"]["status"]) == (True, "failed")
        assert failed["structuredContent"]["error"]["message"].startswith("step 'a': line one\nline two")


async def test_bad_plans_are_refused_with_every_problem_before_any_call(tmp_path: Path) -> None:
    steps = [
        {"id": "a", "tool": "up__list"},
        {"id": "b", "tool": "up__gett", "arguments": {"id": "$a.items[0].id"}},
        {"id": "c", "tool": "up__get", "arguments": {"id": "seven"}},
        {"id": "d", "tool": "up__get", "arguments": {"idd": "$a.total"}},
        {"id": "e", "tool": "up__get", "arguments": {"id": "$nobody.x"}},
        {"id": "f", "tool": "call_tool"},
    ]
    async with serving(tmp_path, {"up": (fake := upstream())}) as served:
        result = await served.call("execute_workflow", {"steps": steps})
        dry = (await served.call("execute_workflow", {"steps": steps, "dry_run": True}))["structuredContent"]
    assert result["isError"] is True
    errors = result["structuredContent"]["error"]["details"]["errors"]
    assert {error["step"] for error in errors} == {"b", "c", "d", "e", "f"}
    assert dry["valid"] is False
    assert [step["ok"] for step in dry["steps"]] == [True, False, False, False, False, False]
    assert "up__get" in dry["steps"][1]["problems"][0]["hint"]
    assert "'id' is a required property" in dry["steps"][3]["problems"][0]["message"]
    assert fake.calls == []


async def test_progress_is_told_per_step_and_cancelling_ends_the_running_ones(tmp_path: Path) -> None:
    started, cancelled = anyio.Event(), anyio.Event()

    async def slow(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        if call["name"] != "wait":
            return text_result("done")
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()
        raise AssertionError

    quick = [{"id": "a", "tool": "up__go"}, {"id": "b", "tool": "up__go", "depends_on": "a"}]
    async with serving(tmp_path, {"up": ScriptedServer([tool("go"), tool("wait")], slow)}) as served:
        for mode in ("legacy", "auto"):
            seen: list[tuple[float, float | None, str | None]] = []

            async def note(progress: float, total: float | None, message: str | None) -> None:
                seen.append((progress, total, message))  # noqa: B023

            started, cancelled = anyio.Event(), anyio.Event()
            async with Client(served.url, mode=mode) as client:
                await client.call_tool("execute_workflow", {"steps": quick}, progress_callback=note)
                assert seen == [(1, 2, "a: ok"), (2, 2, "b: ok")], mode
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(client.call_tool, "execute_workflow", {"steps": [{"tool": "up__wait"}]})
                    with anyio.fail_after(30):
                        await started.wait()
                    tasks.cancel_scope.cancel()
            with anyio.fail_after(30):
                await cancelled.wait()


async def test_an_intent_alone_gets_tools_and_calls_none(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": (fake := upstream())}) as served:
        answer = (await served.call("execute_workflow", {"intent": "get one thing by its id"}))["structuredContent"]
    [part] = answer["parts"]
    assert part["part"] == "get one thing by its id"
    assert "up__get" in [tool["name"] for tool in part["tools"]]
    assert fake.calls == []


async def test_a_denied_tool_is_as_unknown_to_steps_and_slots_as_one_that_does_not_exist(tmp_path: Path) -> None:
    gateway = {"blacklisted_tools": ["up:say"]}
    async with serving(tmp_path, {"up": (fake := upstream())}, gateway=gateway) as served:
        answers = []
        for name in ("up__say", "up__sax"):
            batch = await served.call("call_batch", {"calls": [{"name": name}]})
            steps = await served.call("execute_workflow", {"steps": [{"tool": name}]})
            answers.append(json.dumps([batch["structuredContent"], steps["structuredContent"]]).replace(name, "NAME"))
    assert answers[0] == answers[1]
    assert "NOT_FOUND" in answers[0]
    assert fake.calls == []
