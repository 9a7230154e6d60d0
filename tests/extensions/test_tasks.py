"""Tasks of clients in front of servers that have none: the gateway runs them, in the form of either era."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from pml_gateway.gateway.task import GatewayTask
from pml_gateway.gateway.task_records import TaskRecord, TaskRecords
from pml_gateway.policy.principal import LOCAL
from tests.support.asking import asking, asking_after
from tests.support.memory import paths_in, settings_for
from tests.support.raw import decoded, events_modern
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import serving
from tests.support.task_clients import CAPABILITIES, DECLARED, CoreClient, ModernClient, SlowServer, core, slow, soon
from tests.support.task_server import INVALID_PARAMS, NO_CAPABILITY, NOT_FOUND, RELATED, TASKS, Era, TaskServer
from tests.support.waiting import eventually, until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("gateways")]

__all__ = ["slow", "soon"]


async def test_a_client_is_told_of_tasks_in_the_form_of_its_version(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": ScriptedServer([tool("t")])}) as served:
        discovered = (await served.result("server/discover"))["capabilities"]
        async with served.handshake() as session:
            now = session.initialized["capabilities"]
        async with served.handshake(version="2025-06-18") as session:
            before = session.initialized["capabilities"]
            old = await anyio.to_thread.run_sync(lambda: decoded(session.send("tasks/get", {"taskId": "x"})))
    assert now["tasks"] == {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    assert TASKS not in now.get("extensions", {})
    assert discovered["extensions"] == {TASKS: {}}
    assert "tasks" not in discovered
    assert "tasks" not in before
    assert "extensions" not in before
    assert old["error"]["code"] == NOT_FOUND


async def test_a_task_is_created_at_once_and_its_result_waits_for_the_call(tmp_path: Path, slow: SlowServer) -> None:
    up = slow.server()
    async with serving(tmp_path, {"up": up}) as served, core(served) as client:
        task = await client.task("up__slow", number=1)
        assert task["status"] == "working"
        assert task["ttl"] == 3_600_000
        await until(lambda: len(up.calls) == 1)
        assert (await client.result("tasks/get", taskId=task["taskId"]))["status"] == "working"
        results: list[dict[str, Any]] = []

        async def collect() -> None:
            results.append(await client.result("tasks/result", taskId=task["taskId"]))

        async with anyio.create_task_group() as group:
            group.start_soon(collect)
            slow.go.set()
        assert results[0]["content"] == [{"type": "text", "text": "done 1"}]
        assert results[0]["_meta"][RELATED] == {"taskId": task["taskId"]}
        assert (await client.result("tasks/get", taskId=task["taskId"]))["status"] == "completed"
        assert (await client.result("tasks/result", taskId=task["taskId"]))["content"] == results[0]["content"]
        assert [each["taskId"] for each in (await client.result("tasks/list"))["tasks"]] == [task["taskId"]]
    assert len(up.calls) == 1


async def test_a_meta_tool_can_be_a_task_and_the_tool_is_called_by_it(tmp_path: Path, slow: SlowServer) -> None:
    slow.go.set()
    async with serving(tmp_path, {"up": slow.server()}) as served, core(served) as client:
        created = await client.result(
            "tools/call", name="call_tool", arguments={"name": "up__slow", "arguments": {}}, task={}
        )
        result = await client.result("tasks/result", taskId=created["task"]["taskId"])
        assert result["content"] == [{"type": "text", "text": "done"}]


async def test_a_tool_that_fails_is_a_failed_task_with_its_result(tmp_path: Path, slow: SlowServer) -> None:
    async with serving(tmp_path, {"up": slow.server()}) as served, core(served) as client:
        task = await client.task("up__broken")
        await client.until("failed", task["taskId"])
        assert (await client.result("tasks/result", taskId=task["taskId"]))["isError"] is True
        unknown = await client.task("up__nothing")
        await client.until("failed", unknown["taskId"])
        result = await client.result("tasks/result", taskId=unknown["taskId"])
        assert result["structuredContent"]["error"]["code"] == "NOT_FOUND"


async def test_a_cancelled_task_cancels_its_call_and_stays_cancelled(tmp_path: Path, slow: SlowServer) -> None:
    up = slow.server()
    async with serving(tmp_path, {"up": up}) as served, core(served) as client:
        task = await client.task("up__slow")
        await until(lambda: len(up.calls) == 1)
        assert (await client.result("tasks/cancel", taskId=task["taskId"]))["status"] == "cancelled"
        await until(lambda: slow.cancelled == 1)
        assert (await client.result("tasks/get", taskId=task["taskId"]))["status"] == "cancelled"
        assert "error" in await client.message("tasks/result", taskId=task["taskId"])
        again = await client.message("tasks/cancel", taskId=task["taskId"])
        assert again["error"]["code"] == INVALID_PARAMS
    assert len(up.calls) == 1


@pytest.mark.parametrize("modern", [False, True], ids=["of handshake", "of 2026"])
async def test_a_question_of_a_task_is_asked_when_the_client_asks_for_the_result(tmp_path: Path, modern: bool) -> None:
    asked: list[dict[str, Any]] = []

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        asked.append(question)
        return {"action": "accept", "content": {"answer": "Ada"}}

    async with (
        serving(tmp_path, {"up": asking(modern=modern)}) as served,
        core(served, elicitation={"form": {}}) as client,
    ):
        task = await client.task("up__ask", text="Who?")
        await client.until("input_required", task["taskId"])
        assert not asked
        collect = partial(client.session.asked, "tasks/result", {"taskId": task["taskId"]}, answer)
        result = (await anyio.to_thread.run_sync(collect))["result"]
        assert "Ada" in str(result["content"])
        assert [each["params"]["_meta"] for each in asked] == [{RELATED: {"taskId": task["taskId"]}}]
        assert (await client.result("tasks/get", taskId=task["taskId"]))["status"] == "completed"


KEYS = {name: f"{name}-{'x' * 36}" for name in ("ann", "bob")}


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The section of two clients with keys."""
    for name, key in KEYS.items():
        monkeypatch.setenv(f"KEY_OF_{name.upper()}", key)
    return {name: {"key": f"${{env:KEY_OF_{name.upper()}}}"} for name in KEYS}


