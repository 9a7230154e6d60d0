"""Two machines that share a real Redis server: keys, accepted definitions and names are the same at both."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.example_queries.library import definition_digest
from tests.support.process import GatewayProcess, run_pml, running_gateway
from tests.support.raw import HandshakeSession, post_modern, result_modern
from tests.support.redis_server import RealRedis, real_redis
from tests.support.replicas import replica_settings, script, variables
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(240)]

SERVER = """
import sys
from pathlib import Path
from fastmcp import FastMCP
from fastmcp.server.middleware import Middleware
server = FastMCP("notes")
@server.tool
def note(text: str) -> str:
    return text
class Described(Middleware):
    async def on_list_tools(self, context, call_next):
        description = Path(sys.argv[1]).read_text()
        return [tool.model_copy(update={"description": description}) for tool in await call_next(context)]
server.add_middleware(Described())
server.run(show_banner=False)
"""


@pytest.fixture
def redis(redis_program: Path) -> Iterator[RealRedis]:
    with real_redis(redis_program) as server:
        yield server


@dataclass
class Machine:
    """A gateway, and the commands of its owner there."""

    gateway: GatewayProcess
    extra: dict[str, str]

    def pml(self, *arguments: str, code: int = 0) -> str:
        done = run_pml(self.gateway.home, *arguments, extra=self.extra)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    def status(self, key: str) -> int:
        return post_modern(self.gateway.url, "tools/list", key=key).status_code

    def tools(self, key: str | None) -> dict[str, str]:
        listed = result_modern(self.gateway.url, "tools/list", key=key)["tools"]
        return {tool["name"]: tool.get("description", "") for tool in listed}


@contextmanager
def two_machines(redis: RealRedis, folder: Path, **more: Any) -> Iterator[tuple[Machine, Machine]]:
    """Two machines of one configuration, which lies in another folder at each, with a server that describes itself."""
    description = folder / "description.txt"
    description.write_text("Takes a note.", encoding="utf-8")
    settings = replica_settings(
        {"notes": script(folder, SERVER, description)},
        **{"clients": {"ci": {}}, "gateway": {"tools_exposure": "full_proxy"}, **more},
    )
    with machine(folder / "one", settings, redis) as one, machine(folder / "two", settings, redis) as two:
        yield one, two


@contextmanager
def machine(home: Path, settings: dict[str, Any], redis: RealRedis) -> Iterator[Machine]:
    extra = variables(redis.url)
    with running_gateway(home, settings, extra=extra) as gateway:
        yield Machine(gateway, extra)


def test_a_key_made_at_one_machine_opens_the_other_until_it_is_revoked(redis: RealRedis, tmp_path: Path) -> None:
    with two_machines(redis, tmp_path) as (one, two):
        key = one.pml("keys", "add", "ci").strip()
        [entry] = json.loads(two.pml("keys", "list", "--json"))["keys"]
        wait_for(lambda: two.status(key) == 200, "the other machine knows the key")
        with HandshakeSession(two.gateway.url, key=key) as session:
            assert session.send("tools/list").status_code == 200
            one.pml("keys", "revoke", entry["id"], "--yes")
            wait_for(
                lambda: any("no longer in force" in line for line in two.gateway.log), "what the key had open has ended"
            )
            assert session.send("tools/list").status_code == 401
        assert one.status(key) == two.status(key) == 401
        again = two.pml("keys", "add", "ci").strip()
        wait_for(lambda: one.status(again) == 200, "and the other way round")
        redis.stop()
        try:
            assert "storage.url" in one.pml("keys", "add", "ci", code=1)
            assert one.status(again) == two.status(again) == 200
        finally:
            redis.start()
        # The server has lost everything, and is filled by those who know.
        wait_for(lambda: "ci" in fresh(one, tmp_path, again), "a machine with an empty folder knows the key")


def fresh(machine: Machine, folder: Path, key: str) -> str:
    """List the keys in an empty folder with the same configuration."""
    home = folder / str(time.monotonic_ns())
    home.mkdir()
    (home / "config.yaml").write_bytes(machine.gateway.config.read_bytes())
    return run_pml(home, "keys", "list", extra=machine.extra).stdout


def test_a_change_accepted_at_one_machine_is_served_by_the_other(redis: RealRedis, tmp_path: Path) -> None:
    with two_machines(redis, tmp_path, trust={"changes": "review"}) as machines:
        one, two = machines
        key = one.pml("keys", "add", "ci").strip()
        for each in machines:
            wait_for(partial(lambda each: each.status(key) == 200, each), "the key is known")
            wait_for(partial(lambda each: "notes__note" in each.tools(key), each), "the tool is served")
        (tmp_path / "description.txt").write_text("Takes a note and files it.", encoding="utf-8")
        for each in machines:
            each.gateway.process.send_signal(signal.SIGHUP)
        for each in machines:
            wait_for(partial(lambda each: "notes:note" in each.pml("trust", "list"), each), "the change waits")
            assert each.tools(key)["notes__note"] == "Takes a note."
        two.pml("trust", "approve", "notes:note")
        wait_for(lambda: "files it" in one.tools(key)["notes__note"], "it is served at the other")
        wait_for(lambda: "files it" in two.tools(key)["notes__note"], "and here")
        one.pml("trust", "reject", "notes:note")
        wait_for(lambda: "notes__note" not in two.tools(key), "what is rejected is gone at the other")
        wait_for(lambda: "notes__note" not in one.tools(key), "and here")
        assert json.loads(one.pml("trust", "list", "--all", "--json")) == json.loads(
            two.pml("trust", "list", "--all", "--json")
        )


def test_a_machine_that_was_away_while_redis_lost_everything_knows_no_revoked_key(
    redis: RealRedis, tmp_path: Path
) -> None:
    with two_machines(redis, tmp_path) as (one, two):
        made = json.loads(one.pml("keys", "add", "ci", "--json"))
        revoked, kept = made["key"], one.pml("keys", "add", "ci").strip()
        wait_for(lambda: two.status(revoked) == two.status(kept) == 200, "both know both keys")
        settings = json.loads(two.gateway.config.read_text(encoding="utf-8"))
        two.gateway.stop()
        one.pml("keys", "revoke", made["id"], "--yes")
        redis.stop()
        redis.start()
        with machine(two.gateway.home, settings, redis) as back:
            wait_for(lambda: back.status(revoked) == 401, "it is told")
            assert back.status(kept) == one.status(kept) == 200
            # When all of them have filled what was lost.
            added = back.pml("keys", "add", "ci").strip()
            wait_for(lambda: one.status(added) == 200, "and both follow each other")
            assert [each.status(revoked) for each in (one, back)] == [401, 401]


TWIN = """
import sys, time
from fastmcp import FastMCP
time.sleep(float(sys.argv[2]))
server = FastMCP(sys.argv[1])
@server.tool
def note() -> str:
    "Say who this is."
    return sys.argv[1]
