"""Nobody who waits is forgotten, and what asks for work while it runs is not lost."""

from __future__ import annotations

import anyio
import pytest
from anyio import wait_all_tasks_blocked

from pml_gateway.signal import CoalescedSignal, Signal, first_of

pytestmark = pytest.mark.anyio

LIMIT = 60


async def test_the_first_of_several_events_ends_the_wait() -> None:
    first, second = anyio.Event(), anyio.Event()
    second.set()
    with anyio.fail_after(LIMIT):
        await first_of(first, second)
    assert not first.is_set()


async def test_a_signal_wakes_all_who_wait_and_nobody_later() -> None:
    signal, woken = Signal(), list[str]()

    async def wait(name: str) -> None:
        await signal.wait()
        woken.append(name)

    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as tasks:
            signal.set()
            tasks.start_soon(wait, "a")
            tasks.start_soon(wait, "b")
            await wait_all_tasks_blocked()
            assert not woken, "what was before says nothing"
            signal.set()
            tasks.start_soon(wait, "late")
            await wait_all_tasks_blocked()
            assert sorted(woken) == ["a", "b"]
            signal.set()
    assert sorted(woken) == ["a", "b", "late"]


async def test_a_wait_that_is_cancelled_leaves_the_others_waiting() -> None:
    signal = Signal()
    with anyio.move_on_after(0):
        await signal.wait()
    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(signal.wait)
            await wait_all_tasks_blocked()
            signal.set()


async def test_a_condition_is_looked_at_each_time_and_not_waited_for_where_it_holds() -> None:
    signal, count, reached = Signal(), 0, list[int]()

    async def until_three() -> None:
        await signal.until(lambda: count == 3)
        reached.append(count)

    with anyio.fail_after(LIMIT):
        await signal.until(lambda: count == 0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(until_three)
            for _ in range(3):
                await wait_all_tasks_blocked()
                assert not reached
                count += 1
                signal.set()
    assert reached == [3]


async def test_what_asks_before_a_run_begins_is_one_run() -> None:
    work, runs = CoalescedSignal(), 0

    async def count() -> None:
        nonlocal runs
        runs += 1

    work.ask()
    work.ask()
    assert work.is_due
    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work.run, count)
            await wait_all_tasks_blocked()
            assert (runs, work.is_due) == (1, False)
            work.ask()
            await wait_all_tasks_blocked()
            assert runs == 2
            tasks.cancel_scope.cancel()


async def test_what_asks_while_the_work_runs_is_one_more_run() -> None:
    work, runs, go_on = CoalescedSignal(), 0, Signal()

    async def slow() -> None:
        nonlocal runs
        runs += 1
        await go_on.wait()

    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work.run, slow)
            work.ask()
            await wait_all_tasks_blocked()
            work.ask()
            work.ask()
            assert (runs, work.is_due) == (1, True)
            go_on.set()
            await wait_all_tasks_blocked()
            assert (runs, work.is_due) == (2, False)
            go_on.set()
            await wait_all_tasks_blocked()
            assert runs == 2
            tasks.cancel_scope.cancel()


async def test_what_asks_within_the_time_belongs_to_the_same_run() -> None:
    work = CoalescedSignal(0.3)
    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as tasks:
            work.ask()
            tasks.start_soon(work.next)
            await wait_all_tasks_blocked()
            assert work.is_due, "it waits for others"
            work.ask()
    assert not work.is_due


async def test_work_that_fails_ends_the_loop_with_its_error() -> None:
    work = CoalescedSignal()

    async def fail() -> None:
        raise LookupError("no")

    work.ask()
    with pytest.raises(LookupError), anyio.fail_after(LIMIT):
        await work.run(fail)