async def test_unknown_foreign_and_expired_tasks_are_the_same(
    tmp_path: Path, slow: SlowServer, keyed: dict[str, Any]
) -> None:
    async with (
        serving(tmp_path, {"up": slow.server()}, clients=keyed) as served,
        core(served, KEYS["ann"]) as ann,
        core(served, KEYS["bob"]) as bob,
    ):
        foreign = (await ann.task("up__slow"))["taskId"]
        expired = (await bob.task("up__quick", ttl=1))["taskId"]

        async def is_gone() -> bool:
            return not (await bob.result("tasks/list"))["tasks"]

        await eventually(is_gone)
        guessed = foreign[:-1] + ("A" if foreign[-1] != "A" else "B")
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            answers = [(await bob.message(method, taskId=each))["error"] for each in (foreign, expired, guessed, "x")]
            assert answers[0]["code"] == INVALID_PARAMS
            assert all(each == answers[0] for each in answers)
        assert (await ann.result("tasks/get", taskId=foreign))["status"] == "working"
        # The same key over another session is the same client.
        async with core(served, KEYS["ann"]) as again:
            assert (await again.result("tasks/get", taskId=foreign))["status"] == "working"
            assert [each["taskId"] for each in (await again.result("tasks/list"))["tasks"]] == [foreign]


async def test_sessions_without_a_key_do_not_see_the_tasks_of_each_other(tmp_path: Path, slow: SlowServer) -> None:
    async with serving(tmp_path, {"up": slow.server()}) as served, core(served) as one, core(served) as other:
        task = await one.task("up__slow")
        assert (await other.message("tasks/get", taskId=task["taskId"]))["error"]["code"] == INVALID_PARAMS
        assert (await other.result("tasks/list"))["tasks"] == []


async def test_a_list_of_tasks_has_pages(tmp_path: Path, slow: SlowServer) -> None:
    slow.go.set()
    async with serving(tmp_path, {"up": slow.server()}) as served, core(served) as client:
        ids = [(await client.task("up__quick"))["taskId"] for _ in range(101)]
        first = await client.result("tasks/list")
        second = await client.result("tasks/list", cursor=first["nextCursor"])
        assert [each["taskId"] for each in (*first["tasks"], *second["tasks"])] == ids
        assert "nextCursor" not in second
        assert (await client.message("tasks/list", cursor="x"))["error"]["code"] == INVALID_PARAMS


