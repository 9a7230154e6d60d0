"""Three gateways as real processes that share a real Redis server, and those that are killed or restarted."""

from __future__ import annotations

import itertools
import json
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from redis import Redis

from pml_gateway.storage.redis import replica_name
from pml_gateway.storage.replicas import EXPIRY_SECONDS, HEARTBEAT_SECONDS
from tests.support.process import GatewayProcess, run_pml, running_gateway
from tests.support.raw import HandshakeSession, decoded, result_modern
from tests.support.redis_server import RealRedis, real_redis
from tests.support.replicas import DATA_SERVER, KEYS, replica_processes, replica_settings, script, variables
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

DRAIN_SECONDS = 5
"""Long enough for a balancer on a busy machine to see that a replica ends."""


@contextmanager
def replicas(redis: RealRedis, folder: Path, **http: Any) -> Iterator[list[GatewayProcess]]:
    with replica_processes(redis.url, folder, 3, servers(folder), "data__rows", http=http) as started:
        yield started


def servers(folder: Path) -> dict[str, Any]:
    return {"data": script(folder, DATA_SERVER)}


@pytest.fixture(scope="module")
def redis_of_running(redis_program: Path) -> Iterator[RealRedis]:
    with real_redis(redis_program) as server:
        yield server


@pytest.fixture(scope="module")
def running(redis_of_running: RealRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[GatewayProcess]]:
    """Three replicas for the tests that end none of them, with a Redis server of their own."""
    with replicas(redis_of_running, tmp_path_factory.mktemp("running")) as started:
        yield started


def called(tool: str, **arguments: Any) -> dict[str, Any]:
    """The parameters of a call."""
    return {"name": "call_tool", "arguments": {"name": tool, "arguments": arguments}}


def test_a_session_is_used_at_any_replica(running: list[GatewayProcess]) -> None:
    one, two, three = running
    session = HandshakeSession(one.url, key=KEYS["anna"])
    urls = itertools.cycle([each.url for each in (two, three, one)])
    names = [{tool["name"] for tool in session.result("tools/list", url=next(urls))["tools"]} for _ in range(3)]
    numbers = [session.result("tools/call", called("data__rows", count=count), url=next(urls)) for count in range(6)]
    answers = stream_of(session, two.url)
    foreign = [
        httpx2.post(
            each.url,
            content=json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {}}),
            headers={**session.headers, "authorization": f"Bearer {KEYS['ben']}"},
        ).status_code
        for each in (one, two, three)
    ]
    ended = httpx2.request("DELETE", three.url, headers=session.headers, timeout=30)
    after = [session.send("tools/list", url=each.url).status_code for each in (one, two, three)]
    session.close()
    assert all("call_tool" in each for each in names)
    assert [len(each["structuredContent"]["result"]) for each in numbers] == list(range(6))
    assert answers == 200
    assert foreign == [404, 404, 404]
    assert ended.status_code == 200
    assert after == [404, 404, 404]


def stream_of(session: HandshakeSession, url: str) -> int:
    """The status of a stream of notices, which is left at once."""
    with httpx2.stream("GET", url, headers=session.headers, timeout=30) as response:
        return response.status_code


def test_status_shows_all_replicas(running: list[GatewayProcess], redis_of_running: RealRedis, tmp_path: Path) -> None:
    one = running[0]
    differing = replica_settings(servers(tmp_path), limits={"calls_per_day": 1000})
    extra = variables(redis_of_running.url)
    with running_gateway(tmp_path / "differing", differing, extra=extra) as other:
        shown = run_pml(one.home, "status", extra=extra).stdout
        rows = json.loads(run_pml(one.home, "status", "--json", extra=extra).stdout)
        wait_for(lambda: any("differs" in line for line in other.log), "the log says it")
    said = [line for line in other.log if "differs" in line]
    for each in (*running, other):
        assert each.url.removesuffix("/mcp") in shown
    assert "another configuration" in shown
    assert "1 server over stdio runs in each of 4 replicas" in shown
    (gateway,) = rows["gateways"]
    found = {each["url"]: each["is_configured_alike"] for each in gateway["storage"]["replicas"]}
    assert found == {each.url.removesuffix("/mcp"): each is not other for each in (*running, other)}
    assert len(said) == 3


def test_what_a_killed_replica_held_is_not_found_and_a_new_session_is_served_at_once(
    redis: RealRedis, tmp_path: Path
) -> None:
    with replicas(redis, tmp_path) as (one, two, three):
        session = HandshakeSession(one.url, key=KEYS["anna"])
        stored = session.result("tools/call", called("data__rows", count=2000))["structuredContent"]
        with ThreadPoolExecutor() as threads:
            slow = called("data__slow", seconds=60, started=str(tmp_path / "started"))
            lost = threads.submit(session.send, "tools/call", slow, two.url)
            wait_for((tmp_path / "started").exists, "the call runs")
            one.process.kill()
            failed = lost.result(30)
        one.process.wait(30)
        keep_entries(redis)
        gone = [session.send("tools/list", url=each.url).status_code for each in (two, three)]
        session.close()
        anew = HandshakeSession(two.url, key=KEYS["anna"])
        read = anew.result(
            "tools/call", {"name": "read_result", "arguments": {"ref": stored["ref"], "path": "[1999].text"}}, three.url
        )
        anew.close()
    assert gone == [404, 404]
    assert "row 1999" in json.dumps(read)
    error = failed_with(failed)
    assert error["data"]["details"]["executed"] == "unknown"
    assert not error["data"]["retryable"]


