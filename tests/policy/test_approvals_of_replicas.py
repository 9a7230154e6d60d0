"""Gateways that share a Redis server: a call that asks at one of them is answered at another, and made at any."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from pml_gateway.errors import GatewayError, UsageError
from pml_gateway.gateway.approval_requests import MAX_GUESSES
from pml_gateway.gateway.approvals import hashed_passphrase
from pml_gateway.gateway.gateway import open_gateway
from pml_gateway.owner.approvals import answered_approval, asked_approvals
from pml_gateway.storage.redis import MAX_PAUSE_SECONDS
from tests.policy.test_approval_changes import ACCEPTED, questioning
from tests.storage.test_change_feed import fail
from tests.support.approving import KEYS, MINE, REDIS, STORAGE, WIPE, Asking, approved, asking
from tests.support.memory import MemoryStreams, paths_in, settings_for
from tests.support.replicas import replicas_of
from tests.support.waiting import eventually, until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("store"),
    pytest.mark.parametrize("store", ["redis"], indirect=True),
]

BATCH = {"calls": [WIPE, {"name": "up__drop", "arguments": MINE}]}


@asynccontextmanager
async def replicas(folder: Path, count: int = 2, **options: Any) -> AsyncIterator[list[Asking]]:
    """Gateways as on several machines: each with a folder, and a server, of its own."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                asking(
                    folder / str(number), **{key: make() if callable(make) else make for key, make in options.items()}
                )
            )
            for number in range(count)
        ]


def sent(opened: list[Asking]) -> list[tuple[str, Any]]:
    return [each for asked in opened for each in asked.sent]


async def test_a_call_is_asked_about_at_one_answered_at_another_and_made_at_a_third(tmp_path: Path) -> None:
    async with replicas(tmp_path, 3) as opened:
        one, two, three = opened
        assert await one.call("up__wipe", MINE) == "PENDING_APPROVAL"
        assert await three.call("up__wipe", MINE) == "PENDING_APPROVAL"
        [id_] = await two.waiting()
        assert (await two.shown(id_))["calls"][0]["arguments"] == MINE
        assert await two.answer(id_) == []
        assert await three.call("up__wipe", MINE, "BOB") == "PENDING_APPROVAL"
        assert sent(opened) == []
        assert await three.call("up__wipe", MINE) == "OK"
        assert [await each.call("up__wipe", MINE) for each in opened] == ["PENDING_APPROVAL"] * 3
        assert sent(opened) == [("wipe", MINE)]
        assert {(row["state"], row["uses"]) for row in await one.rows() if row["id"] == id_} == {("approved", 1)}


async def test_a_call_that_is_held_at_one_goes_on_when_another_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pml_gateway.gateway.approvals.PROGRESS_SECONDS", 300.0)
    async with replicas(tmp_path, approvals={"hold_seconds": 45}) as opened, anyio.create_task_group() as tasks:
        results: list[str] = []

        async def call() -> None:
            results.append(await opened[0].call("call_batch", BATCH))

        async def is_held() -> bool:
            return any(row["is_held"] for row in await opened[1].rows())

        tasks.start_soon(call)
        await eventually(is_held)
        await opened[1].answer()
    assert results == ["OK"]
    assert sorted(name for name, _ in opened[0].sent) == ["drop", "wipe"]


async def test_of_equal_calls_that_are_held_at_two_gateways_each_is_asked_about(tmp_path: Path) -> None:
    async with replicas(tmp_path, approvals={"hold_seconds": 45}) as opened, anyio.create_task_group() as tasks:
        results: list[str] = []
        answered: list[str] = []

        async def call(at: int) -> None:
            results.append(await opened[at].call("up__wipe", MINE))

        async def is_held() -> bool:
            return any(row["is_held"] and row["id"] not in answered for row in await opened[1].rows())

        for at in range(2):
            tasks.start_soon(call, at)
        for at in range(2):
            await eventually(is_held)
            [id_] = await opened[at].waiting()
            await opened[at].answer(id_)
            answered.append(id_)
    assert results == ["OK", "OK"]
    assert len(sent(opened)) == 2


@pytest.mark.parametrize("scope", ["call", "arguments", "tool"])
async def test_calls_of_all_gateways_at_once_are_made_as_often_as_was_approved(scope: str, tmp_path: Path) -> None:
    async with replicas(tmp_path) as opened:
        await approved(opened[0], scope=scope)
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(opened[number % 2].call, "up__wipe", MINE)
    assert len(sent(opened)) == (1 if scope == "call" else 8)


async def test_an_approval_of_a_batch_is_used_at_another_gateway(tmp_path: Path) -> None:
    async with replicas(tmp_path) as opened:
        await approved(opened[0], "call_batch", BATCH)
        assert await opened[1].call("up__wipe", MINE) == "PENDING_APPROVAL"
        assert await opened[1].call("call_batch", BATCH) == "OK"
        assert await opened[0].call("call_batch", BATCH) == "PENDING_APPROVAL"
    assert sorted(name for name, _ in sent(opened)) == ["drop", "wipe"]


