"""Real replicas behind the shipped configurations of haproxy and nginx, as the page on replicas has them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.balancers import Balancer, balanced
from tests.support.process import GatewayProcess, running_gateway
from tests.support.raw import HandshakeSession, decoded, events_modern, post_modern, result_modern
from tests.support.redis_server import RealRedis
from tests.support.replicas import KEYS, replica_processes, script
from tests.support.skipping import unavailable
from tests.support.waiting import wait_for

from .install import Installation, InstallationError, install_balancer

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(240)]

KEY = KEYS["anna"]
DRAIN_SECONDS = 4
BALANCERS: tuple[Balancer, ...] = ("haproxy", "nginx")
SERVER = """
import os, time
from fastmcp import Context, FastMCP
server = FastMCP("work")
@server.tool
async def wait_for(path: str, ctx: Context) -> str:
    "Report progress, and wait for a file."
    import anyio
    await ctx.report_progress(1, 2)
    while not os.path.exists(path):
        await anyio.sleep(0.02)
    return "done"
@server.tool
def process() -> str:
    "Return the number of this process."
    return str(os.getpid())
server.run(show_banner=False)
"""


@pytest.fixture(scope="module")
def redis_url(redis: RealRedis) -> str:
    return redis.url


@contextmanager
def replicas(url: str, folder: Path, **http: Any) -> Iterator[list[GatewayProcess]]:
    """Run three replicas with a server of their own each."""
    with replica_processes(url, folder, 3, {"work": script(folder, SERVER)}, "work__process", http=http) as started:
        yield started


@contextmanager
def fronted(name: Balancer, started: list[GatewayProcess], folder: Path) -> Iterator[str]:
    """Run a load balancer in front of replicas."""
    try:
        program = install_balancer(name)
    except InstallationError as exc:
        unavailable(exc)
    with balanced(name, program, [each.url for each in started], folder) as url:
        yield url


@pytest.fixture(scope="module")
def three(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[GatewayProcess]]:
    """Three replicas for the tests that leave them as they are."""
    with replicas(redis_url, tmp_path_factory.mktemp("three")) as started:
        yield started


@pytest.fixture(params=BALANCERS)
def front(request: pytest.FixtureRequest, three: list[GatewayProcess], tmp_path: Path) -> Iterator[str]:
    """The URL of a load balancer in front of them."""
    with fronted(request.param, three, tmp_path) as url:
        yield url


def text_of(result: dict[str, Any]) -> str:
    text: str = result["content"][0]["text"]
    return text


def test_every_replica_gets_requests_and_a_session_works_through_all(front: str) -> None:
    call = {"name": "work__process", "arguments": {}}
    modern = {text_of(result_modern(front, "tools/call", call, key=KEY)) for _ in range(30)}
    with HandshakeSession(front, key=KEY) as session:
        of_session = {text_of(session.result("tools/call", call)) for _ in range(10)}
    assert len(modern) == 3
    assert len(of_session) == 1


def test_progress_arrives_while_a_call_runs(front: str, tmp_path: Path) -> None:
    file = tmp_path / "go"
    params = {"name": "work__wait_for", "arguments": {"path": str(file)}, "_meta": {"progressToken": "p"}}
    seen = []
    for message in events_modern(front, "tools/call", params, key=KEY):
        seen.append(message.get("method", "result"))
        file.touch()
    assert seen == ["notifications/progress", "result"]


def test_no_call_is_lost_while_one_replica_after_the_other_is_restarted(redis_url: str, tmp_path: Path) -> None:
    call = {"name": "work__process", "arguments": {}}
    failed: list[str] = []
    processes: dict[str, list[str]] = {name: [] for name in BALANCERS}
    stop = threading.Event()

    def ask(name: str, url: str) -> None:
        while not stop.is_set():
            answer = post_modern(url, "tools/call", call, key=KEY)
            try:
                processes[name].append(text_of(decoded(answer)["result"]))
            except (KeyError, ValueError):
                failed.append(f"{name}: {answer.status_code} {answer.text[:300]}")

    with (
        replicas(redis_url, tmp_path, drain_seconds=DRAIN_SECONDS, shutdown_seconds=20) as started,
        ExitStack() as stack,
    ):
        fronts = {name: stack.enter_context(fronted(name, started, tmp_path / name)) for name in BALANCERS}
        askers = [threading.Thread(target=ask, args=each, daemon=True) for each in fronts.items() for _ in range(2)]
        for asker in askers:
            asker.start()
        for each in started[:2]:
            wait_for(
                lambda: all(len(set(answered[-30:])) > 1 for answered in processes.values()), "several replicas answer"
            )
            assert each.stop() == 0
        stop.set()
        for asker in askers:
            asker.join(30)
    assert failed == []
    assert [len(set(answered)) for answered in processes.values()] == [3, 3]


def test_a_server_with_memory_is_run_once_behind_a_gateway_of_its_own(
    installation: Installation, redis_url: str, tmp_path: Path
) -> None:
    program = [str(installation.node), str(installation.script("@modelcontextprotocol/server-memory"))]
    alone = {
        "gateway": {"tools_exposure": "full_proxy"},
        "naming": {"prefix": "never"},
        "clients": {"replicas": {"key": "${env:MEMORY_KEY}"}},
        "servers": {
            "memory": {
                "command": program[0],
                "args": program[1:],
                "env": {"MEMORY_FILE_PATH": str(tmp_path / "memory.json")},
            }
        },
    }
    memory_key = "the key of all replicas, long enough"
    with running_gateway(tmp_path / "memory", alone, extra={"MEMORY_KEY": memory_key}) as memory:
        headers = {"Authorization": f"Bearer {memory_key}"}
        servers = {"memory": {"url": memory.url, "headers": headers}}
        with replica_processes(redis_url, tmp_path, 2, servers, "memory__read_graph") as (one, two):
            entity = {"name": "Ada", "entityType": "person", "observations": ["writes programs"]}
            arguments = {"entities": [entity]}
            result_modern(one.url, "tools/call", {"name": "memory__create_entities", "arguments": arguments}, key=KEY)
            with HandshakeSession(two.url, key=KEY) as session:
                graph = session.result("tools/call", {"name": "memory__read_graph", "arguments": {}})
    assert "writes programs" in json.dumps(graph)
