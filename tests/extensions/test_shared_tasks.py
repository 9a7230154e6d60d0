"""Tasks at gateways that share a Redis server: one gateway runs a task, and its client finds it at all of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from redis.exceptions import ResponseError

from pml_gateway.errors import SharedStateError
from pml_gateway.gateway import handles, shared_tasks
from pml_gateway.gateway.task import GatewayTask, replica_of
from pml_gateway.policy.principal import LOCAL
from pml_gateway.storage.change_feed import ChangeFeed
from pml_gateway.storage.redis import PREFIX, RedisValues
from pml_gateway.storage.redis_owned import OwnedValues
from tests.extensions.test_handles import let_end
from tests.extensions.test_tasks import (
    CAPABILITIES,
    DECLARED,
    INVALID_PARAMS,
    CoreClient,
    ModernClient,
    SlowServer,
    core,
    slow,
    soon,
)
from tests.storage.test_redis import opened
from tests.support.asking import asking, asking_after, question_of
from tests.support.raw import events_modern, modern, post_modern
from tests.support.redis_server import losing_answers
from tests.support.replicas import KEYS, bearer, replicas, shared_sections, written
from tests.support.scripted_server import ScriptedServer, text_result
from tests.support.serving import Serving, serving
from tests.support.task_server import TaskServer
from tests.support.waiting import eventually, until

pytestmark = pytest.mark.anyio

__all__ = ["shared_sections", "slow", "soon"]

ANNA, BEN = KEYS["anna"], KEYS["ben"]
ANSWER = {"action": "accept", "content": {"answer": "Ada"}}


@asynccontextmanager
async def two(
    folder: Path, up: ScriptedServer, sections: dict[str, Any]
) -> AsyncIterator[tuple[Serving, Serving, CoreClient, CoreClient]]:
    """Two gateways, and a session of anna at each."""
    async with replicas(folder, {"up": up}, **sections) as (one, other):
        able: dict[str, Any] = {"elicitation": {"form": {}}}
        async with core(one, ANNA, **able) as here, core(other, ANNA, **able) as there:
            yield one, other, here, there


@asynccontextmanager
async def told(client: CoreClient) -> AsyncIterator[list[dict[str, Any]]]:
    """What a session is told of the states of tasks."""
    states: list[dict[str, Any]] = []
    headers = {**client.session.headers, "accept": "text/event-stream"}
    async with (
        httpx2.AsyncClient(timeout=60) as http,
        http.stream("GET", client.session.url, headers=headers) as it,
        anyio.create_task_group() as group,
    ):

        async def listen() -> None:
            async for line in it.aiter_lines():
                message = json.loads(line[6:]) if line.startswith("data: {") else {}
                if message.get("method") == "notifications/tasks/status":
                    states.append(message["params"])

        group.start_soon(listen)
        yield states
        group.cancel_scope.cancel()


async def test_a_task_is_found_at_another_gateway_until_its_end(
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any]
) -> None:
    async with two(tmp_path, slow.server(), shared_sections) as (one, other, here, there):
        task_id = (await here.task("up__slow", number=1))["taskId"]
        assert one.gateway.replicas is not None
        assert replica_of(task_id) == one.gateway.replicas.own.id
        assert (await there.result("tasks/get", taskId=task_id))["status"] == "working"
        second = (await there.task("up__quick"))["taskId"]
        for client in (here, there):
            listed = [each["taskId"] for each in (await client.result("tasks/list"))["tasks"]]
            assert listed == [task_id, second]
        results: list[dict[str, Any]] = []

        async def collect() -> None:
            results.append(await there.result("tasks/result", taskId=task_id))

        async with anyio.create_task_group() as group:
            group.start_soon(collect)
            slow.go.set()
        assert results[0]["content"] == [{"type": "text", "text": "done 1"}]
        modern = await ModernClient(other, ANNA).result("tasks/get", taskId=task_id)
        assert modern["result"]["content"] == results[0]["content"]


async def test_of_the_states_of_a_task_its_client_is_told_in_the_session_that_asked_last(
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any]
) -> None:
    ids = list[str]()
    async with (
        two(tmp_path, slow.server(), shared_sections) as (_, other, here, there),
        core(other, ANNA) as later,
        told(here) as at_own,
        told(there) as at_other,
        told(later) as at_later,
    ):
        for sessions in ([], [there], [there, later, later], [there, here]):
            ids.append((await here.task("up__slow"))["taskId"])
            for session in sessions:
                assert (await session.result("tasks/get", taskId=ids[-1]))["status"] == "working"
        redis = other.gateway.redis
        assert redis is not None
        records = OwnedValues(redis, "tasks", 9, 9)

        async def are_passed_on() -> bool:
            found = [await RedisValues(redis).get(records.digest(each), collection="tasks") for each in ids[1:3]]
            return all(each is not None and each["notified_since"] > each["task"]["created_at"] for each in found)

        await eventually(are_passed_on)
        slow.go.set()
        everywhere = (at_own, at_other, at_later)
        await until(lambda: sum(map(len, everywhere)) >= 4)
        own, other_, later_, back = ids
        found = [{each["taskId"] for each in states} for states in everywhere]
        assert found == [{own, back}, {other_}, {later_}]
        seen = await here.result("tasks/get", taskId=other_)
    assert at_other == [seen]
    assert seen["status"] == "completed"


async def test_a_session_is_told_of_questions_and_the_end_of_a_task_at_another_gateway_as_at_its_own(
    tmp_path: Path, shared_sections: dict[str, Any]
) -> None:
    go = anyio.Event()

    up = asking_after(go, modern=True)
    async with two(tmp_path, up, shared_sections) as (_, _, here, there), told(here) as at_own, told(there) as at_other:
        [own, other] = [(await here.task("up__ask", text="Who?"))["taskId"] for _ in range(2)]
        assert (await there.result("tasks/get", taskId=other))["status"] == "working"
        go.set()
        for session, states, task_id in ((here, at_own, own), (there, at_other, other)):
            await until(lambda states=states: bool(states))
            collect = partial(session.session.asked, "tasks/result", {"taskId": task_id}, lambda _: ANSWER)
            await anyio.to_thread.run_sync(collect)
            await until(lambda states=states: states[-1]["status"] == "completed")
    shown = [
        [(each["status"], [*each]) for each in states if each["taskId"] == task_id]
        for states, task_id in ((at_own, own), (at_other, other))
    ]
    assert shown[0] == shown[1]
    assert [status for status, _ in shown[0]] == ["input_required", "completed"]


async def test_a_task_is_cancelled_from_another_gateway(
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any], soon: None
) -> None:
    up = slow.server()
    async with two(tmp_path, up, shared_sections) as (one, other, here, there):
        task_id = (await here.task("up__slow"))["taskId"]
        await until(lambda: len(up.calls) == 1)
        assert (await there.result("tasks/cancel", taskId=task_id))["status"] == "cancelled"
        await until(lambda: slow.cancelled == 1)
        again = await there.message("tasks/cancel", taskId=task_id)
        assert again["error"]["code"] == INVALID_PARAMS
        at_one, at_other = ModernClient(one, ANNA), ModernClient(other, ANNA)
        task_id = (await at_one.result("tools/call", name="up__slow", arguments={}))["taskId"]
        await at_other.result("tasks/cancel", taskId=task_id)
        await until(lambda: slow.cancelled == 2)
        assert (await at_one.result("tasks/get", taskId=task_id))["status"] == "cancelled"


async def test_a_task_of_which_redis_refuses_something_keeps_no_other_one_back(
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any], soon: None
) -> None:
    async with two(tmp_path, slow.server(), shared_sections) as (one, _, here, there):
        other, refused = [(await here.task("up__slow"))["taskId"] for _ in range(2)]
        redis = one.gateway.redis
        assert redis is not None
        digest = OwnedValues(redis, "tasks", 9, 9).digest(refused)
        await redis.run(lambda client: client.lpush(f"{PREFIX}:task-commands:{digest}", "no commands"))
        await ChangeFeed(redis).publish("task-commands", digest)
        # The other gateway wants to tell this client from now on, which it cannot say.
        assert (await there.result("tasks/get", taskId=refused))["status"] == "working"
        assert (await there.result("tasks/cancel", taskId=other))["status"] == "cancelled"
        await until(lambda: slow.cancelled == 1)
        slow.go.set()


async def test_a_client_that_is_slow_to_hear_of_its_cancelled_task_holds_up_nobody(
    tmp_path: Path, shared_sections: dict[str, Any]
) -> None:
    heard, ended = anyio.Event(), list[str]()

    async def notify(_: GatewayTask) -> None:
        await heard.wait()

    async def work(task: GatewayTask) -> dict[str, Any]:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(task.id)
        raise AssertionError("it sleeps")

    async with replicas(tmp_path, {"up": asking()}, **shared_sections) as (one, other):
        here, there, made = one.runtime.caller.tasks, other.runtime.caller.tasks, list[str]()
        for _ in range(3):
            task = here.new(LOCAL, "name")
            task.notify = notify
            await here.keep(task)
            here.start(task, work)
            await there.cancel(await there.find(LOCAL, task.id))
            made.append(task.id)
            await until(lambda: ended == made)
        heard.set()


@pytest.mark.parametrize("modern", [False, True], ids=["of handshake", "of 2026"])
async def test_questions_of_a_task_are_answered_at_another_gateway(
    tmp_path: Path, shared_sections: dict[str, Any], soon: None, modern: bool
) -> None:
    go, asked = anyio.Event(), list[dict[str, Any]]()

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        asked.append(question)
        return ANSWER

    up = asking_after(go, modern=modern)
    async with two(tmp_path, up, shared_sections) as (one, other, here, there):
        able: dict[str, Any] = {"elicitation": {"form": {}}}
        at_one, at_other = ModernClient(one, ANNA, **able), ModernClient(other, ANNA, **able)
        stateless = (await at_one.result("tools/call", name="up__ask", arguments={"text": "Who?"}))["taskId"]
        go.set()
        [key] = (await at_other.until("input_required", stateless))["inputRequests"]
        await at_other.result("tasks/update", taskId=stateless, inputResponses={key: ANSWER, "other": ANSWER})
        assert "Ada" in str((await at_other.until("completed", stateless))["result"]["content"])
        in_session = (await here.task("up__ask", text="Who?"))["taskId"]
        collect = partial(there.session.asked, "tasks/result", {"taskId": in_session}, answer)
        result = (await anyio.to_thread.run_sync(collect))["result"]
    assert "Ada" in str(result["content"])
    assert [each["params"]["message"] for each in asked] == ["Who?"]


async def test_a_question_is_answered_at_another_gateway_though_answers_of_redis_about_it_are_lost(
    tmp_path: Path, shared_sections: dict[str, Any], soon: None, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = anyio.Event()

    up = asking_after(go, modern=True)
    async with losing_answers(redis_url, b":task-commands:") as url:
        monkeypatch.setenv("REDIS", url)
        async with two(tmp_path, up, shared_sections) as (one, other, _, _):
            able: dict[str, Any] = {"elicitation": {"form": {}}}
            at_one, at_other = ModernClient(one, ANNA, **able), ModernClient(other, ANNA, **able)
            task_id = (await at_one.result("tools/call", name="up__ask", arguments={"text": "Who?"}))["taskId"]
            go.set()
            [key] = (await at_other.until("input_required", task_id))["inputRequests"]
            await at_other.result("tasks/update", taskId=task_id, inputResponses={key: ANSWER})
            assert "Ada" in str((await at_other.until("completed", task_id))["result"]["content"])


async def test_a_question_that_was_answered_is_shown_nowhere_any_longer(
    tmp_path: Path, shared_sections: dict[str, Any], soon: None
) -> None:
    go = anyio.Event()

    async def two_questions(ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        if (ctx.params or {}).get("inputResponses"):
            return text_result("both")
        await go.wait()
        requests = {text: question_of("ask", text) for text in ("Who?", "Why?")}
        return {"resultType": "input_required", "inputRequests": requests, "requestState": "s"}

    up = asking(modern=True)
    up.handler = two_questions
    async with two(tmp_path, up, shared_sections) as (one, other, _, _):
        able: dict[str, Any] = {"elicitation": {"form": {}}}
        at_one, at_other = ModernClient(one, ANNA, **able), ModernClient(other, ANNA, **able)
        task_id = (await at_one.result("tools/call", name="up__ask", arguments={"text": "?"}))["taskId"]
        go.set()
        first, second = (await at_other.until("input_required", task_id))["inputRequests"]
        await at_other.result("tasks/update", taskId=task_id, inputResponses={first: ANSWER})
        for client in (at_other, at_one):
            assert [*(await client.result("tasks/get", taskId=task_id))["inputRequests"]] == [second]
        await at_other.result("tasks/update", taskId=task_id, inputResponses={second: ANSWER})
        assert "both" in str((await at_other.until("completed", task_id))["result"]["content"])


async def test_what_a_client_has_seen_at_one_gateway_the_other_knows(
    tmp_path: Path, shared_sections: dict[str, Any], soon: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is written in the background.
    monkeypatch.setattr(shared_tasks, "COALESCE_SECONDS", 3600.0)
    go = anyio.Event()

    up = asking_after(go, modern=False)
    async with two(tmp_path, up, shared_sections) as (one, other, _, _):
        able: dict[str, Any] = {"elicitation": {"form": {}}}
        at_one, at_other = ModernClient(one, ANNA, **able), ModernClient(other, ANNA, **able)
        task_id = (await at_one.result("tools/call", name="up__ask", arguments={"text": "Who?"}))["taskId"]
        go.set()
        seen = await at_one.until("input_required", task_id)
        assert (await at_other.result("tasks/get", taskId=task_id))["inputRequests"] == seen["inputRequests"]


async def test_after_a_failure_of_redis_a_task_without_a_record_may_exist(
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any]
) -> None:
    async def refuse(_: object) -> None:
        raise ResponseError("OOM command not allowed when used memory > 'maxmemory'")

    async with two(tmp_path, slow.server(), shared_sections) as (one, other, _, _):
        assert one.gateway.replicas is not None
        assert other.gateway.redis is not None
        params = {"taskId": f"task_{one.gateway.replicas.own.id}-unknown"}
        unknown = await ModernClient(other, ANNA).message("tasks/get", **params)
        with pytest.raises(SharedStateError):
            await other.gateway.redis.run(refuse)
        unsure = await ModernClient(other, ANNA).message("tasks/get", **params)
    assert unknown["error"]["code"] == INVALID_PARAMS
    assert unsure["error"]["code"] != INVALID_PARAMS
    assert unsure["error"]["data"]["retryable"] is True


async def test_a_call_that_takes_long_becomes_a_task_once_redis_is_back(
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: object) -> None:
        raise ConnectionError

    # Before the pause is over that the gateway makes after a failure.
    monkeypatch.setattr("pml_gateway.serve.tasks.PROMOTE_SECONDS", 0.02)
    async with replicas(tmp_path, {"up": slow.server()}, **shared_sections) as (one, other):
        assert one.gateway.redis is not None
        with pytest.raises(SharedStateError):
            await one.gateway.redis.run(fail)
        with anyio.fail_after(15):
            task_id = (await ModernClient(one, ANNA).result("tools/call", name="up__slow", arguments={}))["taskId"]
        assert (await ModernClient(other, ANNA).result("tasks/get", taskId=task_id))["status"] == "working"
        slow.go.set()


async def test_a_call_ends_with_a_request_that_was_not_told_its_task(
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = 0

    async def refuse(*_: object) -> None:
        nonlocal refused
        refused += 1
        raise SharedStateError("the Redis server of storage.url failed: no connection")

    monkeypatch.setattr("pml_gateway.serve.tasks.PROMOTE_SECONDS", 0.02)
    up = slow.server()
    async with replicas(tmp_path, {"up": up}, 1, **shared_sections) as (one,):
        monkeypatch.setattr(OwnedValues, "put", refuse)
        body, headers = modern(
            "tools/call", {"name": "up__slow", "arguments": {}, "_meta": {CAPABILITIES: DECLARED}}, ANNA
        )
        async with anyio.create_task_group() as group, httpx2.AsyncClient(timeout=30) as client:
            group.start_soon(partial(client.post, one.url, content=body, headers=headers))
            await until(lambda: refused > 0)
            group.cancel_scope.cancel()
        await until(lambda: slow.cancelled == 1)


async def test_a_stream_at_another_gateway_tells_of_each_state(
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any], soon: None
) -> None:
    async with two(tmp_path, slow.server(), shared_sections) as (one, other, _, _):
        task_id = (await ModernClient(one, ANNA).result("tools/call", name="up__slow", arguments={}))["taskId"]
        events: list[dict[str, Any]] = []
        wanted = {"taskIds": [task_id, "task_of_somebody_else"]}

        def listen() -> None:
            params = {"notifications": wanted, "_meta": {CAPABILITIES: DECLARED}}
            for message in events_modern(other.url, "subscriptions/listen", params, ANNA):
                events.append(message)
                if message.get("params", {}).get("status") == "completed":
                    return

        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, listen)
            await until(lambda: len(events) > 1)
            slow.go.set()
    acknowledged, working, done = events
    assert acknowledged["params"]["notifications"] == {"taskIds": [task_id]}
    assert working["params"]["status"] == "working"
    assert done["params"]["result"]["content"] == [{"type": "text", "text": "done"}]


async def test_a_handle_is_read_at_another_gateway_while_its_call_runs(
    tmp_path: Path, shared_sections: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    up = TaskServer("old")
    sections = {**shared_sections, "upstreams": {"call_timeout": 1}}
    async with replicas(tmp_path, {"up": up.scripted}, **sections) as (one, other):
        call = {"name": "up__only", "arguments": {"polls": 10**9}}
        given = (await one.call("call_tool", call, headers=bearer("anna")))["structuredContent"]
        assert replica_of(given["ref"]) is not None
        monkeypatch.setattr(handles, "READ_SECONDS", 0.1)
        running = (await other.call("read_result", {"ref": given["ref"]}, headers=bearer("anna")))["structuredContent"]
        assert running["status"] == "working"
        foreign = (await other.call("read_result", {"ref": given["ref"]}, headers=bearer("ben")))["structuredContent"]
        assert foreign["error"]["code"] == "NOT_FOUND"
        monkeypatch.undo()
        monkeypatch.setattr(handles, "READ_SECONDS", 30)
        read: list[Any] = []

        async def wait() -> None:
            result = await other.call("read_result", {"ref": given["ref"]}, headers=bearer("anna"))
            read.append(result["structuredContent"])

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            let_end(up)
        assert read[0]["text"] == "only"


async def test_a_stream_at_another_gateway_tells_of_each_state_though_news_are_lost(
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any], soon: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_tasks, "REFRESH_SECONDS", 0.1)
    states = list[str]()
    async with two(tmp_path, slow.server(), shared_sections) as (one, other, _, _):
        task_id = (await ModernClient(one, ANNA).result("tools/call", name="up__slow", arguments={}))["taskId"]
        redis = one.gateway.redis
        assert redis is not None
        digest = OwnedValues(redis, "tasks", 9, 9).digest(task_id)

        def listen() -> None:
            params = {"notifications": {"taskIds": [task_id]}, "_meta": {CAPABILITIES: DECLARED}}
            for message in events_modern(other.url, "subscriptions/listen", params, ANNA):
                states.extend(filter(None, [message.get("params", {}).get("status")]))
                if states[-1:] == ["cancelled"]:
                    return

        async def become(state: str) -> None:
            """Write a state as its own gateway does, and do not publish it."""

            def changed(record: dict[str, Any] | None) -> dict[str, Any]:
                assert record is not None
                return {**record, "task": {**record["task"], "status": state}, "error": [-32603, "cancelled", None]}

            await RedisValues(redis).change(digest, changed, collection="tasks", ttl=60)

        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, listen)
            # The first of these may be what the stream finds when it begins.
            for at, state in enumerate(("input_required", "working", "cancelled")):
                await until(lambda at=at: len(states) > at)
                await become(state)
        slow.go.set()
    assert states == ["working", "input_required", "working", "cancelled"]


async def test_tasks_of_a_gateway_that_is_gone_are_done_or_interrupted(
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any]
) -> None:
    up, failed = slow.server(), list[dict[str, Any]]()
    async with serving(tmp_path / "other", {"up": up}, **shared_sections) as other, core(other, ANNA) as there:

        async def collect(task_id: str) -> None:
            failed.append(await there.message("tasks/result", taskId=task_id))

        async with (
            anyio.create_task_group() as group,
            serving(tmp_path / "one", {"up": up}, **shared_sections) as one,
            core(one, ANNA) as here,
        ):
            done = (await here.task("up__quick"))["taskId"]
            await here.until("completed", done)
            broken = (await here.task("up__broken"))["taskId"]
            await here.until("failed", broken)
            working = (await here.task("up__slow"))["taskId"]
            await until(lambda: len(up.calls) == 3)
            group.start_soon(collect, working)
            assert (await there.result("tasks/get", taskId=working))["status"] == "working"
        assert "interrupted" in failed[0]["error"]["message"]
        assert failed[0]["error"]["data"]["details"] == {"executed": "unknown"}
        listed = {task["taskId"]: task for task in (await there.result("tasks/list"))["tasks"]}
        states = {each: task["status"] for each, task in listed.items()}
        assert states == {done: "completed", broken: "failed", working: "failed"}
        assert "interrupted" in listed[working]["statusMessage"]
        assert (await there.result("tasks/result", taskId=done))["content"] == [{"type": "text", "text": "quick"}]
        assert (await there.result("tasks/result", taskId=broken))["isError"] is True
        assert (await there.message("tasks/cancel", taskId=working))["error"]["code"] == INVALID_PARAMS
        modern = ModernClient(other, ANNA)
        assert "interrupted" in (await modern.result("tasks/get", taskId=working))["error"]["message"]
        await modern.result("tasks/cancel", taskId=working)
        assert (await modern.result("tasks/get", taskId=done))["result"]["content"][0]["text"] == "quick"
    assert len(up.calls) == 3


async def test_a_stream_tells_that_a_task_is_lost_with_its_gateway_and_its_record(
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any]
) -> None:
    up, events = slow.server(), list[dict[str, Any]]()
    async with serving(tmp_path / "other", {"up": up}, **shared_sections) as other:

        def listen(task_id: str) -> None:
            params = {"notifications": {"taskIds": [task_id]}, "_meta": {CAPABILITIES: DECLARED}}
            for message in events_modern(other.url, "subscriptions/listen", params, ANNA):
                events.append(message)
                if message.get("params", {}).get("status") == "failed":
                    return

        async with (
            anyio.create_task_group() as group,
            serving(tmp_path / "one", {"up": up}, **shared_sections) as one,
        ):
            task_id = (await ModernClient(one, ANNA).result("tools/call", name="up__slow", arguments={}))["taskId"]
            group.start_soon(anyio.to_thread.run_sync, listen, task_id)
            await until(lambda: len(events) > 1)
            redis = other.gateway.redis
            assert redis is not None
            names = list(await written(redis, "tasks*"))
            await redis.run(lambda client: client.delete(*names))
    assert "interrupted" in events[-1]["params"]["error"]["message"]


async def test_a_task_that_has_failed_as_its_gateway_seemed_gone_stays_failed_when_that_is_back(
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any]
) -> None:
    up = slow.server()
    async with two(tmp_path, up, shared_sections) as (one, other, here, there), told(here) as states:
        working = (await here.task("up__slow"))["taskId"]
        await until(lambda: len(up.calls) == 1)
        own, redis = one.gateway.replicas, other.gateway.redis
        assert own is not None
        assert redis is not None

        async def seems_gone() -> bool:
            await redis.run(lambda client: client.delete(f"{PREFIX}:replica:{own.own.id}"))
            # A client of 2026 is told nothing of states, and takes that from nobody.
            return str((await ModernClient(other, ANNA).result("tasks/get", taskId=working))["status"]) == "failed"

        await eventually(seems_gone)
        await until(lambda: slow.cancelled == 1)
        await until(lambda: [each["status"] for each in states] == ["failed"])
        await here.until("failed", working)
        for client in (here, there):
            assert (await client.result("tasks/get", taskId=working))["status"] == "failed"
            assert "interrupted" in (await client.message("tasks/result", taskId=working))["error"]["message"]


async def test_a_key_that_is_revoked_at_one_gateway_ends_its_tasks_at_another(
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any]
) -> None:
    up = slow.server()
    async with replicas(tmp_path, {"up": up}, **shared_sections) as (one, other), core(one, ANNA) as here:
        made = await anyio.to_thread.run_sync(one.runtime.keys.add, "anna")

        async def is_let_in() -> bool:
            message = partial(post_modern, other.url, "tools/list", key=made.text)
            return (await anyio.to_thread.run_sync(message)).status_code == 200

        await eventually(is_let_in)
        async with core(other, made.text) as there:
            task_id = (await there.task("up__slow"))["taskId"]
            kept = (await here.task("up__slow"))["taskId"]
            await until(lambda: len(up.calls) == 2)
            assert (await here.result("tasks/get", taskId=task_id))["status"] == "working"
            await anyio.to_thread.run_sync(one.runtime.keys.revoke, [made.key_id])
            await here.until("cancelled", task_id)
        assert "no longer in force" in (await here.result("tasks/get", taskId=task_id))["statusMessage"]
        assert (await here.result("tasks/get", taskId=kept))["status"] == "working"
    assert slow.cancelled >= 1


async def test_unknown_foreign_and_expired_tasks_of_another_gateway_are_the_same(
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any]
) -> None:
    async with two(tmp_path, slow.server(), shared_sections) as (_, other, here, there), core(other, BEN) as ben:
        foreign = (await here.task("up__slow"))["taskId"]
        expired = (await here.task("up__quick", ttl=1000))["taskId"]
        guessed = foreign[:-1] + ("A" if foreign[-1] != "A" else "B")

        async def is_gone() -> bool:
            return expired not in [task["taskId"] for task in (await there.result("tasks/list"))["tasks"]]

        await eventually(is_gone)
        assert (await ben.result("tasks/list"))["tasks"] == []
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            answers = [(await ben.message(method, taskId=each))["error"] for each in (foreign, expired, guessed, "x")]
            answers += [(await there.message(method, taskId=each))["error"] for each in (expired, guessed)]
            assert answers[0]["code"] == INVALID_PARAMS
            assert all(each == answers[0] for each in answers)
        assert slow.cancelled == 0
        assert (await there.result("tasks/get", taskId=foreign))["status"] == "working"


async def test_what_is_written_of_a_task_names_nobody_and_expires_and_is_written_again_if_it_was_lost(
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any]
) -> None:
    async with two(tmp_path, slow.server(), shared_sections) as (one, _, here, there):
        redis = one.gateway.redis
        assert redis is not None
        task_id = (await here.task("up__slow"))["taskId"]
        found = await written(redis, "tasks*")
        assert len(found) == 2
        for name, (value, milliseconds) in found.items():
            assert 3_500_000 < milliseconds < 3_700_000
            assert not any(text.encode() in name + value for text in (task_id.partition("-")[2], "anna", "slow"))
        await redis.run(lambda client: client.flushall())
        assert (await there.message("tasks/get", taskId=task_id))["error"]["code"] == INVALID_PARAMS

        async def is_found() -> bool:
            return "result" in await there.message("tasks/get", taskId=task_id)

        await eventually(is_found)
        assert (await there.result("tasks/get", taskId=task_id))["status"] == "working"
        slow.go.set()
        await here.until("completed", task_id)
        await there.until("completed", task_id)


async def test_records_of_another_version_keep_nobody_from_the_other_tasks(
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any]
) -> None:
    up = slow.server()
    async with two(tmp_path, up, shared_sections) as (one, _, here, there):
        redis = one.gateway.redis
        assert redis is not None
        assert one.gateway.change_feed is not None
        values, digest = RedisValues(redis), OwnedValues(redis, "tasks", 9, 9).digest
        known, newer, odd = [(await here.task("up__slow"))["taskId"] for _ in range(3)]
        record = await values.get(digest(newer), collection="tasks")
        assert record is not None
        further = {**record, "later": 1, "task": {**record["task"], "later": [2]}}
        await values.put(digest(newer), further, collection="tasks")
        await values.put(digest(odd), {"later": True}, collection="tasks")
        for task_id, commands in (
            (odd, {"notifier": 5, "question-1": 6}),
            (known, {"notifier": {"since": "?"}, "later": {}}),
        ):
            await values.put(digest(task_id), commands, collection="task-commands")
            await one.gateway.change_feed.publish("task-commands", digest(task_id))
        for _ in range(2):
            listed = [each["taskId"] for each in (await there.result("tasks/list"))["tasks"]]
            assert listed == [known, newer]
        assert (await there.message("tasks/get", taskId=odd))["error"]["code"] == INVALID_PARAMS
        assert (await there.result("tasks/get", taskId=newer))["status"] == "working"
        assert (await there.result("tasks/cancel", taskId=known))["status"] == "cancelled"
        await until(lambda: slow.cancelled == 1)
        slow.go.set()


async def test_an_owner_has_so_many_values_and_those_that_end_first_make_room(redis_url: str) -> None:
    async with opened(redis_url) as server:
        values = OwnedValues(server, "few", 3, 10_000)
        for at, seconds in enumerate((60, 20, 30, 40, 10)):
            await values.put("a", str(at), {"at": at}, seconds)
        await values.put("b", "other", {}, 10)
        assert [each["at"] for each in await values.of("a")] == [4, 3, 0]
        assert await RedisValues(server).get(values.digest("1"), collection="few") is None
        assert await RedisValues(server).get(values.digest("3"), collection="few") == {"at": 3}
        assert await RedisValues(server).delete(values.digest("4"), collection="few")
        assert [each["at"] for each in await values.of("a")] == [3, 0]
        await values.put("a", "3", {"at": "new"}, 70)
        assert [each["at"] for each in await values.of("a")] == [0, "new"]
        await values.put("a", "large", {"text": "x" * 6000}, 50)
        assert [each.get("at") for each in await values.of("a")] == [None, 0, "new"]
        await values.put("a", "larger", {"text": "x" * 6500}, 5)
        assert [each.get("at", len(each.get("text", ""))) for each in await values.of("a")] == [6500, 0, "new"]
        assert await values.of("b") == [{}]
