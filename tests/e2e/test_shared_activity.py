"""Two gateways that pass activity on by a real Redis server: each shows the calls of both, also after an outage."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import run_here
from tests.support.process import GatewayProcess, running_gateway
from tests.support.raw import HandshakeSession, result_modern
from tests.support.redis_server import RealRedis, real_redis
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(240)]

SERVER = """
from fastmcp import FastMCP
server = FastMCP("data")
@server.tool
def rows(count: int) -> int:
    "Return a number of rows."
    return count
server.run(show_banner=False)
"""

SECRETS = {"PML_STORAGE_KEY": "a random text of two machines, long enough"}


@pytest.fixture
def redis(redis_program: Path) -> Iterator[RealRedis]:
    with real_redis(redis_program) as server:
        yield server


@contextmanager
def gateways(redis: RealRedis, folder: Path, *names: str) -> Iterator[list[GatewayProcess]]:
    """Gateways with one configuration, as several machines have them."""
    script = folder / "server.py"
    script.write_text(SERVER, encoding="utf-8")
    settings = {
        "servers": {"data": {"command": sys.executable, "args": [str(script)]}},
        "storage": redis.url,
        "activity": {"sink": "redis"},
    }
    with ExitStack() as stack:
        yield [stack.enter_context(running_gateway(folder / name, settings, extra=SECRETS)) for name in names]


def called(home: Path) -> list[dict[str, Any]]:
    done = run_here(home, "activity", "--json", "--tool", "data__rows", "--limit", "1000")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["accesses"]
    return found


def call(gateway: GatewayProcess, count: int, program: str = "raw") -> None:
    with HandshakeSession(gateway.url, program=program) as session:
        for _ in range(count):
            assert not session.result("tools/call", {"name": "data__rows", "arguments": {"count": 1}}).get("isError")


def have(homes: list[Path], calls: int) -> bool:
    return all(len(called(home)) >= calls for home in homes)


def test_each_gateway_shows_the_calls_of_both_also_of_an_outage(tmp_path: Path, redis: RealRedis) -> None:
    with gateways(redis, tmp_path, "one", "two") as (one, two):
        homes = [one.home, two.home]
        for gateway in (one, two):
            wait_for(partial(knows_tools, gateway), "the gateway has listed its server")
        call(one, 3, "claude")
        call(two, 2, "cursor")
        wait_for(partial(have, homes, 5), "both have all calls")
        redis.stop()
        call(one, 4, "claude")
        call(two, 1, "cursor")
        assert "storage: Redis has failed" in run_here(one.home, "status").stdout
        redis.start()
        wait_for(partial(have, homes, 10), "both have the calls of the outage")
        stats = json.loads(run_here(two.home, "stats", "--json", extra=SECRETS).stdout)
    # The last calls of a gateway that ends are passed on as well.
    for home in homes:
        found = called(home)
        assert len(found) == 10
        told = {(each["program"], each["replica"]) for each in found}
        assert sorted(program for program, _ in told) == ["claude", "cursor"]
        assert len({replica for _, replica in told}) == 2
    assert (stats["calls"], stats["programs"]) == (10, {"claude": 7, "cursor": 3})


def test_a_gateway_that_ends_passes_its_last_calls_on(tmp_path: Path, redis: RealRedis) -> None:
    with gateways(redis, tmp_path, "one") as (one,):
        wait_for(partial(knows_tools, one), "the gateway has listed its server")
        with gateways(redis, tmp_path, "two") as (two,):
            wait_for(partial(knows_tools, two), "the gateway has listed its server")
            call(two, 5)
        wait_for(partial(have, [one.home], 5), "the calls are there")
    assert len(called(one.home)) == 5


def knows_tools(gateway: GatewayProcess) -> bool:
    found = result_modern(gateway.url, "tools/call", {"name": "search_tools", "arguments": {"query": "rows"}})
    return "data__rows" in json.dumps(found)
