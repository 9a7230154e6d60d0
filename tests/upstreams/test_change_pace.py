"""Servers whose lists change all the time are listened to less often; others at once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from pml_gateway.gateway.gateway import open_gateway
from pml_gateway.mcp.listing import DueLists, ListKind
from pml_gateway.upstreams import lister
from pml_gateway.upstreams.lister import CHANGES_SECONDS, FREE_CHANGES, LONGEST_PAUSE, ChangePace
from tests.support.memory import MemoryStreams, paths_in, settings_for
from tests.support.scripted_server import PROMPTS, ScriptedServer, prompt, tool
from tests.support.waiting import until

pytestmark = pytest.mark.field("A6")

HOUR = 3600.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_first_changes_are_followed_at_once_and_each_further_one_later() -> None:
    pace = ChangePace(Clock())
    assert [pace.note() for _ in range(FREE_CHANGES)] == [0.0] * FREE_CHANGES
    assert [pace.note() for _ in range(10)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, LONGEST_PAUSE]


def test_a_pause_passes() -> None:
    clock = Clock()
    pace = ChangePace(clock)
    for _ in range(FREE_CHANGES + 3):
        pace.note()
    assert pace.remaining == 4
    clock.now += 3
    assert pace.remaining == 1
    clock.now += 10
    assert pace.remaining == 0


def followed(changes_every: float, seconds: float) -> int:
    """Count the changes that are looked at of a server which changes so often for so long."""
    clock = Clock()
    pace, end, count = ChangePace(clock), clock.now + seconds, 0
    while clock.now < end:
        pause = pace.note()
        count += 1
        clock.now += max(changes_every, pause)
    return count


@pytest.mark.parametrize(("changes_every", "most"), [(0.05, 150), (1, 150), (5, 150), (20, 150)])
def test_a_server_that_changes_all_the_time_is_followed_a_few_times_a_minute(changes_every: float, most: int) -> None:
    assert followed(changes_every, HOUR) <= most


@pytest.mark.parametrize("changes_every", [61, 120, 600])
def test_a_server_that_changes_now_and_then_is_followed_at_once(changes_every: float) -> None:
    assert followed(changes_every, HOUR) == -(-HOUR // changes_every)


def test_a_server_that_has_come_to_rest_is_followed_at_once_again() -> None:
    clock = Clock()
    pace = ChangePace(clock)
    for _ in range(100):
        pace.note()
    clock.now += CHANGES_SECONDS + 1
    assert [pace.note() for _ in range(FREE_CHANGES)] == [0.0] * FREE_CHANGES


@pytest.mark.anyio
async def test_a_pause_ends_no_longer_rest() -> None:
    due = DueLists()
    due.rest({ListKind.TOOLS}, HOUR)
    due.quiet({ListKind.TOOLS, ListKind.PROMPTS}, 0)
    assert due.take(frozenset(ListKind)) == frozenset(ListKind) - {ListKind.TOOLS}


Change = Callable[[ScriptedServer, int], None]


def another_tool(server: ScriptedServer, number: int) -> None:
    server.tools.append(tool(f"t{number}"))


def another_description(server: ScriptedServer, number: int) -> None:
    server.tools[0] = tool("t", f"Does {number} things.")


def a_tool_more_or_less(server: ScriptedServer, number: int) -> None:
    server.tools[:] = [tool("t")] if number % 2 else [tool("t"), tool("u")]


@pytest.mark.anyio
@pytest.mark.parametrize("change", [another_tool, another_description, a_tool_more_or_less])
@pytest.mark.slow
async def test_after_many_changes_an_announcement_waits_and_the_owner_does_not(
    tmp_path: Path, change: Change, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lister, "FIRST_PAUSE", HOUR)
    monkeypatch.setattr(lister, "LONGEST_PAUSE", HOUR)
    caplog.set_level(logging.INFO, "pml_gateway.upstreams.lister")
    server = ScriptedServer([tool("t")], methods=PROMPTS, prompts=[prompt("p")])
    streams, settings = MemoryStreams({"up": server}), settings_for({"up": server})

    async def announce(also: str = "") -> None:
        lists, prompts = server.lists, server.count("prompts/list")
        await server.announce_change()
        if also:
            await server.announce(also)
            await until(lambda: server.count("prompts/list") > prompts)
        else:
            await until(lambda: server.lists > lists)

    async with open_gateway(settings, paths_in(tmp_path), identity="t", open_streams=streams) as gateway:
        with anyio.fail_after(60):
            await gateway.refresh(30)
            for number in range(FREE_CHANGES + 1):
                change(server, number)
                await announce()
            lists = server.lists
            for number in range(3):
                change(server, 100 + number)
                await announce(also="prompts")
            assert server.lists == lists, "tools are listened to less often, prompts as before"
            server.tools.append(tool("last"))
            await gateway.refresh(30)
        assert gateway.state.catalog.by_name("up__last") is not None
    assert [record.getMessage() for record in caplog.records if "change all the time" in record.getMessage()]


@pytest.mark.anyio
async def test_announcements_of_a_list_that_stays_the_same_cost_no_pause(tmp_path: Path) -> None:
    server = ScriptedServer([tool("t")])
    streams, settings = MemoryStreams({"up": server}), settings_for({"up": server})
    async with open_gateway(settings, paths_in(tmp_path), identity="t", open_streams=streams) as gateway:
        with anyio.fail_after(60):
            await gateway.refresh(30)
            for _ in range(FREE_CHANGES * 2):
                lists = server.lists
                await server.announce_change()
                await until(lambda lists=lists: server.lists > lists)
            server.tools.append(tool("new"))
            await server.announce_change()
            await until(lambda: gateway.state.catalog.by_name("up__new") is not None)
