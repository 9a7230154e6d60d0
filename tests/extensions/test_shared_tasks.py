"""Tasks at gateways that share a Redis server: one gateway runs a task, and its client finds it at all of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from pml_gateway.gateway import handles, shared_tasks
from pml_gateway.gateway.task import GatewayTask, replica_of
from pml_gateway.policy.principal import LOCAL
from pml_gateway.storage.change_feed import ChangeFeed
from pml_gateway.storage.redis import PREFIX, RedisValues
from pml_gateway.storage.redis_owned import OwnedValues
from tests.extensions.test_handles import let_end
from tests.support.asking import asking, asking_after, question_of
from tests.support.raw import events_modern, post_modern
from tests.support.redis_server import losing_answers
from tests.support.replicas import KEYS, bearer, replicas, replicas_of, shared_sections, written
from tests.support.scripted_server import text_result
from tests.support.serving import Serving
from tests.support.task_clients import (
    ABLE,
    CAPABILITIES,
    DECLARED,
    ModernClient,
    SlowServer,
    core,
    notified,
    often,
    slow,
    soon,
    two,
)
from tests.support.task_server import INVALID_PARAMS, TaskServer
from tests.support.waiting import eventually, until

pytestmark = pytest.mark.anyio

__all__ = ["often", "shared_sections", "slow", "soon"]

ANNA, BEN = KEYS["anna"], KEYS["ben"]
ANSWER = {"action": "accept", "content": {"answer": "Ada"}}


async def test_a_task_is_found_at_another_gateway_until_its_end(
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any]
) -> None:
    async with two(tmp_path, slow.server(), shared_sections) as (one, other, here, there):
        task_id = (await here.task("up__slow", number=1))["taskId"]
        assert replica_of(task_id) == replicas_of(one).own.id
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
        redis = replicas_of(one).server
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


async def test_a_handle_is_read_at_another_gateway_while_its_call_runs(
    tmp_path: Path, shared_sections: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    up = TaskServer("old")
    sections = {**shared_sections, "upstreams": {"call_timeout": 2}}
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
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any], often: None
) -> None:
    async with two(tmp_path, slow.server(), shared_sections) as (one, _, here, there):
        redis = replicas_of(one).server
        task_id = (await here.task("up__slow"))["taskId"]
        found = await written(redis, "tasks*")
        assert len(found) == 2
        for name, (value, milliseconds) in found.items():
            assert 3_500_000 < milliseconds < 3_700_000
            assert not any(text.encode() in name + value for text in (task_id.partition("-")[2], "anna", "slow"))
        await redis.run(lambda client: client.flushall())

        async def is_found() -> bool:
            return "result" in await there.message("tasks/get", taskId=task_id)

        await eventually(is_found)
        assert (await there.result("tasks/get", taskId=task_id))["status"] == "working"


async def test_records_of_another_version_keep_nobody_from_the_other_tasks(
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any]
) -> None:
    up = slow.server()
    async with two(tmp_path, up, shared_sections) as (one, _, here, there):
        redis = replicas_of(one).server
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
            await replicas_of(one).feed.publish("task-commands", digest(task_id))
        for _ in range(2):
            listed = [each["taskId"] for each in (await there.result("tasks/list"))["tasks"]]
            assert listed == [known, newer]
        assert (await there.message("tasks/get", taskId=odd))["error"]["code"] == INVALID_PARAMS
        assert (await there.result("tasks/get", taskId=newer))["status"] == "working"
        assert (await there.result("tasks/cancel", taskId=known))["status"] == "cancelled"
        await until(lambda: slow.cancelled == 1)
        slow.go.set()


def modern_clients(one: Serving, other: Serving) -> tuple[ModernClient, ModernClient]:
    """A client of 2026 at each gateway."""
    return ModernClient(one, ANNA, **ABLE), ModernClient(other, ANNA, **ABLE)


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
        at_one, at_other = modern_clients(one, other)
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
            at_one, at_other = modern_clients(one, other)
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
        at_one, at_other = modern_clients(one, other)
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
        at_one, at_other = modern_clients(one, other)
        task_id = (await at_one.result("tools/call", name="up__ask", arguments={"text": "Who?"}))["taskId"]
        go.set()
        seen = await at_one.until("input_required", task_id)
        assert (await at_other.result("tasks/get", taskId=task_id))["inputRequests"] == seen["inputRequests"]


async def test_of_the_states_of_a_task_its_client_is_told_in_the_session_that_asked_last(
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any]
) -> None:
    ids = list[str]()
    async with (
        two(tmp_path, slow.server(), shared_sections) as (_, other, here, there),
        core(other, ANNA) as later,
        notified(here) as at_own,
        notified(there) as at_other,
        notified(later) as at_later,
    ):
        for sessions in ([], [there], [there, later, later], [there, here]):
            ids.append((await here.task("up__slow"))["taskId"])
            for session in sessions:
                assert (await session.result("tasks/get", taskId=ids[-1]))["status"] == "working"
        redis = replicas_of(other).server
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
    async with (
        two(tmp_path, up, shared_sections) as (_, _, here, there),
        notified(here) as at_own,
        notified(there) as at_other,
    ):
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


async def test_a_stream_at_another_gateway_has_each_state_though_changes_are_missed(
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any], soon: None, often: None
) -> None:
    events = list[dict[str, Any]]()
    async with two(tmp_path, slow.server(), shared_sections) as (one, other, _, _):
        task_id = (await ModernClient(one, ANNA).result("tools/call", name="up__slow", arguments={}))["taskId"]
        redis = replicas_of(one).server
        digest = OwnedValues(redis, "tasks", 9, 9).digest(task_id)

        def listen() -> None:
            wanted = {"taskIds": [task_id, "task_of_somebody_else"]}
            params = {"notifications": wanted, "_meta": {CAPABILITIES: DECLARED}}
            for message in events_modern(other.url, "subscriptions/listen", params, ANNA):
                events.append(message["params"])
                if events[-1].get("status") == "completed":
                    return

        async def become(state: str) -> None:
            """Write a state as its own gateway does, and do not publish it."""

            def changed(record: dict[str, Any] | None) -> dict[str, Any]:
                assert record is not None
                return {**record, "task": {**record["task"], "status": state}}

            await RedisValues(redis).change(digest, changed, collection="tasks", ttl=60)

        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, listen)
            # The first of these may be what the stream finds when it begins.
            for at, state in enumerate(("input_required", "working")):
                await until(lambda at=at: len(events) > at + 1)
                await become(state)
            await until(lambda: len(events) > 3)
            slow.go.set()
    acknowledged, *states, done = events
    assert acknowledged["notifications"] == {"taskIds": [task_id]}
    assert [each["status"] for each in states] == ["working", "input_required", "working"]
    assert done["result"]["content"] == [{"type": "text", "text": "done"}]
