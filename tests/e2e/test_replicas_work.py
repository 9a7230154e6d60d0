"""Replicas as processes with a real Redis server: what one of them began goes on at another, also if it was killed."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx2
import pytest

from pml_gateway.storage.redis import MAX_PAUSE_SECONDS
from pml_gateway.storage.replicas import EXPIRY_SECONDS
from tests.support import asking, scripted_server
from tests.support.process import GatewayProcess
from tests.support.raw import HandshakeSession, decoded, events_modern, post_modern, result_modern
from tests.support.redis_server import RealRedis
from tests.support.replicas import KEYS, replica_processes
from tests.support.waiting import LIMIT, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

ANNA, BEN = KEYS["anna"], KEYS["ben"]
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
TASKS: dict[str, Any] = {
    CAPABILITIES: {"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
}
ABLE: dict[str, Any] = {CAPABILITIES: {"elicitation": {"form": {}}}}
ANSWER = {"action": "accept", "content": {"answer": "Ada"}}


@contextmanager
def replicas(redis: RealRedis, folder: Path, number: int = 2) -> Iterator[list[GatewayProcess]]:
    def program(module: ModuleType, *arguments: str) -> dict[str, Any]:
        path = {"PYTHONPATH": os.pathsep.join(sys.path)}
        return {"command": sys.executable, "args": [str(module.__file__), *arguments], "env": path}

    servers = {"asks": program(asking, "--modern"), "old": program(asking), "up": program(scripted_server)}
    tools = ("asks__ask", "old__ask", "up__slow")
    with replica_processes(redis.url, folder, number, servers, *tools) as started:
        yield started


def asked(gateway: GatewayProcess, tool: str, arguments: dict[str, Any], **given: Any) -> dict[str, Any]:
    """The result of a call of a stateless client that can be asked."""
    params = {"name": tool, "arguments": arguments, "_meta": ABLE, **given}
    return result_modern(gateway.url, "tools/call", params, key=ANNA)


def answers(question: dict[str, Any]) -> dict[str, Any]:
    """What a client brings back with the same request."""
    return {
        "inputResponses": dict.fromkeys(question["inputRequests"], ANSWER),
        "requestState": question["requestState"],
    }


STEPS = {
    "steps": [
        {"id": "first", "tool": "up__echo", "arguments": {"message": "before"}},
        {"id": "asks", "tool": "asks__ask", "arguments": {"text": "Who?"}, "depends_on": ["first"]},
        {"id": "last", "tool": "up__echo", "arguments": {"message": "$asks"}},
    ]
}


def results(answer: dict[str, Any]) -> list[Any]:
    return [step.get("result") for step in answer["structuredContent"]["steps"]]


def test_questions_are_answered_at_another_replica_also_once_that_which_asked_is_dead(
    redis: RealRedis, tmp_path: Path
) -> None:
    with replicas(redis, tmp_path) as (one, other):
        single = asked(one, "asks__ask", {"text": "Who?"})
        assert single["resultType"] == "input_required"
        assert "Ada" in str(asked(other, "asks__ask", {"text": "Who?"}, **answers(single))["content"])
        prompt = {"name": "asks__ask", "_meta": ABLE}
        first = result_modern(one.url, "prompts/get", prompt, key=ANNA)
        assert "Ada" in str(result_modern(other.url, "prompts/get", {**prompt, **answers(first)}, key=ANNA))
        run = asked(one, "execute_workflow", STEPS)
        assert run["resultType"] == "input_required"
        one.process.kill()
        one.process.wait(LIMIT)
        foreign = {"name": "execute_workflow", "arguments": STEPS, "_meta": ABLE, **answers(run)}
        refused = decoded(post_modern(other.url, "tools/call", foreign, key=BEN))
        assert refused["error"]["data"] == {"reason": "invalid_request_state"}
        assert results(asked(other, "execute_workflow", STEPS, **answers(run))) == ["before", "Ada", "Ada"]
        again = asked(other, "execute_workflow", STEPS, **answers(run))
        assert again["structuredContent"]["error"]["code"] == "NOT_FOUND"


def test_a_run_that_a_killed_replica_went_on_with_goes_on_at_another_and_no_call_is_made_twice(
    redis: RealRedis, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    slow = {"id": "slow", "tool": "up__slow", "arguments": {"seconds": 60, "started": str(started)}}
    steps = {"steps": [*STEPS["steps"][:2], {**slow, "depends_on": ["asks"]}]}
    with replicas(redis, tmp_path) as (one, other):
        run = asked(one, "execute_workflow", steps)
        given = {"name": "execute_workflow", "arguments": steps, "_meta": ABLE, **answers(run)}
        with ThreadPoolExecutor() as threads:
            lost = threads.submit(post_modern, one.url, "tools/call", given, key=ANNA)
            wait_for(started.exists, "the call runs")
            one.process.kill()
            one.process.wait(LIMIT)
            assert isinstance(lost.exception(LIMIT), httpx2.TransportError)
        started.unlink()
        seen: list[dict[str, Any]] = []

        def goes_on() -> bool:
            seen.append(asked(other, "execute_workflow", steps, **answers(run))["structuredContent"])
            return "steps" in seen[-1]

        wait_for(goes_on, "the run goes on", 2 * EXPIRY_SECONDS)
    assert all(each["error"]["retryable"] for each in seen[:-1])
    first, asks, last = seen[-1]["steps"]
    assert (first["result"], asks["status"], last["status"]) == ("before", "error", "skipped")
    assert asks["error"]["details"]["executed"] == "unknown"
    assert not started.exists()


def test_what_waits_in_one_replica_is_answered_there_and_ends_with_it(redis: RealRedis, tmp_path: Path) -> None:
    both = {"steps": [{"tool": "old__ask", "arguments": {"text": "a"}}, {"tool": "asks__ask", "arguments": {}}]}
    with replicas(redis, tmp_path) as (one, other):
        calls = (("old__ask", {"text": "Who?"}), ("execute_workflow", both))
        for name, arguments in calls:
            question = asked(one, name, arguments)
            assert "Ada" in str(asked(other, name, arguments, **answers(question))["content"])
        lost = [(name, arguments, asked(one, name, arguments)) for name, arguments in calls]
        one.process.kill()
        one.process.wait(LIMIT)
        for name, arguments, question in lost:
            params = {"name": name, "arguments": arguments, "_meta": ABLE, **answers(question)}
            said = json.dumps(decoded(post_modern(other.url, "tools/call", params, key=ANNA)))
            assert "NOT_FOUND" in said or "UPSTREAM_UNAVAILABLE" in said


def test_without_redis_work_goes_on_where_it_is_and_is_found_everywhere_once_it_is_back(
    redis: RealRedis, tmp_path: Path
) -> None:
    with (
        replicas(redis, tmp_path) as (one, other),
        HandshakeSession(one.url, key=ANNA) as here,
        HandshakeSession(other.url, key=ANNA) as there,
    ):
        stored, before = asked(one, "execute_workflow", STEPS), begun(here, "up__slow", seconds=120)
        redis.stop()
        try:
            lost = asked(other, "execute_workflow", STEPS, **answers(stored))["structuredContent"]["error"]
            assert lost["retryable"]
            meanwhile = asked(one, "execute_workflow", STEPS)
            assert results(asked(one, "execute_workflow", STEPS, **answers(meanwhile))) == ["before", "Ada", "Ada"]
            held, working = asked(one, "execute_workflow", STEPS), begun(here, "up__slow", seconds=120)
            assert message(here, "tasks/get", taskId=working)["result"]["status"] == "working"
            assert message(there, "tasks/get", taskId=before)["error"]["data"]["retryable"]
            assert "error" in message(there, "tasks/list")
        finally:
            redis.start()

        def states() -> list[str] | None:
            found = message(there, "tasks/list").get("result")
            own = (before, working)
            return None if found is None else [each["status"] for each in found["tasks"] if each["taskId"] in own]

        seen = []

        def is_back() -> bool:
            seen.append(states())
            return seen[-1] == ["working", "working"]

        wait_for(is_back, "the tasks are found again", 4 * MAX_PAUSE_SECONDS)
        assert not any("failed" in each for each in seen if each)
        assert message(there, "tasks/cancel", taskId=working)["result"]["status"] == "cancelled"
        assert results(asked(other, "execute_workflow", STEPS, **answers(held))) == ["before", "Ada", "Ada"]
        # Redis was restarted without what it had.
        gone = asked(other, "execute_workflow", STEPS, **answers(stored))
        assert gone["structuredContent"]["error"]["code"] == "NOT_FOUND"


def test_a_workflow_waits_through_a_restart_of_its_replica(redis: RealRedis, tmp_path: Path) -> None:
    with replicas(redis, tmp_path, 1) as (one,):
        run = asked(one, "execute_workflow", STEPS)
    with replicas(redis, tmp_path, 1) as (again,):
        assert results(asked(again, "execute_workflow", STEPS, **answers(run))) == ["before", "Ada", "Ada"]


def message(session: HandshakeSession, method: str, **params: Any) -> dict[str, Any]:
    return decoded(session.send(method, params))


def begun(session: HandshakeSession, name: str, **arguments: Any) -> str:
    """The id of the task that a call becomes."""
    created = message(session, "tools/call", name=name, arguments=arguments, task={})
    return str(created["result"]["task"]["taskId"])


def test_a_task_is_got_cancelled_answered_and_followed_at_another_replica(redis: RealRedis, tmp_path: Path) -> None:
    able: dict[str, Any] = {"elicitation": {"form": {}}}
    with (
        replicas(redis, tmp_path) as (one, other),
        HandshakeSession(one.url, key=ANNA, capabilities=able) as here,
        HandshakeSession(other.url, key=ANNA, capabilities=able) as there,
        HandshakeSession(other.url, key=BEN) as ben,
    ):
        slow = begun(here, "up__slow", seconds=60)
        assert message(there, "tasks/get", taskId=slow)["result"]["status"] == "working"
        foreign, unknown = (message(ben, "tasks/get", taskId=each)["error"] for each in (slow, "x"))
        assert foreign == unknown
        events: list[dict[str, Any]] = []
        listening = threading.Event()

        def listen() -> None:
            params = {"notifications": {"taskIds": [slow]}, "_meta": TASKS}
            for event in events_modern(other.url, "subscriptions/listen", params, ANNA):
                events.append(event)
                if len(events) > 1:
                    listening.set()
                if event.get("params", {}).get("status") == "cancelled":
                    return

        thread = threading.Thread(target=listen)
        thread.start()
        assert listening.wait(LIMIT)
        assert message(there, "tasks/cancel", taskId=slow)["result"]["status"] == "cancelled"
        thread.join(LIMIT)
        assert [event["params"].get("status") for event in events] == [None, "working", "cancelled"]
        assert message(here, "tasks/get", taskId=slow)["result"]["status"] == "cancelled"
        asking_tasks = [begun(here, tool, text="Who?") for tool in ("asks__ask", "old__ask")]
        for task in asking_tasks:
            ended = there.asked("tasks/result", {"taskId": task}, lambda _: ANSWER)
            assert "Ada" in str(ended["result"]["content"])
        listed = {each["taskId"]: each["status"] for each in message(there, "tasks/list")["result"]["tasks"]}
        assert [listed[each] for each in (slow, *asking_tasks)] == ["cancelled", "completed", "completed"]


def test_tasks_of_a_killed_replica_are_done_or_interrupted(redis: RealRedis, tmp_path: Path) -> None:
    with (
        replicas(redis, tmp_path) as (one, other),
        closing(HandshakeSession(one.url, key=ANNA)) as here,
        HandshakeSession(other.url, key=ANNA) as there,
    ):
        done, working = begun(here, "up__echo", message="hi"), begun(here, "up__slow", seconds=60)
        assert "hi" in str(message(here, "tasks/result", taskId=done)["result"]["content"])
        ended: list[dict[str, Any]] = []
        thread = threading.Thread(target=lambda: ended.append(message(there, "tasks/result", taskId=working)))
        thread.start()
        one.process.kill()
        one.process.wait(LIMIT)

        with HandshakeSession(other.url, key=ANNA) as third:
            wait_for(
                lambda: message(third, "tasks/get", taskId=working)["result"]["status"] == "failed",
                "the task is interrupted",
                3 * EXPIRY_SECONDS,
            )
            states = {each["taskId"]: each for each in message(third, "tasks/list")["result"]["tasks"]}
            assert (states[done]["status"], states[working]["status"]) == ("completed", "failed")
            assert "interrupted" in states[working]["statusMessage"]
            assert "hi" in str(message(third, "tasks/result", taskId=done)["result"]["content"])
            assert message(third, "tasks/cancel", taskId=working)["error"]["code"] == -32602
        thread.join(3 * EXPIRY_SECONDS)
        assert "interrupted" in ended[0]["error"]["message"]
        modern = {"taskId": done, "_meta": TASKS}
        assert "hi" in str(result_modern(other.url, "tasks/get", modern, key=ANNA)["result"])
