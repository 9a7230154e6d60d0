"""What the gateway of a machine tells of its servers: for whom each process runs and why, and how much they did."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.local.status import OTHERS, children_by_process, memory_of, tree_memory_of
from pml_gateway.reports.status import gateway_status
from tests.local.test_server import FULL
from tests.support.machine import TestMachine, open_machine
from tests.support.memory import MemoryStreams
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


REFUSED = "refused"


class Processes(MemoryStreams):
    """A server in memory that looks as if a process served each of its sessions; one TOKEN does not open any."""

    def __init__(self) -> None:
        super().__init__({"up": ScriptedServer([tool("hello")])})

    @asynccontextmanager
    async def __call__(
        self, upstream_id: str, definition: UpstreamDefinition, **options: Any
    ) -> AsyncIterator[tuple[Any, Any]]:
        if options["working_directory"].environ.get("TOKEN") == REFUSED:
            raise ConnectionRefusedError
        async with super().__call__(upstream_id, definition, **options) as streams:
            options["http"].pid = 1_000_000_000 + self.upstreams[upstream_id].opened
            yield streams


def opened_with(home: Path, **values: Any) -> Any:
    return open_machine(home, {}, Processes(), servers={"up": {"command": "in-memory-up", **values}}, **FULL)


def row(opened: TestMachine) -> Any:
    [found] = opened.machine.snapshot()["servers"]
    return found


async def test_processes_that_differ_by_variables_are_said_to_be_for_their_clients(tmp_path: Path) -> None:
    async with opened_with(tmp_path, env={"TOKEN": "${env:TOKEN}"}) as opened, AsyncExitStack() as stack:
        for name, token in (("a", "1"), ("b", "2"), ("c", "2"), ("d", "2"), ("e", "2")):
            client = await stack.enter_async_context(opened.attached(name, environ={"TOKEN": token}))
            await client.call("up__hello")
        told = [(each["for"], each["why"], each["clients"]) for each in row(opened)["processes"]]
    assert told == [("client a 1 (1)", OTHERS, 1), ("client b 1 (1), c 1 (1), d 1 (1) and 1 more", OTHERS, 4)]


async def test_two_processes_of_one_folder_are_told_apart(tmp_path: Path) -> None:
    values = {"env": {"TOKEN": "${env:TOKEN}"}, "sessions": "per_folder"}
    other = tmp_path / "other"
    other.mkdir()
    async with opened_with(tmp_path, **values) as opened, AsyncExitStack() as stack:
        for name, token, folder in (("a", "1", tmp_path), ("b", "2", tmp_path), ("c", "2", other)):
            client = await stack.enter_async_context(opened.attached(name, folder=folder, environ={"TOKEN": token}))
            await client.call("up__hello")
        told = [(each["for"], each["why"]) for each in row(opened)["processes"]]
    assert told == [
        (f"folder {tmp_path}", f"sessions: per_folder; {OTHERS} for client a 1 (1)"),
        (f"folder {tmp_path}", f"sessions: per_folder; {OTHERS} for client b 1 (1)"),
        (f"folder {other}", "sessions: per_folder"),
    ]


async def test_a_server_that_fails_for_some_of_its_clients_is_told_to_work_for_the_others(tmp_path: Path) -> None:
    async with (
        opened_with(tmp_path, env={"TOKEN": "${env:TOKEN}"}) as opened,
        opened.attached("a", environ={"TOKEN": "1"}) as one,
        opened.attached("b", environ={"TOKEN": REFUSED}) as other,
    ):
        await one.call("up__hello")
        await other.call("up__hello")
        told = row(opened)
        [failing] = [
            each for each in opened.profiles.gateways if each.pool.working_directory.environ["TOKEN"] == REFUSED
        ]
        assert gateway_status(failing)["upstreams"][0]["state"] == "failed"
    assert (told["state"], told["clients"], told["failed_clients"]) == ("ready", 2, 1)


async def test_a_process_is_as_old_as_its_start_and_not_as_a_gateway_that_opens_later(tmp_path: Path) -> None:
    async with opened_with(tmp_path) as opened:
        before = time.monotonic()
        async with opened.attached("a"):
            passed = time.monotonic() - before
            assert opened.machine.snapshot()["age_seconds"] >= round(passed, 3)


async def test_calls_of_a_process_that_has_ended_count_on(tmp_path: Path) -> None:
    async with (
        opened_with(tmp_path, env={"TOKEN": "${env:TOKEN}"}) as opened,
        opened.attached("a", environ={"TOKEN": "1"}) as stays,
    ):
        await stays.call("up__hello")
        async with opened.attached("b", environ={"TOKEN": "2"}) as leaves:
            await leaves.call("up__hello")
            assert row(opened)["calls"] == 2
        await until(lambda: len(row(opened)["processes"]) == 1)
        assert row(opened)["calls"] == 2


async def test_a_server_is_ready_where_only_single_clients_have_sessions(tmp_path: Path) -> None:
    async with (
        opened_with(tmp_path, sessions="per_client") as opened,
        opened.attached("a") as one,
        opened.attached("b"),
    ):
        await one.call("up__hello")
        # The process that lists it is closed after a second.
        await until(lambda: [each["for"] for each in row(opened)["processes"]] == ["client a 1 (1)"])
        assert row(opened)["state"] == "ready"


@pytest.mark.field("D3")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process takes")
def test_what_a_launcher_started_counts_as_its_own() -> None:
    large = "import sys; kept = bytearray(60_000_000); print(flush=True); sys.stdin.read()"
    words = ["sh", "-c", 'sh -c "$0 -c \\"$1\\"; true"; true', sys.executable, large]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        own, tree = memory_of(launcher.pid), tree_memory_of(launcher.pid, children_by_process())
        assert own is not None
        assert tree is not None
        assert own < 20_000_000 < 60_000_000 < tree
        launcher.communicate()
    assert tree_memory_of(launcher.pid, {}) is None
