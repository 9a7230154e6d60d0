"""Two gateways on a real Redis server: a call asks at one and is answered at the other; Redis may go meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from pml_gateway.errors import GatewayError
from pml_gateway.owner.approvals import ApprovalAnswer, answered_approval, asked_approvals
from pml_gateway.paths import Paths
from pml_gateway.storage.redis import MAX_PAUSE_SECONDS
from tests.support.process import GatewayProcess, run_pml, running_gateway
from tests.support.raw import result_modern
from tests.support.redis_server import RealRedis, real_redis
from tests.support.replicas import KEYS, replica_processes, script, variables
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(240)]

BACK_SECONDS = 3 * MAX_PAUSE_SECONDS

SERVER = """
import sys
from fastmcp import FastMCP
server = FastMCP("disk")
@server.tool(annotations={"destructiveHint": True})
def wipe(name: str) -> str:
    "Wipe a disk."
    with open(sys.argv[1], "a") as wiped:
        print(name, file=wiped, flush=True)
    return f"wiped {name}"
@server.tool(annotations={"readOnlyHint": True})
def look(name: str) -> str:
    "Look at a disk."
    return f"{name} is there"
server.run(show_banner=False)
"""


@dataclass
class Stand:
    """Two gateways, their Redis server, and what their servers have wiped."""

    gateways: list[GatewayProcess]
    redis: RealRedis
    wiped_file: Path
    threads: ThreadPoolExecutor

    @property
    def wiped(self) -> list[str]:
        return self.wiped_file.read_text(encoding="utf-8").split() if self.wiped_file.exists() else []

    def call(self, at: int, name: str, tool: str = "wipe", who: str = "anna") -> str:
        """The outcome of a call at one gateway: its text, or the code of the error."""
        given = {"name": "call_tool", "arguments": {"name": f"disk__{tool}", "arguments": {"name": name}}}
        result = result_modern(self.gateways[at].url, "tools/call", given, key=KEYS[who], timeout=100)
        found: dict[str, Any] = result.get("structuredContent") or {}
        error = found.get("error")
        if error is None:
            return str(result["content"][0]["text"])
        return f"{error['code']}{' retryable' if error['retryable'] else ''}"

    def calling(self, at: int, name: str) -> Future[str]:
        """The same, while it is under way."""
        return self.threads.submit(self.call, at, name)

    def pml(self, at: int, *words: str) -> Any:
        """What a command prints on the machine of one gateway."""
        done = run_pml(self.gateways[at].home, *words, "--json", extra=variables(self.redis.url))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def waiting(self, at: int, *, is_held: bool = True) -> list[str]:
        """The ids of what waits as one gateway shows it, once it answers."""
        try:
            # As `pml approvals list` does, without the time for its start: a call is held for 45 seconds at most.
            rows, _ = anyio.run(asked_approvals, self.paths(at))
        except GatewayError:
            return []
        return [row["id"] for row in rows if row["state"] == "pending" and row["is_held"] >= is_held]

    def answer(self, at: int, id_: str, answer: ApprovalAnswer = "approve") -> None:
        """Answer an approval as a command does on the machine of one gateway."""
        anyio.run(answered_approval, self.paths(at), id_, answer)

    def paths(self, at: int) -> Paths:
        """The files of one gateway."""
        home = str(self.gateways[at].home)
        return Paths.from_environ({"PML_HOME": home, "HOME": home})

    def held(self, at: int) -> str:
        """The id of the call that is held, as soon as one gateway shows it."""
        wait_for(lambda: bool(self.waiting(at)), "a call is held", BACK_SECONDS)
        [id_] = self.waiting(at)
        return id_


@pytest.fixture(scope="module")
def redis(redis_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRedis]:
    with real_redis(redis_program, tmp_path_factory.mktemp("redis")) as server:
        yield server


@contextmanager
def stand(redis: RealRedis, folder: Path, hold_seconds: float = 45) -> Iterator[Stand]:
    wiped = folder / "wiped.txt"
    servers = {"disk": script(folder, SERVER, wiped)}
    rules = [{"match": {"effect": "destructive"}, "do": "ask"}]
    approvals = {"hold_seconds": hold_seconds, "notify": False}
    with (
        replica_processes(redis.url, folder, 2, servers, "disk__wipe", rules=rules, approvals=approvals) as started,
        ThreadPoolExecutor(16) as threads,
    ):
        yield Stand(started, redis, wiped, threads)


@pytest.fixture(scope="module")
def both(redis: RealRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """Two gateways for the tests that end neither; each test has disks of its own."""
    with stand(redis, tmp_path_factory.mktemp("both")) as both:
        yield both


def test_a_held_call_goes_on_when_its_owner_answers_at_the_other_machine(both: Stand) -> None:
    call = both.calling(0, "held")
    id_ = both.held(1)
    assert both.pml(1, "approvals", "show", id_)["calls"][0]["arguments"] == {"name": "held"}
    assert "held" not in both.wiped
    both.pml(1, "approvals", "approve", id_)
    assert call.result(30) == "wiped held"
    denied = both.calling(1, "denied")
    both.answer(0, both.held(0), "deny")
    assert denied.result(30) == "FORBIDDEN"
    assert both.call(0, "denied") == "FORBIDDEN"
    assert "denied" not in both.wiped
    assert both.wiped.count("held") == 1


def test_the_owners_token_lists_and_answers_the_calls_of_all_machines(both: Stand) -> None:
    token = both.pml(1, "keys", "add", "--owner")["key"]
    call = both.calling(0, "token")
    id_ = both.held(0)
    approvals = both.gateways[1].url.removesuffix("/mcp") + "/owner/approvals"
    with httpx2.Client(headers={"Authorization": f"Bearer {token}"}) as owner:
        assert id_ in [row["id"] for row in owner.get(approvals).json()]
        answered = owner.post(f"{approvals}/{id_}", json={"answer": "approve", "for": "call"})
        assert answered.json()["state"] == "approved"
    assert call.result(30) == "wiped token"
    assert both.wiped.count("token") == 1


def test_calls_of_both_machines_at_once_are_made_as_often_as_was_approved(redis: RealRedis, tmp_path: Path) -> None:
    with stand(redis, tmp_path, hold_seconds=0) as both:
        assert both.call(0, "mine") == "PENDING_APPROVAL retryable"
        [id_] = both.waiting(1, is_held=False)
        both.answer(1, id_)
        outcomes = [each.result(60) for each in [both.calling(number % 2, "mine") for number in range(12)]]
        assert sorted(set(outcomes)) == ["PENDING_APPROVAL retryable", "wiped mine"]
        assert outcomes.count("wiped mine") == 1
    assert both.wiped == ["mine"]


def test_a_call_is_held_over_a_restart_of_redis_and_made_once(both: Stand, redis: RealRedis) -> None:
    token = both.pml(1, "keys", "add", "--owner")["key"]
    call = both.calling(0, "restarted")
    id_ = both.held(1)
    redis.stop()
    try:
        assert both.call(1, "restarted") == "INTERNAL retryable"
        approvals = both.gateways[1].url.removesuffix("/mcp") + "/owner/approvals"
        for path in ("", f"/{id_}"):
            answer = httpx2.get(approvals + path, headers={"Authorization": f"Bearer {token}"})
            assert (answer.status_code, answer.json()["error"]["retryable"]) == (503, True)
        assert both.call(1, "restarted", "look") == "restarted is there"
        with pytest.raises(GatewayError, match=r"storage\.url"):
            anyio.run(asked_approvals, both.paths(1))
    finally:
        redis.start()
    wait_for(lambda: id_ in both.waiting(1), "the approval is known again", BACK_SECONDS)
    both.answer(1, id_)
    assert call.result(60) == "wiped restarted"
    again = both.calling(1, "restarted")
    anew = both.held(0)
    assert anew != id_
    both.answer(0, anew, "deny")
    assert again.result(30) == "FORBIDDEN"
    assert both.wiped.count("restarted") == 1


def test_what_redis_has_forgotten_is_asked_about_anew(both: Stand, redis: RealRedis) -> None:
    call = both.calling(0, "forgotten")
    id_ = both.held(1)
    redis.stop()
    redis.forget()
    redis.start()
    assert call.result(60) == "PENDING_APPROVAL retryable"
    again = both.calling(1, "forgotten")
    anew = both.held(0)
    assert anew != id_
    both.answer(0, anew)
    assert again.result(60) == "wiped forgotten"
    assert both.wiped.count("forgotten") == 1


def test_a_gateway_that_is_killed_while_it_holds_a_call_loses_no_approval(redis: RealRedis, tmp_path: Path) -> None:
    with stand(redis, tmp_path) as both:
        call = both.calling(0, "mine")
        id_ = both.held(1)
        both.gateways[0].process.kill()
        assert call.exception(30) is not None
        both.answer(1, id_)
        assert both.call(1, "mine") == "wiped mine"
    assert both.wiped == ["mine"]


def test_an_approval_that_was_used_after_the_snapshot_redis_starts_with_is_asked_about_anew(
    redis_program: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with real_redis(redis_program, data, logs_changes=False) as redis, stand(redis, tmp_path, hold_seconds=0) as both:
        for name in ("mine", "kept"):
            assert both.call(0, name) == "PENDING_APPROVAL retryable"
        for id_ in both.waiting(1, is_held=False):
            both.answer(1, id_)
        redis.snapshot()
        assert both.call(1, "mine") == "wiped mine"
        redis.stop()
        redis.start()
        settings = json.loads(both.gateways[0].config.read_text(encoding="utf-8"))
        with running_gateway(tmp_path / "late", settings, extra=variables(redis.url)) as late:
            both.gateways.append(late)
            wait_for(lambda: both.call(2, "other", "look") == "other is there", "its server is listed")
            assert both.call(2, "mine") == "PENDING_APPROVAL retryable"
            # Nothing tells it from the one that was used.
            assert both.call(2, "kept") == "PENDING_APPROVAL retryable"
            for id_ in both.waiting(2, is_held=False):
                both.answer(2, id_)
            assert both.call(2, "kept") == "wiped kept"
    assert both.wiped == ["mine", "kept"]