@pytest.mark.parametrize("scope", ["call", "tool"])
async def test_a_definition_that_changed_at_one_gateway_needs_an_approval_there(scope: str, tmp_path: Path) -> None:
    async with replicas(tmp_path) as opened:
        one, two = opened
        await approved(one, scope=scope)
        two.server.tools[1] = {**two.server.tools[1], "description": "Wipes everything, whatever it is given."}
        await two.served.gateway.refresh(30)
        assert await two.call("up__wipe", MINE) == "PENDING_APPROVAL"
        assert two.sent == []
        assert await one.call("up__wipe", MINE) == "OK"
        # An approval of the new definition is none of the old one.
        [asked] = await one.waiting()
        await one.answer(asked, scope="arguments")
        one.server.calls.clear()
        if scope == "call":
            assert await one.call("up__wipe", MINE) == "PENDING_APPROVAL"
        assert await two.call("up__wipe", MINE) == "OK"
    assert one.sent == []


async def test_a_call_that_is_not_sent_after_all_gives_its_approval_back(tmp_path: Path) -> None:
    limits = {"calls_per_minute": 1}
    async with replicas(tmp_path, limits=limits) as opened:
        one, two = opened
        await approved(one)
        assert await two.call("up__look") == "OK"
        assert await two.call("up__wipe", MINE) == "RATE_LIMITED"
        [row] = await one.rows()
        assert (row["uses"], row["state"]) == (0, "approved")
    assert [name for name, _ in sent(opened)] == ["look"]


async def test_without_redis_calls_that_ask_can_be_sent_again_and_others_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer than all these calls take: one that began at its end would reach Redis.
    monkeypatch.setattr("pml_gateway.storage.redis.PAUSE_SECONDS", MAX_PAUSE_SECONDS)
    async with replicas(tmp_path) as opened:
        one, two = opened
        await approved(one)
        redis = replicas_of(one.served).server
        steps = {"steps": [{"tool": "up__wipe", "arguments": MINE}]}
        for name, given in (("up__wipe", MINE), ("call_batch", BATCH), ("execute_workflow", steps)):
            await fail(redis)
            result = await one.served.call(name, given, key=KEYS["ADA"])
            error = result["structuredContent"].get("error")
            assert error is not None, result
            assert (error["code"], error["retryable"]) == ("INTERNAL", True)
            assert error["details"]["executed"] == "no" and "asks before this call" in error["message"]
        await fail(redis)
        assert await one.call("up__look") == "OK"
        assert one.sent == [("look", {})]
        assert await two.call("up__wipe", MINE) == "OK"

        async def is_back() -> bool:
            return await one.call("up__wipe", MINE) == "PENDING_APPROVAL"

        await eventually(is_back)
    assert [name for name, _ in sent(opened)] == ["look", "wipe"]


async def test_a_call_that_a_server_asked_about_goes_on_at_another_gateway(tmp_path: Path) -> None:
    async with replicas(tmp_path, server=questioning) as opened:
        one, two = opened
        id_ = await approved(one, given={})
        result = await one.served.call("up__wipe", key=KEYS["ADA"])
        assert result["resultType"] == "input_required"
        more = {"requestState": result["requestState"], **ACCEPTED}
        assert await two.call("up__wipe", {}, "BOB", **more) != "OK"
        assert await two.call("up__wipe", {"x": 1}, **more) != "OK"
        assert two.sent == []
        assert await two.call("up__wipe", {}, **more) == "OK"
        assert await one.call("up__wipe", {}, **more) != "OK"
        [row] = [row for row in await two.rows() if row["id"] == id_]
        assert row["uses"] == 1
    assert len(sent(opened)) == 2


async def test_processes_of_one_home_show_an_approval_once_and_one_of_them_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pml_gateway.storage.redis.PAUSE_SECONDS", 4.0)
    secret = hashed_passphrase("correct horse battery")
    async with AsyncExitStack() as stack:
        opened = [asking(tmp_path, approvals={"secret": secret}) for _ in range(2)]
        one, two = [await stack.enter_async_context(each) for each in opened]
        assert await one.call("up__wipe", MINE) == "PENDING_APPROVAL"
        [row], errors = await asked_approvals(two.paths)
        assert (row["state"], errors) == ("pending", [])
        for _ in range(MAX_GUESSES):
            with pytest.raises(GatewayError, match="not the passphrase"):
                await answered_approval(two.paths, row["id"], "approve", passphrase="guess")
        with pytest.raises(GatewayError, match="too many"):
            await answered_approval(two.paths, row["id"], "approve", passphrase="correct horse battery")
        with pytest.raises(UsageError, match="no approval"):
            await answered_approval(two.paths, "ffffffff", "approve")
        assert [await each.call("up__wipe", MINE) for each in (one, two)] == ["FORBIDDEN"] * 2
        for each in (one, two):
            await fail(replicas_of(each.served).server)
        with pytest.raises(GatewayError, match=r"storage\.url"):
            await asked_approvals(two.paths)


async def test_a_gateway_that_nobody_can_ask_has_calls_answered_at_one_that_serves(tmp_path: Path) -> None:
    storage = {"url": f"${{env:{REDIS}}}", "key": f"${{env:{STORAGE}}}"}
    settings = settings_for({}, storage=storage)
    # As a command with a gateway of its own has it.
    async with open_gateway(settings, paths_in(tmp_path), identity="test", open_streams=MemoryStreams({})) as alone:
        assert not alone.approvals.can_be_answered
        async with replicas(tmp_path, 1):
            await until(lambda: alone.approvals.can_be_answered)
        await until(lambda: not alone.approvals.can_be_answered)