SERVERS = pytest.mark.parametrize("era", ["old", "new"], ids=["to 2025", "to 2026"])
ENDLESS = 10**9
"""Polls of a task that works until the test lets it end."""


@SERVERS
@pytest.mark.parametrize("client_era", ["2025", "2026"])
async def test_the_task_of_a_client_is_one_of_a_server_that_has_tasks(
    tmp_path: Path, era: Era, client_era: str
) -> None:
    up = TaskServer(era)
    async with serving(tmp_path, {"up": up.scripted}) as served, core(served) as old:
        client: CoreClient | ModernClient = old if client_era == "2025" else ModernClient(served)
        asked = {"task": {"ttl": 90_000}} if client_era == "2025" else {}
        created = await client.result("tools/call", name="up__work", arguments={"polls": ENDLESS}, **asked)
        task_id = created.get("task", created)["taskId"]
        await until(lambda: len(up.tasks) == 1)

        async def says_how_far() -> bool:
            return "left" in (await client.result("tasks/get", taskId=task_id)).get("statusMessage", "")

        await eventually(says_how_far)
        [work] = up.tasks.values()
        assert work.ttl == (90_000 if (client_era, era) == ("2025", "old") else work.ttl)
        assert work.id != task_id
        await client.result("tasks/cancel", taskId=task_id)
        await until(lambda: work.status == "cancelled")
        again = await client.result("tools/call", name="up__work", arguments={"polls": ENDLESS}, **asked)
        await until(lambda: len(up.tasks) == 2)
        for work in up.tasks.values():
            work.left = 0
        await client.until("completed", again.get("task", again)["taskId"])
    assert len(up.calls) == 2


@SERVERS
async def test_the_question_of_a_servers_task_is_one_of_the_clients_task(tmp_path: Path, era: Era) -> None:
    up = TaskServer(era)
    answer = {"action": "accept", "content": {"which": "this"}}
    async with (
        serving(tmp_path, {"up": up.scripted}) as served,
        core(served, elicitation={"form": {}}) as old,
    ):
        task_id = (await old.task("up__asks"))["taskId"]
        await old.until("input_required", task_id)
        collect = partial(old.session.asked, "tasks/result", {"taskId": task_id}, lambda _: answer)
        result = (await anyio.to_thread.run_sync(collect))["result"]
        assert "this" in str(result["content"])
        client = ModernClient(served, elicitation={"form": {}})
        task_id = (await client.result("tools/call", name="up__asks", arguments={}))["taskId"]
        [key] = (await client.until("input_required", task_id))["inputRequests"]
        await client.result("tasks/update", taskId=task_id, inputResponses={key: answer})
        assert "this" in str((await client.until("completed", task_id))["result"]["content"])
    assert len(up.calls) == 2


async def test_a_call_that_takes_long_becomes_a_task_for_a_client_with_the_extension(
    tmp_path: Path, slow: SlowServer, request: pytest.FixtureRequest
) -> None:
    up = slow.server()
    async with serving(tmp_path, {"up": up}) as served:
        client = ModernClient(served)
        quick = await client.result("tools/call", name="up__quick", arguments={})
        assert quick["content"] == [{"type": "text", "text": "quick"}]
        request.getfixturevalue("soon")
        task = await client.result("tools/call", name="up__slow", arguments={"number": 2})
        assert task["resultType"] == "task"
        assert task["status"] == "working"
        assert task["ttlMs"] == 3_600_000
        assert (await client.result("tasks/get", taskId=task["taskId"]))["status"] == "working"
        slow.go.set()
        done = await client.until("completed", task["taskId"])
        assert done["resultType"] == "complete"
        assert done["result"]["content"] == [{"type": "text", "text": "done 2"}]
        again = await client.result("tasks/get", taskId=task["taskId"])
        assert again["result"] == done["result"]
    assert [call["name"] for call in up.calls] == ["quick", "slow"]


