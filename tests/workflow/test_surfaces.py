"""What slots, dry runs and composite tools show of faults, large results and tools their client may not see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import serving

pytestmark = pytest.mark.anyio

BIG = "word " * 8000
BY_ID = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


def upstream() -> ScriptedServer:
    async def act(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        return text_result(BIG if call["name"] == "big" else f"{call['name']} done")

    return ScriptedServer([tool("big"), tool("say"), {**tool("secret_get"), "inputSchema": BY_ID}], act)


async def test_a_dry_run_tells_every_fault_of_a_step_at_once(tmp_path: Path) -> None:
    step = {"id": "x", "tool": "up__sai", "timeout": -1, "argumens": {}}
    async with serving(tmp_path, {"up": upstream()}) as served:
        result = await served.call("execute_workflow", {"steps": [step], "dry_run": True})
    assert result["isError"] is False
    [entry] = result["structuredContent"]["steps"]
    assert {problem["path"] for problem in entry["problems"]} == {
        "/steps/0/argumens",
        "/steps/0/timeout",
        "/steps/0/tool",
    }
    assert all(problem["hint"] for problem in entry["problems"])


async def test_a_call_that_cannot_be_read_fails_its_own_slot_only(tmp_path: Path) -> None:
    calls = [
        {"name": "up__say"},
        {"name": "up__say", "arguments": "no object", "id": "bad"},
        {"arguments": {}},
        {"name": "up__say", "argumens": {}},
        {"name": "search_tools", "arguments": {"query": "say"}},
    ]
    async with serving(tmp_path, {"up": (fake := upstream())}) as served:
        answer = (await served.call("call_batch", {"calls": calls}))["structuredContent"]
    assert [(slot["id"], slot["ok"]) for slot in answer["slots"]] == [
        ("0", True),
        ("bad", False),
        ("2", False),
        ("3", False),
        ("4", False),
    ]
    assert {slot["error"]["code"] for slot in answer["slots"][1:]} == {"INVALID_INPUT"}
    assert "meta-tool" in answer["slots"][4]["error"]["message"]
    assert answer["failed"] == 4
    assert len(fake.calls) == 1


async def test_an_intent_beside_an_empty_list_of_steps_is_an_intent_alone(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": upstream()}) as served:
        answer = (await served.call("execute_workflow", {"intent": "say it", "steps": []}))["structuredContent"]
    assert [each["part"] for each in answer["parts"]] == ["say it"]


async def test_a_composite_tool_answers_its_value_whatever_the_size_of_its_steps(tmp_path: Path) -> None:
    workflows = {
        "last": {"description": "The big one.", "steps": [{"tool": "up__big", "hidden": True}]},
        "kept": {"description": "The big one, kept.", "steps": [{"tool": "up__big"}], "output_as": "reference"},
    }
    async with serving(tmp_path, {"up": upstream()}, workflows=workflows) as served:
        assert (await served.call("workflows__last"))["content"][0]["text"] == BIG
        kept = (await served.call("workflows__kept"))["structuredContent"]
        page = await served.call("read_result", {"ref": kept["ref"]})
        assert page["structuredContent"]["text"].startswith("word word")
        steps = [{"id": "a", "tool": "workflows:last"}]
        inside = (await served.call("execute_workflow", {"steps": steps}))["structuredContent"]["steps"][0]
        page = await served.call("read_result", {"ref": inside["reference"]["ref"]})
        assert page["structuredContent"]["text"].startswith("word word")
    (tmp_path / "off").mkdir()
    off: dict[str, Any] = {"mode": "off"}
    async with serving(tmp_path / "off", {"up": upstream()}, workflows=workflows, references=off) as served:
        assert (await served.call("workflows__kept"))["content"][0]["text"] == BIG


async def test_what_a_composite_tool_cannot_call_stays_unnamed(tmp_path: Path) -> None:
    workflows = {
        "get": {
            "description": "Get one.",
            "input": {"type": "object", "properties": {"id": {}}},
            "steps": [{"id": "it", "tool": "up__secret_get", "hidden": True, "arguments": {"id": "$input.id"}}],
        },
    }
    for denied in ([], ["up:secret_get"]):
        gateway = {"blacklisted_tools": denied}
        async with serving(tmp_path, {"up": upstream()}, workflows=workflows, gateway=gateway) as served:
            result = await served.call("workflows__get", {"id": "text"})
            assert result["isError"] is True
            assert "secret" not in json.dumps(result)
            if not denied:
                assert "/id" in result["structuredContent"]["error"]["message"]


async def test_a_composite_tool_that_reads_an_argument_it_does_not_have_is_unavailable(tmp_path: Path) -> None:
    input_schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    steps = [{"id": "a", "tool": "up__say"}]
    workflows = {
        "ok": {"description": "d", "input": input_schema, "steps": steps, "output": {"x": "$input.id"}},
        "when": {"description": "d", "input": input_schema, "steps": [{**steps[0], "when": {"ids": 1}}]},
        "argument": {
            "description": "d",
            "input": input_schema,
            "steps": [{"tool": "up__secret_get", "arguments": {"id": "$input.idd"}}],
        },
        "output": {"description": "d", "input": input_schema, "steps": steps, "output": "$input.other.x"},
        "item": {"description": "d", "input": input_schema, "steps": steps, "output": "$input.others[0].x"},
    }
    async with serving(tmp_path, {"up": upstream()}, workflows=workflows) as served:
        problems = {name: each.problems for name, each in served.gateway.state.composites.items()}
    assert not problems["ok"]
    for name, missing in (("when", "ids"), ("argument", "idd"), ("output", "other"), ("item", "others")):
        [problem] = problems[name]
        assert problem.message == f"the workflow has no argument {missing!r}", name
        assert "id" in problem.hint


async def test_hidden_and_denied_tools_are_unknown_to_every_meta_tool_that_takes_calls(tmp_path: Path) -> None:
    workflows = {"say": {"description": "Say.", "steps": [{"tool": "up__say", "hidden": True}]}}
    gateway = {"blacklisted_tools": ["up:big"]}
    async with serving(tmp_path, {"up": (fake := upstream())}, workflows=workflows, gateway=gateway) as served:
        for real, other in (("up__say", "up__sey"), ("up__big", "up__bug"), ("up:say", "up:sey")):
            answers = []
            for name in (real, other):
                step = {"id": "x", "tool": name, "arguments": {"a": 1}}
                later = {"id": "y", "tool": "up__secret_get", "arguments": {"id": "$x.id"}}
                requests: list[tuple[str, dict[str, Any]]] = [
                    ("call_batch", {"calls": [{"name": name}]}),
                    ("execute_workflow", {"steps": [step, later]}),
                    ("execute_workflow", {"steps": [step, later], "dry_run": True}),
                ]
                given = [(await served.call(*request))["structuredContent"] for request in requests]
                answers.append(json.dumps(given).replace(name, "NAME"))
            assert answers[0] == answers[1]
            parts = (await served.call("execute_workflow", {"intent": f"call {real}"}))["structuredContent"]["parts"]
            found = {tool["name"] for part in parts for tool in part["tools"]}
            assert found <= {"up__secret_get", "workflows__say"}
    assert fake.calls == []
