"""Whose rights the steps of workflows have: checked for all that a run could reach, before anything is called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.config.findings import Severity
from pml_gateway.reports.workflows import composite_status, workflow_findings
from tests.support.memory import paths_in, settings_for
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving
from tests.workflow.test_questions import resumed

pytestmark = pytest.mark.anyio

KEY = "k" * 24
HEADERS = {"Authorization": f"Bearer {KEY}"}
TEXT = {"text": {"type": "string"}}
STEPS: list[dict[str, Any]] = [
    {"id": "comment", "tool": "tracker:add_comment", "arguments": {"text": "$input.text"}},
    {"id": "file", "tool": "files:write_file", "arguments": {"text": "$input.text"}},
]
NOTE: dict[str, Any] = {
    "description": "Comment on an issue and write it down.",
    "input": {"type": "object", "properties": TEXT, "required": ["text"]},
    "steps": STEPS,
}


def servers() -> dict[str, ScriptedServer]:
    async def act(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        if call["arguments"].get("text") == "fail":
            return {**text_result(f"{call['name']} of files: no space in /secret"), "isError": True}
        return text_result(f"{call['name']}: {json.dumps(call['arguments'])}")

    tools = [tool("add_comment", properties=TEXT), tool("list_issues")]
    return {
        "tracker": ScriptedServer(tools, act),
        "files": ScriptedServer([tool("write_file", properties=TEXT), tool("purge")], act),
    }


def clients(allow: tuple[str, ...] = ("tracker:*", "workflows:*"), deny: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"c": {"key": "${env:KEY}", "allow": list(allow), "deny": list(deny)}}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", KEY)
    monkeypatch.setenv("OTHER", "o" * 24)


def calls_of(fakes: dict[str, ScriptedServer]) -> list[str]:
    return [call["name"] for fake in fakes.values() for call in fake.calls]


async def error_of(served: Serving, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    result = await served.call(name, arguments, headers=HEADERS)
    assert result["isError"] is True, result
    error = result["structuredContent"]["error"]
    assert isinstance(error, dict)
    return error


BRANCHES = [{**STEPS[0]}, {**STEPS[1], "when": "$input.text == 'never'"}]
NESTED = [{**STEPS[0]}, {"tool": "workflows:inner", "arguments": {"text": "$input.text"}}]


@pytest.mark.parametrize("steps", [STEPS, BRANCHES, NESTED], ids=["plain", "a branch", "nested"])
async def test_a_workflow_that_a_client_cannot_run_does_not_exist_for_it(tmp_path: Path, steps: Any) -> None:
    fakes = servers()
    allowed = clients(("*",), ("*:write_*",))
    inner = {**NOTE, "description": "Write it down.", "steps": [STEPS[1]]}
    workflows = {"note": {**NOTE, "steps": steps}, "inner": inner}
    async with serving(tmp_path, fakes, workflows=workflows, clients=allowed) as served:
        assert "workflows__note" not in await served.names("/full_proxy", headers=HEADERS)
        unknown = await error_of(served, "workflows__nothing", {"text": "x"})
        for name, arguments in (
            ("workflows__note", {"text": "x"}),
            ("call_tool", {"name": "workflows:note", "arguments": {"text": "x"}}),
            ("tool_schema", {"names": ["workflows__note"]}),
            ("execute_workflow", {"steps": [STEPS[0] | {"arguments": {}}, {"tool": "workflows:note"}]}),
        ):
            error = await error_of(served, name, arguments)
            assert error["code"] == "NOT_FOUND"
            assert "write" not in json.dumps(error)
        assert unknown["details"]["closest"] == []
        found = await served.call("search_tools", {"query": "comment on an issue and write it down"}, headers=HEADERS)
        assert "workflows" not in json.dumps(found["structuredContent"])
    assert calls_of(fakes) == []


async def test_a_step_that_could_not_be_called_keeps_a_plan_from_beginning(tmp_path: Path) -> None:
    fakes = servers()
    workflows = {
        "broken": {"description": "Uses a tool that is gone.", "steps": [{"tool": "files:gone"}]},
        "outer": {"description": "Uses it.", "steps": [{"tool": "tracker:list_issues"}, {"tool": "workflows:broken"}]},
    }
    first = {"tool": "tracker__add_comment", "arguments": {"text": "x"}}
    async with serving(tmp_path, fakes, workflows=workflows) as served:
        for last in ("workflows:broken", "files:gone"):
            result = await served.call("execute_workflow", {"steps": [first, {"tool": last}]})
            assert result["isError"] is True, last
        result = await served.call("workflows__outer")
        assert result["structuredContent"]["error"]["code"] == "UPSTREAM_UNAVAILABLE"
    assert calls_of(fakes) == []


def asking() -> ScriptedServer:
    async def act(ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        if call["name"] != "ask" or (ctx.params or {}).get("inputResponses"):
            return {**text_result(call["name"]), "resultType": "complete"}
        form = {"mode": "form", "message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}}
        question = {"method": "elicitation/create", "params": form}
        return {"resultType": "input_required", "inputRequests": {"who": question}, "requestState": "mine"}

    return ScriptedServer([tool("ask"), tool("plain"), tool("purge")], act, modern=True)


ASKED = [{"tool": "up__ask"}, {"tool": "up__plain", "depends_on": ["0"]}, {"tool": "up__purge", "depends_on": ["1"]}]


@pytest.mark.parametrize("name", ["execute_workflow", "workflows__asks"])
async def test_what_waited_for_its_user_goes_on_only_with_the_rights_of_then(tmp_path: Path, name: str) -> None:
    fake = asking()
    workflows = {"asks": {"description": "Ask first.", "steps": ASKED}}
    arguments = {"steps": ASKED} if name == "execute_workflow" else {}
    async with serving(tmp_path, {"up": fake}, workflows=workflows) as served:
        first = await served.call(name, arguments)
        gateway = {"blacklisted_tools": ["up:purge"]}
        await served.gateway.updates.apply_settings(settings_for({"up": fake}, workflows=workflows, gateway=gateway))
        result = await resumed(served, name, arguments, first)
        assert result["structuredContent"]["error"]["code"] == "NOT_FOUND"
    assert [call["name"] for call in fake.calls] == ["ask"]


async def test_the_owner_is_told_of_a_workflow_that_no_client_can_call(tmp_path: Path) -> None:
    workflows = {"note": NOTE, "internal": {**NOTE, "hidden": True}}
    fakes = servers()
    for allowed, expected in (
        (clients(), ["no client can call it, for want of files:write_file for c"]),
        (clients(("*",)), []),
        (clients(("tracker:*",)), []),
    ):
        async with serving(tmp_path, fakes, workflows=workflows, clients=allowed) as served:
            told = {row["name"]: row["warnings"] for row in composite_status(served.gateway.state)}
        assert [warning.split(" (")[0] for warning in told["note"]] == expected
        assert told["internal"] == []
    async with serving(tmp_path, fakes, workflows=workflows, gateway={"blacklisted_tools": ["*:write_*"]}) as served:
        told = {row["name"]: row["warnings"] for row in composite_status(served.gateway.state)}
        assert "gateway.blacklisted_tools" in told["note"][0]
        settings = served.gateway.state.settings
        findings = workflow_findings(settings, paths_in(tmp_path), "test")
        assert [(each.severity, each.subject) for each in findings] == [(Severity.WARNING, "workflows.note")]
