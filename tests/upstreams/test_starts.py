"""Servers start a few at a time: those first for which most calls wait, and none keeps the others waiting for long."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from pml_gateway.upstreams import starts as module
from pml_gateway.upstreams.starts import AT_ONCE, EVERYBODY, Starts, StartTurn
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


class Queue:
    """Servers that want to start, and in which order they may."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self.starts = Starts()
        self.begun: dict[str, StartTurn] = {}
        self.calls: dict[str, int] = {}
        self._tasks = tasks

    async def want(self, name: str, calls: int, whose: str = EVERYBODY) -> anyio.CancelScope:
        self.calls[name] = calls
        scope = anyio.CancelScope()

        async def start() -> None:
            with scope:
                self.begun[name] = await self.starts.turn(lambda: self.calls[name], whose)

        self._tasks.start_soon(start)
        await anyio.lowlevel.checkpoint()
        return scope

    async def settled(self) -> list[str]:
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        return [*self.begun]


async def full(queue: Queue) -> list[str]:
    """As many as may start side by side."""
    first = [f"first{number}" for number in range(AT_ONCE)]
    for name in first:
        await queue.want(name, 0)
    assert await queue.settled() == first
    return first


async def test_the_next_is_the_one_for_which_most_calls_wait_by_then() -> None:
    async with anyio.create_task_group() as tasks:
        queue = Queue(tasks)
        first = await full(queue)
        for name, calls in {"unused": 0, "once": 1, "often": 7, "again": 1}.items():
            await queue.want(name, calls)
        assert await queue.settled() == first
        queue.calls["again"] = 9
        for at, name in enumerate(("again", "often", "once", "unused")):
            queue.begun[first[at % len(first)] if at < len(first) else "again"].end()
            assert (await queue.settled())[-1] == name
        tasks.cancel_scope.cancel()


async def test_clients_take_turns_and_the_latest_of_each_comes_first() -> None:
    async with anyio.create_task_group() as tasks:
        queue = Queue(tasks)
        begun = await full(queue)
        for name in ("a1", "a2", "a3", "b1", "b2"):
            await queue.want(name, 1, whose=name[0])
        for _ in range(5):
            queue.begun[begun[-1]].end()
            begun = await queue.settled()
        assert begun[-5:] == ["b2", "a3", "b1", "a2", "a1"]
        tasks.cancel_scope.cancel()


async def test_one_that_takes_long_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_SECONDS", 0.01)
    async with anyio.create_task_group() as tasks:
        queue = Queue(tasks)
        await full(queue)
        await queue.want("late", 0)
        await until(lambda: "late" in queue.begun)


async def test_one_that_is_not_wanted_any_more_keeps_no_place() -> None:
    async with anyio.create_task_group() as tasks:
        queue = Queue(tasks)
        first = await full(queue)
        scope = await queue.want("given up", 5)
        await queue.want("wanted", 0)
        scope.cancel()
        await queue.settled()
        queue.begun[first[0]].end()
        assert (await queue.settled())[-1] == "wanted"
        # Saying twice that a start is over gives nobody a second place.
        queue.begun[first[0]].end()
        await queue.want("another", 0)
        assert (await queue.settled())[-1] == "wanted"
        tasks.cancel_scope.cancel()