server.run(show_banner=False)
"""


def test_machines_with_empty_folders_give_the_same_names_whichever_server_is_slow(
    redis: RealRedis, tmp_path: Path
) -> None:
    def settings(**seconds: float) -> dict[str, Any]:
        servers = {name: script(tmp_path, TWIN, name, delay) for name, delay in seconds.items()}
        sections = {"gateway": {"tools_exposure": "full_proxy"}, "naming": {"prefix": "on_collision"}}
        return replica_settings(servers, clients={}, **sections)

    with (
        machine(tmp_path / "one", settings(ada=0, ben=6), redis) as one,
        machine(tmp_path / "two", settings(ada=6, ben=0), redis) as two,
    ):
        said = []
        for each in (one, two):
            wait_for(partial(lambda each: len(each.tools(None)) == 2, each), "both servers are listed")
            names = sorted(each.tools(None))
            called = [result_modern(each.gateway.url, "tools/call", {"name": name, "arguments": {}}) for name in names]
            said.append({name: answer["content"][0]["text"] for name, answer in zip(names, called, strict=True)})
    assert said[0] == said[1]
    assert set(said[0].values()) == {"ada", "ben"}
    assert "note" in said[0]


def test_example_queries_imported_at_one_machine_are_searched_by_at_the_other(redis: RealRedis, tmp_path: Path) -> None:
    with two_machines(redis, tmp_path, clients={}) as (one, two):
        for each in (one, two):
            wait_for(partial(lambda each: "notes__note" in each.tools(None), each), "the tool is served")
        digest = definition_digest("note", "Takes a note.", ["text"])
        entry = {"digest": digest, "name": "note", "server": "notes", "origin": "owner"}
        lines = tmp_path / "examples.jsonl"
        lines.write_text(json.dumps({**entry, "examples": ["jot down what the plumber said"]}), encoding="utf-8")
        one.pml("example-queries", "import", str(lines))
        file = two.gateway.home / "example-queries" / "shared.json"
        wait_for(lambda: file.exists() and "plumber" in file.read_text(encoding="utf-8"), "it is at the other")
        assert "plumber" in two.pml("example-queries", "show", "notes__note")