def keep_entries(redis: RealRedis) -> None:
    """Have replicas that send no more heartbeats stay known, so that nobody can wait until they are gone."""
    with Redis.from_url(redis.url) as client:
        for name in client.scan_iter(replica_name("*")):
            client.persist(name)


def test_a_replica_that_stands_still_keeps_nobody_waiting_and_has_its_sessions_afterwards(
    running: list[GatewayProcess],
) -> None:
    one, two, _ = running
    session = HandshakeSession(one.url, key=KEYS["anna"])
    one.process.send_signal(signal.SIGSTOP)
    try:
        error = failed_with(session.send("tools/list", url=two.url))
        gone = session.send("tools/list", url=two.url)
        own = call(two, count=3)
    finally:
        one.process.send_signal(signal.SIGCONT)
    wait_for(lambda: session.send("tools/list", url=two.url).status_code == 200, "the session is served again")
    again = session.result("tools/call", called("data__rows", count=2), url=two.url)
    session.close()
    assert error["data"]["details"]["executed"] == "unknown"
    assert gone.status_code == 404
    assert len(own["structuredContent"]["result"]) == 3
    assert len(again["structuredContent"]["result"]) == 2


def test_sessions_are_used_at_any_replica_while_redis_is_gone_and_once_it_is_back_empty(
    running: list[GatewayProcess], redis_of_running: RealRedis
) -> None:
    one, two, _ = running
    session = HandshakeSession(one.url, key=KEYS["anna"])
    rows = called("data__rows", count=3)
    assert session.result("tools/call", rows, url=two.url)
    redis_of_running.stop()
    try:
        without = [session.result("tools/call", rows, url=two.url) for _ in until_all_would_have_expired()]
        session_of_two = HandshakeSession(two.url, key=KEYS["anna"])
        crossed = session_of_two.result("tools/call", rows, url=one.url)
    finally:
        redis_of_running.start()
    back = [session.result("tools/call", rows, url=two.url) for _ in until_all_would_have_expired()]
    for each in (session, session_of_two):
        each.close()
    assert all(len(each["structuredContent"]["result"]) == 3 for each in (*without, crossed, *back))


def until_all_would_have_expired() -> Iterator[None]:
    """Yield ten times a second until a replica that no heartbeat reached would be taken for gone."""
    end, tick = time.monotonic() + EXPIRY_SECONDS + 2 * HEARTBEAT_SECONDS, threading.Event()
    while time.monotonic() < end:
        yield
        tick.wait(0.1)


def call(gateway: GatewayProcess, count: int) -> dict[str, Any]:
    return result_modern(gateway.url, "tools/call", called("data__rows", count=count), key=KEYS["anna"])


def failed_with(response: httpx2.Response) -> dict[str, Any]:
    message = decoded(response)
    error: dict[str, Any] = message["error"]
    return error


class Balancer:
    """A load balancer in a few lines: to those that say they are ready, in turn, and to the next if one is gone."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self._turns = itertools.cycle(range(len(urls)))
        self._ready = list(urls)
        self._over = threading.Event()
        self.answered = 0
        self.failed: list[str] = []

    def look(self) -> None:
        """Ask who is ready, until the end."""
        while not self._over.wait(0.1):
            self._ready = [url for url in self._urls if self.is_ready(url)]

    def is_ready(self, url: str) -> bool:
        try:
            return httpx2.get(url.replace("/mcp", "/readyz"), timeout=5).status_code == 200
        except httpx2.TransportError:
            return False

    def call(self) -> None:
        """Call one after the other, until the end."""
        while not self._over.is_set():
            try:
                self._call()
                self.answered += 1
            except Exception as error:  # noqa: BLE001  # whatever it is, a call was lost
                self.failed.append(repr(error))

    def _call(self) -> None:
        params = called("data__rows", count=3)
        for _ in range(10):
            ready = self._ready
            try:
                answer = result_modern(ready[next(self._turns) % len(ready)], "tools/call", params, key=KEYS["anna"])
            except httpx2.ConnectError:
                continue
            assert len(answer["structuredContent"]["result"]) == 3, answer
            return
        raise AssertionError("nobody listens")

    def end(self) -> None:
        self._over.set()


def test_replicas_that_are_restarted_one_after_the_other_lose_no_call(redis: RealRedis, tmp_path: Path) -> None:
    with replicas(redis, tmp_path, drain_seconds=DRAIN_SECONDS) as served, ExitStack() as stack:
        balancer = Balancer([each.url for each in served])
        with ThreadPoolExecutor() as threads:
            work = [threads.submit(balancer.look), *(threads.submit(balancer.call) for _ in range(4))]
            try:
                for each in served:
                    wait_for(lambda: balancer.answered > 20, "calls are answered")
                    each.process.send_signal(signal.SIGTERM)
                    assert each.process.wait(60) == 0
                    port = each.url.rpartition(":")[2].partition("/")[0]
                    settings = replica_settings(servers(tmp_path), http={"drain_seconds": DRAIN_SECONDS})
                    again = running_gateway(each.home, settings, "--port", port, extra=variables(redis.url))
                    url = stack.enter_context(again).url
                    wait_for(partial(balancer.is_ready, url), "it is ready again")
                    balancer.answered = 0
                wait_for(lambda: balancer.answered > 20, "calls are answered")
            finally:
                balancer.end()
            for ended in work:
                ended.result(60)
    assert balancer.failed == []
