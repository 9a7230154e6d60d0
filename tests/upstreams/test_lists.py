"""Lists of upstreams that are large, endless or against the protocol: nobody waits for them, and nothing is kept."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.exceptions import MCPError

from pml_gateway.gateway.gateway import Gateway, open_gateway
from pml_gateway.mcp.listing import DueLists, ListKind
from pml_gateway.upstreams.lister import FIRST_REST, LAST_REST
from pml_gateway.upstreams.pages import MAX_LIST_BYTES, MEASURED_AT_ONCE
from tests.support.memory import MemoryStreams, paths_in, settings_for
from tests.support.scripted_server import PROMPTS, Definition, ScriptedServer, prompt, tool
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

MARK = "made for this test"


class Endless(list[Definition]):
    """A list of which every page is followed by another."""

    def __init__(self, description: str) -> None:
        super().__init__()
        self.description = description

    def page(self, cursor: int) -> dict[str, Any]:
        listed = [
            {"name": f"t{cursor}_{number}", "description": self.description, "inputSchema": {}, MARK: True}
            for number in range(100)
        ]
        return {"tools": listed, "nextCursor": str(cursor + 1)}


class EndlessServer(ScriptedServer):
    """Lists tools without end while `is_endless`."""

    def __init__(self, *tools: Definition, size: int = 10, is_endless: bool = True, **more: Any) -> None:
        super().__init__(list(tools), **more)
        self.size = size
        self.is_endless = is_endless

    def _page(self, ctx: Any, key: str, definitions: Any) -> dict[str, Any]:
        if key != "tools" or not self.is_endless:
            return super()._page(ctx, key, definitions)
        return Endless("x" * self.size).page(int((ctx.params or {}).get("cursor") or 0))


def upstream_of(gateway: Gateway) -> Any:
    return gateway.pool.upstreams["up"]


def kept() -> int:
    gc.collect()
    return sum(1 for each in gc.get_objects() if type(each) is dict and MARK in each)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "words"), [(10, "more than 100000 tools"), (MAX_LIST_BYTES // 20_000, f"more than {MAX_LIST_BYTES} bytes")]
)
async def test_of_a_list_without_end_nothing_is_kept_and_the_next_attempt_is_far_off(
    tmp_path: Path, size: int, words: str
) -> None:
    server = EndlessServer(size=size)
    streams, settings = MemoryStreams({"up": server}), settings_for({"up": server}, upstreams={"connect_timeout": 60})
    async with open_gateway(settings, paths_in(tmp_path), identity="t", open_streams=streams) as gateway:
        upstream = upstream_of(gateway)
        for seconds in (FIRST_REST, FIRST_REST * 4):
            with anyio.fail_after(50):
                await gateway.refresh(50)
            assert words in str(upstream.connector.last_error)
            assert seconds / 2 < upstream.breaker.retry_after <= seconds
            assert kept() == 0
        server.is_endless, server.tools = False, [tool("sound")]
        with anyio.fail_after(50):
            assert await gateway.refresh(50), "the owner's wish is followed at once"
        assert gateway.state.catalog.by_name("up__sound") is not None


@pytest.mark.slow
async def test_a_server_whose_list_is_against_the_protocol_cannot_have_it_asked_for_again(tmp_path: Path) -> None:
    server = EndlessServer(tool("t"), is_endless=False, methods=PROMPTS, prompts=[prompt("p")])
    streams, settings = MemoryStreams({"up": server}), settings_for({"up": server}, upstreams={"connect_timeout": 60})
    async with open_gateway(settings, paths_in(tmp_path), identity="t", open_streams=streams) as gateway:
        with anyio.fail_after(50):
            await gateway.refresh(50)
            server.is_endless = True
            await gateway.refresh(50)
            after_fault = server.lists
            for _ in range(3):
                asked = server.count("prompts/list")
                await server.announce_change()
                await server.announce("prompts")
                await until(lambda asked=asked: server.count("prompts/list") > asked)
            assert server.lists == after_fault
            assert gateway.state.catalog.by_name("up__t") is not None, "tools are as listed before"
            server.is_endless = False
            server.tools.append(tool("u"))
            await gateway.refresh(50)
        assert gateway.state.catalog.by_name("up__u") is not None


async def test_prompts_against_the_protocol_rest_alone(tmp_path: Path) -> None:
    async def answer(_ctx: Any, method: str, _params: dict[str, Any]) -> dict[str, Any] | None:
        return {"prompts": [], "nextCursor": "again"} if method == "prompts/list" else None

    server = ScriptedServer([tool("t")], methods=PROMPTS, answer=answer)
    streams, settings = MemoryStreams({"up": server}), settings_for({"up": server})
    async with open_gateway(settings, paths_in(tmp_path), identity="t", open_streams=streams) as gateway:
        with anyio.fail_after(50):
            await gateway.refresh(50)
            asked = server.count("prompts/list")
            for _ in range(3):
                lists = server.lists
                await server.announce("prompts")
                await server.announce_change()
                await until(lambda lists=lists: server.lists > lists)
        assert server.count("prompts/list") == asked


@pytest.mark.parametrize("malformed", [{}, {"tools": None}, {"tools": "none"}], ids=["without", "null", "text"])
async def test_tools_that_were_malformed_once_are_asked_for_again_soon(
    tmp_path: Path, malformed: dict[str, Any]
) -> None:
    faulty: list[dict[str, Any]] = []

    class Hiccup(ScriptedServer):
        """Answers one listing with something malformed."""

        def _page(self, ctx: Any, key: str, definitions: Any) -> dict[str, Any]:
            return faulty.pop() if key == "tools" and faulty else super()._page(ctx, key, definitions)

    server = Hiccup([tool("t")])
    streams, settings = MemoryStreams({"up": server}), settings_for({"up": server})
    async with open_gateway(settings, paths_in(tmp_path), identity="t", open_streams=streams) as gateway:
        with anyio.fail_after(15):
            await gateway.refresh(15)
            faulty.append(malformed)
            server.tools.append(tool("u"))
            await server.announce_change()
            await until(lambda: gateway.state.catalog.by_name("up__u") is not None)
    assert not faulty


@pytest.mark.parametrize("code", [-32603, -32000, -32602], ids=["internal", "server", "parameters"])
async def test_prompts_that_could_not_be_listed_are_asked_for_again_and_said_to_lack(tmp_path: Path, code: int) -> None:
    is_broken = True

    async def answer(_ctx: Any, method: str, _params: dict[str, Any]) -> dict[str, Any] | None:
        if method == "prompts/list" and is_broken:
            raise MCPError(code, "the database is locked")
        return None

    server = ScriptedServer([tool("t")], methods=PROMPTS, prompts=[prompt("p")], answer=answer)
    streams, settings = MemoryStreams({"up": server}), settings_for({"up": server})
    async with open_gateway(settings, paths_in(tmp_path), identity="t", open_streams=streams) as gateway:
        lists = upstream_of(gateway).lister
        with anyio.fail_after(50):
            await gateway.refresh(50)
            assert lists.last is not None
            assert "the database is locked" in lists.last.faults[0]
            assert 0 < lists.due.rest_seconds <= FIRST_REST
            is_broken = False
            await gateway.refresh(50)
        assert [lists.last.faults, [each["name"] for each in lists.last.offers.prompts]] == [(), ["p"]]


@pytest.mark.slow
async def test_everybody_else_has_turns_while_a_page_is_measured(tmp_path: Path) -> None:
    turns = 0
    asked_at: list[int] = []

    class Counting(ScriptedServer):
        def _page(self, ctx: Any, key: str, definitions: Any) -> dict[str, Any]:
            asked_at.append(turns)
            return super()._page(ctx, key, definitions)

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    server = Counting([tool(f"t{number}") for number in range(20_000)], page_size=10_000)
    streams, settings = MemoryStreams({"up": server}), settings_for({"up": server})
    async with (
        anyio.create_task_group() as tasks,
        open_gateway(settings, paths_in(tmp_path), identity="t", open_streams=streams) as gateway,
    ):
        tasks.start_soon(count)
        with anyio.fail_after(50):
            await gateway.refresh(50)
        assert len(gateway.state.catalog.tools) == 20_000
        tasks.cancel_scope.cancel()
    first, second = asked_at[:2]
    assert second - first >= 10_000 // MEASURED_AT_ONCE


async def test_the_rest_of_a_list_grows_to_its_longest_and_ends_for_whoever_asks() -> None:
    due = DueLists()
    due.rest({ListKind.TOOLS}, LAST_REST)
    due.announce((ListKind.TOOLS,))
    assert (due.is_any, due.event.is_set(), due.take(frozenset({ListKind.TOOLS}))) == (False, False, frozenset())
    due.announce((ListKind.PROMPTS,))
    assert (due.is_any, due.event.is_set(), due.take()) == (True, True, frozenset({ListKind.PROMPTS}))
    due.add((ListKind.TOOLS,))
    assert (due.is_any, due.event.is_set(), due.take()) == (True, True, frozenset({ListKind.TOOLS}))
    due.rest({ListKind.TOOLS}, 0)
    assert due.take() == {ListKind.TOOLS}, "what rested is asked for when its rest is over"


KINDS = st.sets(st.sampled_from(ListKind), min_size=1)


@given(rested=KINDS, announced=st.lists(KINDS, max_size=5))
async def test_however_often_a_resting_list_is_announced_nobody_wakes(
    rested: set[ListKind], announced: list[set[ListKind]]
) -> None:
    due = DueLists()
    due.rest(rested, LAST_REST)
    for kinds in announced:
        due.announce(kinds)
    assert due.event.is_set() == due.is_any == bool(set().union(*announced) - rested)
    assert due.take() == set().union(*announced) - rested
