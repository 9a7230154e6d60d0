"""Two gateways that share a real Redis server: what they know of each other's clients, and what happens without it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.storage.redis import MAX_PAUSE_SECONDS
from tests.gateway.test_shared_runs import answered, server, steps
from tests.support.process import GatewayProcess
from tests.support.raw import HandshakeSession, decoded, result_modern
from tests.support.redis_server import PASSWORD, RealRedis, real_redis
from tests.support.replicas import (
    DATA_SERVER,
    KEYS,
    bearer,
    replica_processes,
    replicas,
    replicas_of,
    script,
    shared_sections,
)
from tests.support.waiting import eventually, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(240)]

__all__ = ["shared_sections"]

LIMIT = 4


@contextmanager
def two_gateways(redis: RealRedis, folder: Path, **limits: Any) -> Iterator[list[GatewayProcess]]:
    servers = {"data": script(folder, DATA_SERVER)}
    with replica_processes(redis.url, folder, 2, servers, "data__rows", limits=limits) as started:
        yield started


def ask(gateway: GatewayProcess, who: str, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a meta-tool of a gateway as a client."""
    answer = result_modern(gateway.url, "tools/call", {"name": tool, "arguments": arguments}, key=KEYS[who])
    found: dict[str, Any] = answer["structuredContent"]
    return found


def call(gateway: GatewayProcess, who: str, name: str, **arguments: Any) -> dict[str, Any]:
    return ask(gateway, who, "call_tool", name=name, arguments=arguments)


def code(answer: dict[str, Any]) -> str:
    found: str = answer.get("error", {}).get("code", "")
    return found


def test_a_reference_of_one_gateway_is_read_and_passed_on_at_the_other(redis: RealRedis, tmp_path: Path) -> None:
    with two_gateways(redis, tmp_path) as (one, two):
        stored = call(one, "anna", "data__rows", count=2000)
        read = ask(two, "anna", "read_result", ref=stored["ref"], path="[1999].text")
        passed = call(two, "anna", "data__total", rows={"$ref": stored["ref"]})
        foreign = ask(two, "ben", "read_result", ref=stored["ref"])
        with HandshakeSession(two.url, key=KEYS["anna"]) as session:
            asked = {"name": "read_result", "arguments": {"ref": stored["ref"], "path": "length(@)"}}
            old = decoded(session.send("tools/call", asked))["result"]
    assert "row 1999" in json.dumps(read)
    assert str(sum(range(2000))) in json.dumps(passed)
    assert "2000" in json.dumps(old["structuredContent"])
    assert code(foreign) == "NOT_FOUND"


def test_gateways_count_the_calls_of_a_client_together(redis: RealRedis, tmp_path: Path) -> None:
    with two_gateways(redis, tmp_path, calls_per_minute=LIMIT) as gateways:
        answers = [call(gateways[number % 2], "anna", "data__total", rows=[]) for number in range(LIMIT + 2)]
        other = call(gateways[1], "ben", "data__total", rows=[])
    assert list(map(code, answers)) == [""] * LIMIT + ["RATE_LIMITED"] * 2
    assert code(other) == ""


def test_calls_go_on_without_redis_and_all_is_as_before_once_it_is_back(redis: RealRedis, tmp_path: Path) -> None:
    with two_gateways(redis, tmp_path, calls_per_day=1000) as (one, two):
        stored = call(one, "anna", "data__rows", count=2000)
        redis.stop()
        try:
            without = call(one, "anna", "data__total", rows=[{"number": 7}])
            lost = ask(two, "anna", "read_result", ref=stored["ref"])
            large = call(one, "anna", "data__rows", count=2000)
        finally:
            redis.start()
        assert "7" in json.dumps(without)
        assert lost["error"]["retryable"]
        assert PASSWORD not in json.dumps(lost)
        assert code(large) == ""

        def is_back() -> bool:
            again = call(one, "anna", "data__rows", count=2000)
            return "ref" in again and not code(ask(two, "anna", "read_result", ref=again["ref"], path="[0]"))

        wait_for(is_back, "results are stored again", 3 * MAX_PAUSE_SECONDS)
        assert not any(PASSWORD in line for each in (one, two) for line in each.log)


def test_limits_that_are_closed_refuse_calls_without_redis(redis: RealRedis, tmp_path: Path) -> None:
    with two_gateways(redis, tmp_path, calls_per_day=1000, on_outage="closed") as (one, _):
        assert code(call(one, "anna", "data__total", rows=[])) == ""
        redis.stop()
        try:
            refused = call(one, "anna", "data__total", rows=[])
        finally:
            redis.start()
    assert refused["error"]["retryable"]
    assert "limits.on_outage" in json.dumps(refused)


@pytest.mark.anyio
async def test_a_workflow_that_was_answered_after_the_snapshot_redis_starts_with_repeats_no_call(
    redis_program: Path, tmp_path: Path, shared_sections: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    up, arguments, data = server(), steps(), tmp_path / "data"
    data.mkdir()
    with real_redis(redis_program, data, logs_changes=False) as redis:
        monkeypatch.setenv("REDIS", redis.url)
        async with replicas(tmp_path, {"up": up}, **shared_sections) as (one, two):
            redis_server = replicas_of(one).server

            async def has_run_for_a_second() -> bool:
                return await redis_server.may_have_gone_back_at() < time.time()

            await eventually(has_run_for_a_second)
            first = await one.call("execute_workflow", arguments, headers=bearer("anna"))
            redis.snapshot()
            done = await answered(one, "execute_workflow", arguments, first)
            assert done["result"]["structuredContent"]["status"] == "completed"
            sent = len(up.calls)
            redis.stop()
            redis.start()
            again = dict[str, Any]()

            async def is_back() -> bool:
                again.update(await answered(two, "execute_workflow", arguments, first))
                return "result" in again and "steps" in again["result"].get("structuredContent", {})

            await eventually(is_back)
    assert len(up.calls) == sent
    rows = {row["id"]: row for row in again["result"]["structuredContent"]["steps"]}
    assert rows["ask"]["error"]["details"]["executed"] == "unknown"
