"""Work in other processes: made and ended within limits, and never left behind."""

from __future__ import annotations

import operator
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from pml_gateway.processes.workers import MAX_WORKERS, Limit, WorkerLimitError, open_workers
from tests.support.process import is_alive
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

ENDLESS = range(10**15)
LONG = 600.0
"""Seconds of processor time that no test waits for."""


async def test_a_process_is_started_for_the_first_work_and_used_again() -> None:
    async with open_workers() as workers:
        assert workers.pids == []
        first = await workers.in_process(os.getpid, seconds=LONG)
        assert first != os.getpid()
        assert workers.pids == [first]
        assert await workers.in_process(os.getpid, seconds=LONG) == first
    assert not is_alive(first)


async def test_work_that_takes_too_long_is_ended_and_the_next_is_done() -> None:
    async with open_workers() as workers:
        with pytest.raises(WorkerLimitError) as caught:
            await workers.in_process(sum, ENDLESS, seconds=0.05)
        assert caught.value.limit is Limit.TIME
        assert workers.pids == []
        assert await workers.in_process(sum, [1, 2], seconds=LONG) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no limit of memory is kept")
async def test_work_that_takes_too_much_memory_is_ended() -> None:
    async with open_workers() as workers:
        with pytest.raises(WorkerLimitError) as caught:
            await workers.in_process(operator.mul, "x", 10**10, seconds=LONG)
        assert caught.value.limit is Limit.MEMORY


async def test_a_client_with_much_work_holds_nobody_elses_up() -> None:
    async with open_workers() as workers, anyio.create_task_group() as tasks:
        done: list[str] = []

        async def in_process(quota_key: str, seconds: float) -> None:
            with pytest.raises(WorkerLimitError):
                await workers.in_process(sum, ENDLESS, seconds=seconds, quota_key=quota_key)
            done.append(quota_key)

        async def in_thread(quota_key: str, seconds: float) -> None:
            await workers.in_thread(time.sleep, seconds, quota_key=quota_key)
            done.append(quota_key)

        for work in (in_process, in_thread):
            done.clear()
            for _ in range(8):
                tasks.start_soon(work, "a", 0.1)
            await anyio.lowlevel.checkpoint()
            await work("b", 0.1)
            assert len(done) <= 1 + MAX_WORKERS + 1
            await until(lambda: len(done) == 9)


async def test_cancelled_work_ends_at_once() -> None:
    async with open_workers() as workers:
        async with anyio.create_task_group() as tasks:

            async def work() -> None:
                await workers.in_process(sum, ENDLESS, seconds=LONG)

            tasks.start_soon(work)
            await until(lambda: workers.pids)
            [pid] = workers.pids
            tasks.cancel_scope.cancel()
        assert not is_alive(pid)


async def test_work_in_progress_ends_with_its_gateway() -> None:
    async with anyio.create_task_group() as tasks:
        async with open_workers() as workers:

            async def work() -> None:
                with pytest.raises(WorkerLimitError):
                    await workers.in_process(sum, ENDLESS, seconds=LONG)

            tasks.start_soon(work)
            await until(lambda: workers.pids)
            [pid] = workers.pids
        assert not is_alive(pid)


async def test_nothing_is_begun_once_they_are_closed() -> None:
    async with open_workers() as workers:
        pass
    with pytest.raises(WorkerLimitError):
        await workers.in_process(os.getpid, seconds=LONG)
    assert workers.pids == []


async def test_work_does_not_wait_for_ever_for_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_workers() as workers, anyio.create_task_group() as tasks:

        async def work() -> None:
            await workers.in_process(sum, ENDLESS, seconds=LONG)

        for _ in range(MAX_WORKERS):
            tasks.start_soon(work)
        await until(lambda: len(workers.pids) == MAX_WORKERS)
        monkeypatch.setattr("pml_gateway.processes.workers.WAIT_SECONDS", 0.05)
        with pytest.raises(WorkerLimitError) as caught:
            await workers.in_process(os.getpid, seconds=LONG)
        assert caught.value.limit is Limit.MACHINE
        tasks.cancel_scope.cancel()


async def test_a_process_knows_nothing_of_its_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PML_TEST_SECRET", "hunter22")
    async with open_workers() as workers:
        assert await workers.in_process(os.getenv, "PML_TEST_SECRET", seconds=LONG) is None
        for descriptor in (0, 1, 2):
            assert await workers.in_process(os.readlink, f"/proc/self/fd/{descriptor}", seconds=LONG) == os.devnull


async def test_nothing_but_plain_values_comes_back() -> None:
    async with open_workers() as workers:
        with pytest.raises(WorkerLimitError):
            await workers.in_process(Path, "/", seconds=LONG)


GATEWAY = """
import anyio, sys
from pml_gateway.processes.workers import open_workers

async def main():
    async with open_workers() as workers, anyio.create_task_group() as tasks:
        async def work():
            await workers.in_process(sum, range(10**15), seconds=0.3)
        if sys.argv[1] == "busy":
            tasks.start_soon(work)
        else:
            await workers.in_process(sum, [1], seconds=600)
        while not workers.pids:
            await anyio.sleep(0.01)
        print(workers.pids[0], flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


def gateway_that_is(state: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", GATEWAY, state], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("state", ["idle", "busy"])
async def test_a_gateway_that_is_killed_leaves_no_process_behind(state: str) -> None:
    with gateway_that_is(state) as gateway:
        assert gateway.stdout is not None
        pid = int(await anyio.to_thread.run_sync(gateway.stdout.readline))
        gateway.send_signal(signal.SIGKILL)
        await until(lambda: not is_alive(pid))


def test_the_program_imports_nothing_of_the_package() -> None:
    program = Path("pml_gateway/processes/worker.py")
    source = (Path(__file__).parents[2] / program).read_text(encoding="utf-8")
    assert "pml_gateway" not in source
