"""Two gateways that pass activity on by a real Redis server: each shows the calls of both, also after an outage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import run_here
from tests.support.process import GatewayProcess
from tests.support.raw import HandshakeSession
from tests.support.redis_server import RealRedis, real_redis
from tests.support.replicas import DATA_SERVER, KEYS, replica_processes, script, variables
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def redis(redis_program: Path) -> Iterator[RealRedis]:
    with real_redis(redis_program) as server:
        yield server


@contextmanager
def gateways(redis: RealRedis, folder: Path, number: int) -> Iterator[list[GatewayProcess]]:
    folder.mkdir(exist_ok=True)
    servers, sections = {"data": script(folder, DATA_SERVER)}, {"storage": redis.url, "activity": {"sink": "redis"}}
    with replica_processes(redis.url, folder, number, servers, "data__rows", **sections) as started:
        yield started


def called(home: Path) -> list[dict[str, Any]]:
    done = run_here(home, "activity", "--json", "--tool", "data__rows", "--limit", "1000")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["accesses"]
    return found


def call(gateway: GatewayProcess, count: int, program: str = "raw") -> None:
    with HandshakeSession(gateway.url, key=KEYS["anna"], program=program) as session:
        for _ in range(count):
            assert not session.result("tools/call", {"name": "data__rows", "arguments": {"count": 1}}).get("isError")


def have(homes: list[Path], calls: int) -> bool:
    return all(len(called(home)) >= calls for home in homes)


def test_each_gateway_shows_the_calls_of_both_also_of_an_outage(tmp_path: Path, redis: RealRedis) -> None:
    with gateways(redis, tmp_path, 2) as (one, two):
        homes = [one.home, two.home]
        call(one, 3, "claude")
        call(two, 2, "cursor")
        wait_for(partial(have, homes, 5), "both have all calls")
        redis.stop()
        call(one, 4, "claude")
        call(two, 1, "cursor")
        assert "storage: Redis has failed" in run_here(one.home, "status").stdout
        redis.start()
        wait_for(partial(have, homes, 10), "both have the calls of the outage")
        stats = json.loads(run_here(two.home, "stats", "--json", extra=variables(redis.url)).stdout)
    # The last calls of a gateway that ends are passed on as well.
    for home in homes:
        found = called(home)
        assert len(found) == 10
        told = {(each["program"], each["replica"]) for each in found}
        assert sorted(program for program, _ in told) == ["claude", "cursor"]
        assert len({replica for _, replica in told}) == 2
    assert (stats["calls"], stats["programs"]) == (10, {"claude": 7, "cursor": 3})


def test_a_gateway_that_ends_passes_its_last_calls_on(tmp_path: Path, redis: RealRedis) -> None:
    with gateways(redis, tmp_path / "one", 1) as (one,):
        with gateways(redis, tmp_path / "two", 1) as (two,):
            call(two, 5)
        wait_for(partial(have, [one.home], 5), "the calls are there")
    assert len(called(one.home)) == 5