async def test_clients_without_the_extension_get_no_task(tmp_path: Path, slow: SlowServer, soon: None) -> None:
    async with serving(tmp_path, {"up": slow.server()}) as served, anyio.create_task_group() as group:
        results: list[dict[str, Any]] = []

        async def call() -> None:
            results.append(await served.call("up__slow"))

        group.start_soon(call)
        await anyio.sleep(0.5)  # longer than calls of others take to become tasks
        slow.go.set()
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            message = await served.message(method, {"taskId": "x", "inputResponses": {}})
            assert message["error"]["code"] == NO_CAPABILITY
            assert message["error"]["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    assert results[0]["content"] == [{"type": "text", "text": "done"}]


async def test_methods_and_parameters_of_the_older_version_are_unknown_in_2026(
    tmp_path: Path, slow: SlowServer
) -> None:
    async with serving(tmp_path, {"up": slow.server()}) as served:
        client = ModernClient(served)
        for method in ("tasks/result", "tasks/list", "tasks/other"):
            assert (await client.message(method, taskId="x"))["error"]["code"] == NOT_FOUND
        result = await client.result("tools/call", name="up__quick", arguments={}, task={"ttl": 1})
        assert result["content"] == [{"type": "text", "text": "quick"}]
        async with core(served) as old:
            assert (await old.message("tasks/update", taskId="x", inputResponses={}))["error"]["code"] == NOT_FOUND


async def test_a_cancelled_task_of_2026_cancels_its_call(tmp_path: Path, slow: SlowServer, soon: None) -> None:
    async with serving(tmp_path, {"up": slow.server()}) as served:
        client = ModernClient(served)
        task = await client.result("tools/call", name="up__slow", arguments={})
        acknowledged = await client.result("tasks/cancel", taskId=task["taskId"])
        assert {key: value for key, value in acknowledged.items() if key != "_meta"} == {"resultType": "complete"}
        await until(lambda: slow.cancelled == 1)
        await client.until("cancelled", task["taskId"])
        await client.result("tasks/cancel", taskId=task["taskId"])


async def test_a_tool_that_fails_is_a_completed_task_in_2026(tmp_path: Path, slow: SlowServer, soon: None) -> None:
    async def handler(_ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        await slow.go.wait()
        return {**text_result("no luck"), "isError": True}

    async with serving(tmp_path, {"up": ScriptedServer([tool("late")], handler)}) as served:
        client = ModernClient(served)
        task = await client.result("tools/call", name="up__late", arguments={})
        slow.go.set()
        assert (await client.until("completed", task["taskId"]))["result"]["isError"] is True


@pytest.mark.parametrize("modern", [False, True], ids=["of handshake", "of 2026"])
async def test_a_task_of_2026_shows_its_questions_until_they_are_answered(
    tmp_path: Path, soon: None, modern: bool
) -> None:
    go = anyio.Event()

    up = asking_after(go, modern=modern)
    async with serving(tmp_path, {"up": up}) as served:
        client = ModernClient(served, elicitation={"form": {}})
        task = await client.result("tools/call", name="up__ask", arguments={"text": "Who?"})
        go.set()
        seen = await client.until("input_required", task["taskId"])
        [(key, request)] = seen["inputRequests"].items()
        assert request["method"] == "elicitation/create"
        assert request["params"]["message"] == "Who?"
        assert (await client.result("tasks/get", taskId=task["taskId"]))["inputRequests"] == seen["inputRequests"]
        await client.result("tasks/update", taskId=task["taskId"], inputResponses={"other": {"action": "accept"}})
        answer = {"action": "accept", "content": {"answer": "Ada"}}
        await client.result("tasks/update", taskId=task["taskId"], inputResponses={key: answer})
        done = await client.until("completed", task["taskId"])
        assert done["result"]["content"] == [{"type": "text", "text": "Ada"}]


async def test_a_task_of_2026_is_its_clients_alone(
    tmp_path: Path, slow: SlowServer, soon: None, keyed: dict[str, Any]
) -> None:
    async with serving(tmp_path, {"up": slow.server()}, clients=keyed) as served:
        ann, bob = ModernClient(served, KEYS["ann"]), ModernClient(served, KEYS["bob"])
        task = await ann.result("tools/call", name="up__slow", arguments={})
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            foreign, unknown = [
                (await bob.message(method, taskId=each, inputResponses={}))["error"] for each in (task["taskId"], "x")
            ]
            assert foreign == unknown
            assert foreign["code"] == INVALID_PARAMS
        assert slow.cancelled == 0
        assert (await ann.result("tasks/get", taskId=task["taskId"]))["status"] == "working"


async def test_a_listening_client_of_2026_is_told_of_the_states_of_its_own_tasks(
    tmp_path: Path, slow: SlowServer, soon: None
) -> None:
    async with serving(tmp_path, {"up": slow.server()}) as served:
        client = ModernClient(served)
        task_id = (await client.result("tools/call", name="up__slow", arguments={}))["taskId"]
        wanted = {"taskIds": [task_id, "task_of_somebody_else"]}
        refused = await served.message("subscriptions/listen", {"notifications": wanted})
        assert refused["error"]["code"] == NO_CAPABILITY
        meta = {CAPABILITIES: DECLARED}
        events: list[dict[str, Any]] = []

        def listen() -> None:
            params = {"notifications": wanted, "_meta": meta}
            for message in events_modern(served.url, "subscriptions/listen", params):
                events.append(message)
                if message.get("params", {}).get("status") == "completed":
                    return

        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, listen)
            await until(lambda: len(events) > 1)
            slow.go.set()
        acknowledged, working, done = events
        assert acknowledged["params"]["notifications"] == {"taskIds": [task_id]}
        assert (working["method"], working["params"]["status"]) == ("notifications/tasks", "working")
        assert done["params"]["taskId"] == task_id
        assert done["params"]["result"]["content"] == [{"type": "text", "text": "done"}]


DISK: dict[str, Any] = {"storage": {"results": "disk"}}


@pytest.mark.one_gateway("it restarts one home")
@pytest.mark.parametrize("is_on_disk", [True, False], ids=["results on disk", "results in memory"])
async def test_after_a_restart_tasks_are_interrupted_or_done_and_nothing_runs_twice(
    tmp_path: Path, slow: SlowServer, keyed: dict[str, Any], is_on_disk: bool
) -> None:
    up = slow.server()
    sections = {"clients": keyed, **(DISK if is_on_disk else {})}
    async with serving(tmp_path, {"up": up}, **sections) as served, core(served, KEYS["ann"]) as ann:
        done = (await ann.task("up__quick"))["taskId"]
        await ann.until("completed", done)
        broken = (await ann.task("up__broken"))["taskId"]
        await ann.until("failed", broken)
        working = (await ann.task("up__slow"))["taskId"]
        gone = (await ann.task("up__slow"))["taskId"]
        await ann.result("tasks/cancel", taskId=gone)
        await until(lambda: len(up.calls) >= 3)
    calls = len(up.calls)
    async with (
        serving(tmp_path, {"up": up}, **sections) as served,
        core(served, KEYS["ann"]) as ann,
        core(served, KEYS["bob"]) as bob,
    ):
        listed = {task["taskId"]: task for task in (await ann.result("tasks/list"))["tasks"]}
        assert {each: task["status"] for each, task in listed.items()} == {
            done: "completed",
            broken: "failed",
            working: "failed",
            gone: "cancelled",
        }
        assert "interrupted" in listed[working]["statusMessage"]
        assert "interrupted" in (await ann.message("tasks/result", taskId=working))["error"]["message"]
        modern = ModernClient(served, KEYS["ann"])
        assert "interrupted" in (await modern.result("tasks/get", taskId=working))["error"]["message"]
        read = await ann.message("tasks/result", taskId=done)
        if is_on_disk:
            assert read["result"]["content"] == [{"type": "text", "text": "quick"}]
            assert (await ann.result("tasks/result", taskId=broken))["isError"] is True
        else:
            assert "storage.results" in read["error"]["message"]
        assert (await bob.result("tasks/list"))["tasks"] == []
        assert (await bob.message("tasks/get", taskId=done))["error"]["code"] == INVALID_PARAMS
    assert len(up.calls) == calls


@pytest.mark.one_gateway("it opens two of its own")
async def test_a_gateway_that_runs_keeps_its_tasks_from_another_one(tmp_path: Path, slow: SlowServer) -> None:
    async with serving(tmp_path, {"up": slow.server()}) as one:
        task = GatewayTask(LOCAL, "name", 60)
        await one.runtime.caller.tasks.keep(task)
        records = TaskRecords(paths_in(tmp_path).tasks_dir, "test")
        assert records.read() == []
    assert [(each.id, each.status) for each in records.read()] == [(task.id, "working")]


@pytest.mark.one_gateway("it opens none")
def test_records_of_another_version_keep_nobody_from_the_others(tmp_path: Path) -> None:
    now, name = time.time(), hashlib.sha256(b"test").hexdigest()[:16]
    record = TaskRecord("task_of_before", "owner", "completed", is_error=False, created_at=now, updated_at=now, ttl=60)
    records = [{"later": 1}, {**asdict(record), "later": 1}]
    (tmp_path / f"{name}-of-before.json").write_text(json.dumps(records), encoding="utf-8")
    assert TaskRecords(tmp_path, "test").read() == [record]


async def test_tasks_work_where_nothing_can_be_written(tmp_path: Path, slow: SlowServer) -> None:
    (tmp_path / "tasks").write_text("in the way", encoding="utf-8")
    async with serving(tmp_path, {"up": slow.server()}) as served, core(served) as client:
        task = await client.task("up__quick")
        await client.until("completed", task["taskId"])


@pytest.mark.parametrize("call", [("up__quick", {}), ("call_tool", {"name": "up__quick", "arguments": {}})])
async def test_a_task_is_hidden_with_the_tool_that_it_called(
    tmp_path: Path, slow: SlowServer, keyed: dict[str, Any], call: tuple[str, dict[str, Any]]
) -> None:
    up, (name, arguments) = slow.server(), call
    async with serving(tmp_path, {"up": up}, clients=keyed, **DISK) as served, core(served, KEYS["ann"]) as ann:
        created = await ann.result("tools/call", name=name, arguments=arguments, task={})
        task_id, modern = created["task"]["taskId"], ModernClient(served, KEYS["ann"])
        await ann.until("completed", task_id)
        narrowed = {**keyed, "ann": {**keyed["ann"], "deny": ["up:quick"]}}
        await served.reload(settings_for({"up": up}, clients=narrowed, **DISK))
        for client, method in ((ann, "tasks/get"), (ann, "tasks/result"), (modern, "tasks/get")):
            hidden, unknown = [(await client.message(method, taskId=each))["error"] for each in (task_id, "x")]
            assert hidden == unknown
        assert (await ann.result("tasks/list"))["tasks"] == []
        ref = task_id.replace("task_", "ref_")
        read = await served.call("read_result", {"ref": ref}, key=KEYS["ann"])
        assert read["structuredContent"]["error"]["code"] == "NOT_FOUND"
    async with serving(tmp_path, {"up": up}, clients=narrowed, **DISK) as served, core(served, KEYS["ann"]) as ann:
        assert "error" in await ann.message("tasks/result", taskId=task_id)


@pytest.mark.parametrize("denied", ["up:ask", "call_tool"])
async def test_an_answer_continues_no_call_that_its_client_may_no_longer_make(
    tmp_path: Path, soon: None, keyed: dict[str, Any], denied: str
) -> None:
    go = anyio.Event()

    up = asking_after(go, modern=True)
    async with serving(tmp_path, {"up": up}, clients=keyed) as served:
        client = ModernClient(served, KEYS["ann"], elicitation={"form": {}})
        call = {"name": "up__ask", "arguments": {"text": "Who?"}}
        task_id = (await client.result("tools/call", name="call_tool", arguments=call))["taskId"]
        go.set()
        [key] = (await client.until("input_required", task_id))["inputRequests"]
        narrowed = {**keyed, "ann": {**keyed["ann"], "deny": [denied]}}
        await served.reload(settings_for({"up": up}, clients=narrowed))
        answers = {key: {"action": "accept", "content": {"answer": "Ada"}}}
        answered = await client.message("tasks/update", taskId=task_id, inputResponses=answers)
        if denied == "up:ask":
            assert answered["error"]["code"] == INVALID_PARAMS
        else:
            done = await client.until("completed", task_id)
            assert done["result"]["structuredContent"]["error"]["code"] == "NOT_FOUND"
    assert len(up.calls) == 1
