"""Workflows of the configuration: ordinary tools, checked against what they use, run with the caller's rights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import serving

pytestmark = pytest.mark.anyio

TRIAGE: dict[str, Any] = {
    "description": "Look at an issue or a bug and say what it is about.",
    "use_cases": ["triage one issue"],
    "input": {
        "type": "object",
        "properties": {"kind": {"enum": ["issue", "bug"]}, "id": {"type": "integer"}, "label": {"type": "string"}},
        "required": ["kind", "id"],
    },
    "steps": [
        {"id": "issue", "tool": "up__issue", "when": {"kind": "issue"}, "arguments": {"id": "$input.id"}},
        {"id": "bug", "tool": "up:bug", "when": "$input.kind == 'bug'", "arguments": {"id": "$input.id"}},
        {"id": "text", "transform": "$issue.title || $bug.title"},
        {
            "id": "note",
            "tool": "up__note",
            "arguments": {"text": "$input.kind: $text", "label": "$input.label"},
            "hidden": True,
        },
    ],
    "output": {"title": "$text", "note": "$note", "id": "$input.id"},
}


def upstream() -> ScriptedServer:
    async def act(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        arguments = call["arguments"]
        if call["name"] == "note":
            return text_result(json.dumps(arguments, sort_keys=True))
        return {"content": [], "structuredContent": {"title": f"{call['name']} {arguments.get('id')}"}}

    by_id = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    return ScriptedServer(
        [
            {**tool("issue"), "inputSchema": by_id},
            {**tool("bug"), "inputSchema": by_id},
            tool("note", properties={"text": {"type": "string"}, "label": {"type": "string"}}),
        ],
        act,
    )


async def test_a_composite_tool_declares_the_gravest_effect_that_a_run_could_have(tmp_path: Path) -> None:
    reads, writes = {"readOnlyHint": True}, {"readOnlyHint": False, "destructiveHint": False}
    hints = {"look": reads, "add": writes, "purge": {"destructiveHint": True}}
    fake = ScriptedServer([*(tool(name, annotations=each) for name, each in hints.items()), tool("plain")])
    uses = {
        "reading": ["up:look"],
        "reading_deeply": ["workflows:reading", "up:look"],
        "writing": ["up:look", "up:add"],
        "unknown": ["up:add", "up:plain"],
        "destroying": ["up:plain", "up:purge"],
        "destroying_deeply": ["workflows:destroying"],
    }
    workflows = {
        name: {"description": "Made up.", "steps": [{"tool": each, "when": "`false`"} for each in steps]}
        for name, steps in uses.items()
    }
    async with serving(tmp_path, {"up": fake}, workflows=workflows) as served:
        tools = (await served.result("tools/list", None, "/full_proxy"))["tools"]
        listed = {each["name"]: each.get("annotations") for each in tools}
    destroys = {"readOnlyHint": False, "destructiveHint": True}
    assert {name: listed[f"workflows__{name}"] for name in uses} == {
        "reading": reads,
        "reading_deeply": reads,
        "writing": writes,
        "unknown": None,
        "destroying": destroys,
        "destroying_deeply": destroys,
    }


async def test_a_composite_tool_is_listed_searched_described_and_routed(tmp_path: Path) -> None:
    fake = upstream()
    async with serving(tmp_path, {"up": fake}, workflows={"triage": TRIAGE}) as served:
        assert "workflows__triage" in await served.names("/full_proxy")
        hits = (await served.call("search_tools", {"query": "triage an issue"}))["structuredContent"]["hits"]
        assert "workflows__triage" in [hit["name"] for hit in hits]
        [described] = (await served.call("tool_schema", {"names": ["triage"]}))["structuredContent"]["tools"]
        assert "- triage one issue" in described["description"]
        for kind in ("issue", "bug"):
            fake.calls.clear()
            result = await served.call("workflows__triage", {"kind": kind, "id": 4})
            note = {"text": f"{kind}: {kind} 4"}
            assert result["structuredContent"] == {"title": f"{kind} 4", "note": note, "id": 4}
            assert [call["name"] for call in fake.calls] == [kind, "note"]
        wrong = await served.call("workflows__triage", {"kind": "else", "id": 4})
        assert wrong["structuredContent"]["error"]["code"] == "INVALID_INPUT"
        steps = [{"id": "t", "tool": "workflows:triage", "arguments": {"kind": "bug", "id": 1}}]
        inside = await served.call("execute_workflow", {"steps": steps})
        assert inside["structuredContent"]["steps"][0]["result"]["title"] == "bug 1"


async def test_internals_are_hidden_from_everything_but_the_composite_and_a_deny_wins(tmp_path: Path) -> None:
    for denied in ((), ("up:note",)):
        gateway = {"blacklisted_tools": list(denied)}
        async with serving(tmp_path, {"up": upstream()}, workflows={"triage": TRIAGE}, gateway=gateway) as served:
            assert "up__note" not in await served.names("/full_proxy")
            for name, arguments in (
                ("up__note", {}),
                ("call_tool", {"name": "up:note"}),
                ("tool_schema", {"names": ["up__note"]}),
            ):
                refused = await served.call(name, arguments)
                assert refused["structuredContent"]["error"]["code"] == "NOT_FOUND", name
            result = await served.call("workflows__triage", {"kind": "bug", "id": 1})
            if denied:
                assert result["isError"] is True
                assert result["structuredContent"]["error"]["code"] == "NOT_FOUND"
            else:
                assert result["structuredContent"]["title"] == "bug 1"


async def test_a_rename_upstream_makes_one_composite_unavailable_by_name_and_the_rest_serves(tmp_path: Path) -> None:
    fake = upstream()
    workflows: dict[str, Any] = {
        "triage": TRIAGE,
        "missing": {"description": "Uses a tool that is gone.", "steps": [{"tool": "up__gone"}]},
        "renamed": {"description": "Uses an old name.", "steps": [{"tool": "up__bug", "arguments": {"owner": 1}}]},
        "circle": {"description": "Calls itself.", "steps": [{"tool": "workflows:circle"}]},
        "broken": {"description": "Has no steps.", "stepz": []},
    }
    async with serving(tmp_path, {"up": fake}, workflows=workflows) as served:
        problems = {name: each.problems for name, each in served.gateway.state.composites.items()}
        assert not problems["triage"]
        assert "there is no tool 'up__gone'" in problems["missing"][0].message
        assert any("'owner' is none of its parameters" in each.message for each in problems["renamed"])
        assert "circle -> circle" in problems["circle"][0].message
        assert {each.path for each in problems["broken"]} == {"/steps", "/stepz"}
        refused = await served.call("call_tool", {"name": "workflows:missing"})
        assert refused["structuredContent"]["error"]["code"] == "UPSTREAM_UNAVAILABLE"
        assert "up__gone" in refused["structuredContent"]["error"]["message"]
        assert (await served.call("workflows__triage", {"kind": "bug", "id": 1}))["isError"] is False
        fake.tools.append(tool("gone"))
        await served.gateway.refresh(30)
        assert "isError" not in await served.call("workflows__missing")


async def test_steps_run_with_the_callers_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "k" * 24)
    clients = {"c": {"key": "${env:KEY}", "allow": ["workflows:*", "up:issue"]}}
    headers = {"Authorization": f"Bearer {'k' * 24}"}
    fake = upstream()
    async with serving(tmp_path, {"up": fake}, workflows={"triage": TRIAGE}, clients=clients) as served:
        assert await served.names("/full_proxy", headers=headers) == ["up__issue"]
        result = await served.call("workflows__triage", {"kind": "issue", "id": 1}, headers=headers)
        assert result["isError"] is True
        assert "bug" not in json.dumps(result["structuredContent"]["error"]["details"].get("closest", []))
    assert fake.calls == []


async def test_the_result_can_be_given_by_reference(tmp_path: Path) -> None:
    workflow = {**TRIAGE, "output_as": "reference"}
    asked = {"kind": "bug", "id": 1}
    async with serving(tmp_path, {"up": upstream()}, workflows={"triage": workflow}) as served:
        small = (await served.call("workflows__triage", asked))["structuredContent"]
        answer = (await served.call("workflows__triage", {**asked, "label": "word " * 500}))["structuredContent"]
        read = await served.call("read_result", {"ref": answer["ref"], "path": "title"})
    assert "bug 1" in read["content"][0]["text"]
    assert small["title"] == "bug 1", "a reference to it would be longer"
