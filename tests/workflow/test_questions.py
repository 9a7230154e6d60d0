"""Steps that ask their user: the question is passed on under the step's name, and nothing finished runs again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

QUESTION = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Which one?",
        "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
    },
}
ANSWER = {"action": "accept", "content": {"name": "Ada"}}


def asking() -> ScriptedServer:
    async def act(ctx: Any, call: dict[str, Any]) -> Any:
        if call["name"] == "plain":
            return {**text_result("plain"), "resultType": "complete"}
        params = ctx.params or {}
        responses = params.get("inputResponses")
        if not responses:
            return {"resultType": "input_required", "inputRequests": {"who": QUESTION}, "requestState": "mine"}
        assert params["requestState"] == "mine"
        return {**text_result(f"hello {responses['who']['content']['name']}"), "resultType": "complete"}

    return ScriptedServer([tool("plain"), tool("ask")], act, modern=True)


async def resumed(
    served: Serving, name: str, arguments: dict[str, Any], first: dict[str, Any], **changes: Any
) -> dict[str, Any]:
    answers = dict.fromkeys(first["inputRequests"], ANSWER)
    params = {"name": name, "arguments": arguments, "inputResponses": answers, "requestState": first["requestState"]}
    return await served.result("tools/call", {**params, **changes})


async def test_a_workflow_goes_on_after_the_answer_without_running_finished_steps_again(tmp_path: Path) -> None:
    fake = asking()
    steps = [
        {"id": "a", "tool": "up__plain"},
        {"id": "b", "tool": "up__ask", "depends_on": ["a"]},
        {"id": "c", "transform": "$b"},
    ]
    async with serving(tmp_path, {"up": fake}) as served:
        first = await served.call("execute_workflow", {"steps": steps})
        assert first["resultType"] == "input_required"
        assert list(first["inputRequests"]) == ["b.who"]
        result = await resumed(served, "execute_workflow", {"steps": steps}, first)
        answer = result["structuredContent"]
        assert [step["result"] for step in answer["steps"]] == ["plain", "hello Ada", "hello Ada"]
        assert [call["name"] for call in fake.calls] == ["plain", "ask", "ask"]
        again = await resumed(served, "execute_workflow", {"steps": steps}, first)
        assert again["structuredContent"]["error"]["code"] == "NOT_FOUND"
        params = {"name": "execute_workflow", "arguments": {"steps": steps}, "requestState": "x" * 32}
        forged = await served.message("tools/call", params)
        assert forged["error"]["data"] == {"reason": "invalid_request_state"}
    assert len(fake.calls) == 3


async def test_slots_of_a_batch_ask_side_by_side_and_only_they_are_called_again(tmp_path: Path) -> None:
    fake = asking()
    arguments = {"calls": [{"name": "up__ask", "id": "x"}, {"name": "up__plain"}, {"name": "up__ask", "id": "y"}]}
    async with serving(tmp_path, {"up": fake}) as served:
        first = await served.call("call_batch", arguments)
        assert sorted(first["inputRequests"]) == ["x.who", "y.who"]
        result = await resumed(served, "call_batch", arguments, first)
    slots = result["structuredContent"]["slots"]
    assert [slot["result"] for slot in slots] == ["hello Ada", "plain", "hello Ada"]
    assert sorted(call["name"] for call in fake.calls) == ["ask", "ask", "ask", "ask", "plain"]


async def test_a_composite_tool_asks_as_an_ordinary_tool_does(tmp_path: Path) -> None:
    workflows = {"greet": {"description": "Greet somebody.", "steps": [{"tool": "up__plain"}, {"tool": "up__ask"}]}}
    fake = asking()
    async with serving(tmp_path, {"up": fake}, workflows=workflows) as served:
        for name, arguments in (("workflows__greet", {}), ("call_tool", {"name": "workflows:greet"})):
            fake.calls.clear()
            first = await served.call(name, arguments)
            assert list(first["inputRequests"]) == ["1.who"]
            result = await resumed(served, name, arguments, first)
            assert result["content"][0]["text"] == "hello Ada"
            assert [call["name"] for call in fake.calls] == ["plain", "ask", "ask"]


async def test_another_client_cannot_answer_and_an_older_one_is_told_why_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_A", "a" * 24)
    monkeypatch.setenv("KEY_B", "b" * 24)
    clients = {"a": {"key": "${env:KEY_A}"}, "b": {"key": "${env:KEY_B}"}}
    mine, theirs = {"Authorization": f"Bearer {'a' * 24}"}, {"Authorization": f"Bearer {'b' * 24}"}
    arguments = {"calls": [{"name": "up__ask"}]}
    fake = asking()
    async with serving(tmp_path, {"up": fake}, clients=clients) as served:
        first = await served.call("call_batch", arguments, headers=mine)
        params = {
            "name": "call_batch",
            "arguments": arguments,
            "inputResponses": {"0.who": ANSWER},
            "requestState": first["requestState"],
        }
        refused = await served.message("tools/call", params, headers=theirs)
        assert refused["error"]["data"] == {"reason": "invalid_request_state"}
        allowed = await served.result("tools/call", params, headers=mine)
        assert allowed["structuredContent"]["slots"][0]["result"] == "hello Ada"
        async with served.handshake(key="a" * 24) as session:
            old = await anyio.to_thread.run_sync(
                lambda: session.result("tools/call", {"name": "call_batch", "arguments": arguments})
            )
        error = old["structuredContent"]["slots"][0]["error"]
        assert error["code"] == "UPSTREAM_ERROR"
        assert "asks its user something" in error["message"]
