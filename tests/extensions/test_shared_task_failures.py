"""Tasks of gateways that end or seem gone, and of gateways that Redis fails."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from redis.exceptions import ResponseError

from pml_gateway.errors import SharedStateError
from pml_gateway.storage.redis import PREFIX
from pml_gateway.storage.redis_owned import OwnedValues
from tests.support.raw import events_modern, modern
from tests.support.replicas import KEYS, replicas, replicas_of, shared_sections, written
from tests.support.serving import serving
from tests.support.task_clients import (
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
from tests.support.task_server import INVALID_PARAMS
from tests.support.waiting import eventually, until

pytestmark = pytest.mark.anyio

__all__ = ["often", "shared_sections", "slow", "soon"]

ANNA = KEYS["anna"]


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
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any], soon: None, often: None
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
            redis = replicas_of(other).server
            names = list(await written(redis, "tasks*"))
            await redis.run(lambda client: client.delete(*names))
    assert "interrupted" in events[-1]["params"]["error"]["message"]


async def test_a_task_that_has_failed_as_its_gateway_seemed_gone_stays_failed_when_that_is_back(
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any], often: None
) -> None:
    up = slow.server()
    async with two(tmp_path, up, shared_sections) as (one, other, here, there), notified(here) as states:
        working = (await here.task("up__slow"))["taskId"]
        await until(lambda: len(up.calls) == 1)
        own, redis = replicas_of(one).own, replicas_of(other).server

        async def seems_gone() -> bool:
            await redis.run(lambda client: client.delete(f"{PREFIX}:replica:{own.id}"))
            # Its next heartbeat may come just before the other one reads entries by itself.
            await replicas_of(other).all()
            # A client of 2026 is told nothing of states, and takes that from nobody.
            return str((await ModernClient(other, ANNA).result("tasks/get", taskId=working))["status"]) == "failed"

        await eventually(seems_gone)
        await until(lambda: slow.cancelled == 1)
        await until(lambda: [each["status"] for each in states] == ["failed"])
        await here.until("failed", working)
        for client in (here, there):
            assert (await client.result("tasks/get", taskId=working))["status"] == "failed"
            assert "interrupted" in (await client.message("tasks/result", taskId=working))["error"]["message"]


async def test_after_a_failure_of_redis_a_task_without_a_record_may_exist(
    tmp_path: Path, slow: SlowServer, shared_sections: dict[str, Any]
) -> None:
    async def refuse(_: object) -> None:
        raise ResponseError("OOM command not allowed when used memory > 'maxmemory'")

    async with two(tmp_path, slow.server(), shared_sections) as (one, other, _, _):
        params = {"taskId": f"task_{replicas_of(one).own.id}-unknown"}
        unknown = await ModernClient(other, ANNA).message("tasks/get", **params)
        with pytest.raises(SharedStateError):
            await replicas_of(other).server.run(refuse)
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
        with pytest.raises(SharedStateError):
            await replicas_of(one).server.run(fail)
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
