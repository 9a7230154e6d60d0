"""`gateway.follow: searches`: what a session searched for and used selects its own lists, and nobody else's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from pml_gateway.exposure.history import MAX_ENTRIES, MAX_SECONDS, Followed, SessionHistory
from pml_gateway.gateway.request import RequestScope
from pml_gateway.gateway.tool_list import list_tools
from tests.support.memory import in_memory, settings_for
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import Serving, serving
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

VERSION = "2025-11-25"
CHANGED = "notifications/tools/list_changed"
FOLLOWING: dict[str, Any] = {"follow": "searches", "tools_exposure": "semantic"}
READ, SEND = "read a file from disk", "send an email to somebody"


def upstreams() -> dict[str, ScriptedServer]:
    return {
        "fs": ScriptedServer([tool("read_file", "Reads a file from disk."), tool("make_folder", "Makes a folder.")]),
        "mail": ScriptedServer([tool("send", "Sends an email."), tool("delete", "Deletes an email.")]),
        "clock": ScriptedServer([tool("now", "Tells the current time in a time zone.")]),
    }


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pml_gateway.serve.list_changes.FOLLOWED_EVERY", 0.0)


class Session:
    """A handshake client, and what it was told."""

    def __init__(self, client: Client, told: list[str]) -> None:
        self.client = client
        self.told = told

    async def names(self) -> list[str]:
        return [each.name for each in (await self.client.list_tools()).tools if "__" in each.name]

    async def search(self, query: str) -> list[str]:
        """Search, wait for the notice, and list what is there beside the meta-tools."""
        count = len(self.told)
        await self.client.call_tool("search_tools", {"query": query})
        await until(lambda: len(self.told) > count)
        return await self.names()


OpenSession = Callable[[Serving], AbstractAsyncContextManager[Session]]


@asynccontextmanager
async def over_http(served: Serving) -> AsyncIterator[Session]:
    async with _session(streamable_http_client(served.url)) as session:
        yield session


@asynccontextmanager
async def over_stdio(served: Serving) -> AsyncIterator[Session]:
    """As a process serves its own stdin and stdout, here in memory."""
    async with _session(in_memory(served.runtime.server)) as session:
        yield session


@asynccontextmanager
async def _session(transport: Any) -> AsyncIterator[Session]:
    told: list[str] = []

    async def on_message(message: Any) -> None:
        told.append(message.method)

    async with Client(transport, mode="legacy", message_handler=on_message) as client:
        # The stream of notices is opened beside the session, which its first use waits for.
        await client.list_tools()
        yield Session(client, told)


@pytest.fixture(params=[over_http, over_stdio], ids=["http", "stdio"])
def opened(request: pytest.FixtureRequest) -> OpenSession:
    chosen: OpenSession = request.param
    return chosen


async def test_what_a_session_searched_for_is_on_its_list_alone_until_it_ends(
    tmp_path: Path, opened: OpenSession
) -> None:
    async with serving(tmp_path, upstreams(), gateway=FOLLOWING) as served:
        async with opened(served) as one, opened(served) as other:
            assert await one.names() == []
            assert await one.search(READ) == ["fs__read_file"]
            assert await one.search(SEND) == ["fs__read_file", "mail__send"]
            assert await other.names() == []
            assert (one.told, other.told) == ([CHANGED] * 2, [])
        async with opened(served) as later:
            assert await later.names() == []


async def test_a_tool_that_a_session_used_is_on_its_list(tmp_path: Path, opened: OpenSession) -> None:
    servers = upstreams()
    async with serving(tmp_path, servers, gateway=FOLLOWING) as served, opened(served) as session:
        await session.client.call_tool("call_tool", {"name": "clock__now", "arguments": {}})
        await until(lambda: session.told == [CHANGED])
        assert await session.names() == ["clock__now"]
        # What the list is made of stays when a tool goes, and its rights are those of the moment.
        servers["clock"].tools.clear()
        await served.gateway.refresh(30)
        await until(lambda: len(session.told) == 2)
        assert await session.names() == []


async def test_the_latest_search_counts_first_and_the_configured_intent_stays(tmp_path: Path) -> None:
    gateway = {**FOLLOWING, "intent": "tell the current time", "hybrid": {"max_underlying_tools": 2}}
    async with serving(tmp_path, upstreams(), gateway=gateway) as served, over_http(served) as session:
        assert await session.names() == ["clock__now"]
        assert await session.search(READ) == ["clock__now", "fs__read_file"]
        assert await session.search(SEND) == ["fs__read_file", "mail__send"]


async def test_a_query_of_the_request_is_answered_by_that_alone(tmp_path: Path) -> None:
    async with serving(tmp_path, upstreams(), gateway=FOLLOWING) as served, over_http(served) as session:
        await session.search(READ)
        url = f"{served.url}?query=send+an+email"
        async with _session(streamable_http_client(url)) as with_query:
            assert await with_query.names() == ["mail__send"]
        modern = (await served.result("tools/list"))["tools"]
        assert [each["name"] for each in modern if "__" in each["name"]] == []


async def test_searches_of_the_stateless_era_change_no_list(tmp_path: Path) -> None:
    async with serving(tmp_path, upstreams(), gateway=FOLLOWING) as served:
        before = await served.result("tools/list")
        await served.call("search_tools", {"query": READ})
        assert await served.result("tools/list") == before


@pytest.mark.parametrize("mode", ["meta_only", "full_proxy"])
async def test_lists_that_read_no_intent_stay_as_they_are(tmp_path: Path, mode: str) -> None:
    gateway = {**FOLLOWING, "tools_exposure": mode, "full_proxy": {"expose_meta_tools": True}}
    async with serving(tmp_path, upstreams(), gateway=gateway) as served, over_stdio(served) as session:
        before = await session.names()
        await session.client.call_tool("search_tools", {"query": READ})
        assert await session.names() == before


async def test_nothing_is_followed_unless_the_setting_says_so(tmp_path: Path) -> None:
    gateway = {**FOLLOWING, "follow": "off"}
    async with serving(tmp_path, upstreams(), gateway=gateway) as served, over_stdio(served) as session:
        await session.client.call_tool("search_tools", {"query": READ})
        await session.client.call_tool("call_tool", {"name": "clock__now", "arguments": {}})
        assert await session.names() == []
        # What was done before the setting changed counts no more than what others did.
        await served.gateway.updates.apply_settings(settings_for(upstreams(), gateway=FOLLOWING))
        assert await session.names() == []


async def test_a_session_is_told_once_in_a_while_and_only_of_another_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, upstreams(), gateway=FOLLOWING) as served, over_stdio(served) as session:
        await session.search(READ)
        monkeypatch.setattr("pml_gateway.serve.list_changes.FOLLOWED_EVERY", 0.5)
        for query in (READ, SEND, "tell the current time"):
            await session.client.call_tool("search_tools", {"query": query})
        assert session.told == [CHANGED]
        await until(lambda: len(session.told) == 2)
        assert await session.names() == ["clock__now", "fs__read_file", "mail__send"]
        monkeypatch.setattr("pml_gateway.serve.list_changes.FOLLOWED_EVERY", 0.0)
        await session.client.call_tool("search_tools", {"query": READ})
        await session.client.call_tool("search_tools", {"query": "*"})
        assert await session.search("make a folder") != []
        assert session.told == [CHANGED] * 3


async def test_direct_calls_of_listed_tools_only_include_those_that_the_list_follows(tmp_path: Path) -> None:
    gateway = {**FOLLOWING, "direct_calls": "listed"}
    async with serving(tmp_path, upstreams(), gateway=gateway) as served, over_stdio(served) as session:
        refused = await session.client.call_tool("fs__read_file", {})
        await session.search(READ)
        answered = await session.client.call_tool("fs__read_file", {})
    assert (refused.structured_content or {})["error"]["code"] == "FORBIDDEN"
    assert not answered.is_error


async def test_what_the_last_list_showed_may_be_called_until_the_next(tmp_path: Path, opened: OpenSession) -> None:
    gateway = {**FOLLOWING, "direct_calls": "listed", "hybrid": {"max_underlying_tools": 1}}
    async with serving(tmp_path, upstreams(), gateway=gateway) as served, opened(served) as session:
        assert await session.search(READ) == ["fs__read_file"]
        await session.client.call_tool("search_tools", {"query": SEND})
        refused = await session.client.call_tool("clock__now", {})
        answered = await session.client.call_tool("fs__read_file", {})
    assert refused.is_error
    assert not answered.is_error


async def test_what_a_list_for_a_query_showed_may_be_called(tmp_path: Path) -> None:
    gateway = {**FOLLOWING, "follow": "off", "direct_calls": "listed"}
    async with serving(tmp_path, upstreams(), gateway=gateway) as served, over_http(served) as session:
        assert (await session.client.call_tool("mail__send", {})).is_error
        meta: Any = {"pml-gateway/query": SEND}
        listed = await session.client.list_tools(meta=meta)
        assert "mail__send" in [each.name for each in listed.tools]
        assert not (await session.client.call_tool("mail__send", {})).is_error


async def test_a_session_is_told_when_what_its_list_follows_is_long_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: OpenSession
) -> None:
    monkeypatch.setattr("pml_gateway.exposure.history.MAX_SECONDS", 1.0)
    gateway = {**FOLLOWING, "direct_calls": "listed"}
    async with serving(tmp_path, upstreams(), gateway=gateway) as served, opened(served) as session:
        assert await session.search(READ) == ["fs__read_file"]
        await until(lambda: session.told == [CHANGED] * 2)
        assert not (await session.client.call_tool("fs__read_file", {})).is_error
        await until(lambda: len(session.told) == 4)
        assert await session.names() == []
        assert (await session.client.call_tool("fs__read_file", {})).is_error


async def test_equal_histories_give_equal_bytes_and_put_no_shared_list_out_of_the_cache(tmp_path: Path) -> None:
    async with serving(tmp_path, upstreams(), gateway=FOLLOWING) as served:
        gateway = served.gateway
        shared = await list_tools(gateway, RequestScope(), None, VERSION)
        async with over_http(served) as one, over_stdio(served) as other:
            for session in (one, other):
                await session.search(READ)
                await session.search(SEND)
            assert await one.names() == await other.names()
        assert len(gateway.state.lists.followed) == 2
        assert await list_tools(gateway, RequestScope(), None, VERSION) is shared


def test_a_history_is_bounded_and_forgets_with_time() -> None:
    history = SessionHistory()
    for number in range(MAX_ENTRIES + 3):
        history.note_search(f"search {number}", float(number))
    history.note_search("search   4", 20.0)
    history.note_use(("fs", "read_file"), 21.0)
    followed = history.followed(22.0)
    assert followed.searches[:2] == ("search 4", f"search {MAX_ENTRIES + 2}")
    assert len(followed.searches) == MAX_ENTRIES
    assert followed.used == (("fs", "read_file"),)
    assert history.followed(20.5 + MAX_SECONDS) == Followed((), (("fs", "read_file"),))
