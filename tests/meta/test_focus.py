"""`focus` puts tools on the list of one session: with its rights, within its limits, until the session ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.memory import create_client_server_memory_streams

from pml_gateway.exposure.focus import LISTS_AGAIN_WITHIN, Focus
from pml_gateway.gateway.request import RequestScope
from pml_gateway.gateway.tool_list import list_tools
from pml_gateway.types import ExposureMode
from tests.support.memory import settings_for
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import Serving, serving
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

VERSION = "2025-11-25"
CHANGED = "notifications/tools/list_changed"
PATH = {"path": {"type": "string", "description": "Where the file lies."}}
META = ["search_tools", "tool_schema", "call_tool", "call_batch", "execute_workflow", "read_result"]
ON: dict[str, Any] = {"meta_tools": [*META, "focus"]}


def upstreams() -> dict[str, ScriptedServer]:
    return {
        "fs": ScriptedServer([tool("read_file", "Reads a file.", PATH), tool("write_file", "Writes a file.", PATH)]),
        "mail": ScriptedServer([tool("send", "Sends an email."), tool("delete", "Deletes an email.")]),
    }


class Session:
    """A handshake client, and what it was told."""

    def __init__(self, client: Client, told: list[str]) -> None:
        self.client = client
        self.told = told

    async def names(self) -> list[str]:
        return [each.name for each in (await self.client.list_tools()).tools]

    async def call(self, name: str = "focus", **arguments: Any) -> dict[str, Any]:
        result = await self.client.call_tool(name, arguments)
        return dict(result.structured_content or {})

    async def focus(self, **arguments: Any) -> list[str]:
        """Focus, wait for the notice, and list what is there beside the meta-tools."""
        count = len(self.told)
        assert "error" not in await self.call(**arguments)
        await until(lambda: len(self.told) > count)
        return [name for name in await self.names() if "__" in name]


OpenSession = Callable[[Serving], AbstractAsyncContextManager[Session]]


@asynccontextmanager
async def over_http(served: Serving) -> AsyncIterator[Session]:
    async with _session(streamable_http_client(served.url)) as session:
        yield session


@asynccontextmanager
async def over_stdio(served: Serving) -> AsyncIterator[Session]:
    """As a process serves its own stdin and stdout, here in memory."""
    server = served.runtime.server

    @asynccontextmanager
    async def streams() -> AsyncIterator[Any]:
        async with create_client_server_memory_streams() as (theirs, ours), anyio.create_task_group() as tasks:
            tasks.start_soon(server.run, *ours, server.create_initialization_options())
            yield theirs
            tasks.cancel_scope.cancel()

    async with _session(streams()) as session:
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


async def test_focused_tools_are_on_the_list_with_their_schemas_until_the_session_ends(
    tmp_path: Path, opened: OpenSession
) -> None:
    async with serving(tmp_path, upstreams(), gateway=ON) as served:
        async with opened(served) as one, opened(served) as other:
            assert await one.focus(names=["mail:send", "fs__read_file"]) == ["fs__read_file", "mail__send"]
            listed = {each.name: each for each in (await one.client.list_tools()).tools}
            assert listed["fs__read_file"].input_schema["properties"] == PATH
            assert await other.names() == [*META, "focus"]
            assert other.told == []
            assert "mail__delete" in await one.focus(query="delete an email")
            assert await one.focus(names=["mail__delete"], how="replace") == ["mail__delete"]
            assert await one.focus(how="clear") == []
            assert one.told == [CHANGED] * 4
        async with opened(served) as later:
            assert await later.names() == [*META, "focus"]


async def test_equal_selections_are_equal_bytes_and_put_no_shared_list_out_of_the_cache(tmp_path: Path) -> None:
    async with serving(tmp_path, upstreams(), gateway=ON) as served:
        gateway = served.gateway
        shared = await list_tools(gateway, RequestScope(), None, VERSION)
        kept = dict(gateway.state.lists)
        async with over_http(served) as one, over_stdio(served) as other:
            await one.focus(names=["mail__send", "fs__read_file"])
            await other.focus(names=["fs__read_file"])
            await other.focus(names=["mail__send"])
            with_focus = {bytes(each.tools_json) for each in gateway.state.focused.values()}
        assert len([each for each in with_focus if b"mail__send" in each]) == 1
        assert dict(gateway.state.lists) == kept
        assert await list_tools(gateway, RequestScope(), None, VERSION) is shared


async def test_focus_is_off_unless_it_is_named(tmp_path: Path) -> None:
    async with serving(tmp_path, upstreams()) as served, over_stdio(served) as session:
        assert "focus" not in await session.names()
        assert (await session.call(names=["mail__send"]))["error"]["code"] == "NOT_FOUND"


def test_a_client_follows_notices_that_lists_again_soon_after_one() -> None:
    changes: list[str] = []
    focus = Focus(on_change=lambda: changes.append("changed"))
    focus.listed(1.0)
    focus.told(2.0)
    focus.listed(2.0 + LISTS_AGAIN_WITHIN + 0.1)
    focus.listed(2.0 + LISTS_AGAIN_WITHIN + 0.2)
    assert (focus.follows, changes) == (False, [])
    for now in (10.0, 20.0):
        focus.told(now)
        focus.listed(now + LISTS_AGAIN_WITHIN)
    assert (focus.follows, changes) == (True, ["changed"])


async def test_a_client_that_lists_again_after_a_notice_is_offered_it_by_itself(
    tmp_path: Path, opened: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pml_gateway.exposure.focus.LISTS_AGAIN_WITHIN", 60.0)
    servers = upstreams()
    gateway = {"tools_exposure": "hybrid", "hybrid": {"whitelisted_tools": ["mail:*"]}}
    async with serving(tmp_path, servers, gateway=gateway) as served, opened(served) as follows, opened(served) as deaf:
        servers["mail"].tools.append(tool("archive"))
        await served.gateway.refresh(30)
        await until(lambda: follows.told and deaf.told)
        assert "focus" not in await follows.names()
        await until(lambda: len(follows.told) == 2)
        assert "focus" in await follows.names()
        assert "fs__read_file" in await follows.focus(names=["fs__read_file"])
        assert (await deaf.call(names=["fs__read_file"]))["error"]["code"] == "NOT_FOUND"


async def test_in_the_stateless_era_it_answers_the_schemas(tmp_path: Path) -> None:
    async with serving(tmp_path, upstreams(), gateway=ON) as served:
        before = await served.result("tools/list")
        answer = (await served.call("focus", {"names": ["fs__read_file", "nope"]}))["structuredContent"]
        assert answer["tools"][0]["name"] == "fs__read_file"
        assert answer["tools"][0]["inputSchema"]["properties"] == PATH
        assert "by name" in answer["note"]
        assert [error["code"] for error in answer["errors"]] == ["NOT_FOUND"]
        assert await served.result("tools/list") == before
        text = (await served.call("fs__read_file", {"path": "/a"}))["content"][0]["text"]
    assert text == "read_file [('path', '/a')]"


async def test_a_tool_that_is_denied_leaves_the_list_and_a_hidden_one_never_was(tmp_path: Path) -> None:
    servers = upstreams()
    denied = {**ON, "blacklisted_tools": ["mail:delete"]}
    async with serving(tmp_path, servers, gateway=denied) as served, over_stdio(served) as session:
        hidden, unknown = [await session.call(names=[name]) for name in ("mail__delete", "mail__nope_x")]
        assert hidden["error"]["code"] == unknown["error"]["code"] == "NOT_FOUND"
        assert await session.focus(names=["mail__send", "fs__read_file"]) == ["fs__read_file", "mail__send"]
        more = {**ON, "blacklisted_tools": ["mail:*"]}
        await served.gateway.apply_settings(settings_for(servers, gateway=more))
        await until(lambda: len(session.told) == 2)
        assert [name for name in await session.names() if "__" in name] == ["fs__read_file"]
        servers["fs"].tools.pop(0)
        await served.gateway.refresh(30)
        await until(lambda: len(session.told) == 3)
        assert [name for name in await session.names() if "__" in name] == []


async def test_direct_calls_of_listed_tools_only_include_focused_ones(tmp_path: Path) -> None:
    gateway = {**ON, "direct_calls": "listed"}
    async with serving(tmp_path, upstreams(), gateway=gateway) as served, over_stdio(served) as session:
        assert (await session.call("fs__read_file", path="/a"))["error"]["code"] == "FORBIDDEN"
        await session.focus(names=["fs__read_file"])
        result = await session.client.call_tool("fs__read_file", {"path": "/a"})
        modern = (await served.call("focus", {"names": ["fs__read_file"]}))["structuredContent"]
    assert not result.is_error
    assert "with call_tool" in modern["note"]


async def test_what_is_focused_is_limited_in_number_and_tokens_and_counts_towards_the_caps(tmp_path: Path) -> None:
    gateway = {
        **ON,
        "tools_exposure": "hybrid",
        "hybrid": {"apply_semantic_filter": False, "max_underlying_tools": 3, "whitelisted_tools": ["mail:send"]},
    }
    limits = {"focused_tools": 2}
    async with serving(tmp_path, upstreams(), gateway=gateway, limits=limits) as served, over_http(served) as session:
        assert [name for name in await session.names() if "__" in name][-1] == "mail__send"
        many = await session.call(names=["fs__read_file", "fs__write_file", "mail__delete"])
        assert many["error"]["code"] == "INVALID_INPUT"
        assert "3 tools on the list; at most 2 (limits.focused_tools)" in many["error"]["message"]
        listed = await session.focus(names=["mail__delete"])
        assert listed == ["fs__read_file", "mail__delete", "mail__send"], "others gave way"
        await session.call(names=["fs__write_file"])
        full = await session.call(query="read a file")
        assert "as many as may be (limits.focused_tools)" in full["error"]["message"]


async def test_the_limit_on_tokens_holds_for_focused_tools(tmp_path: Path) -> None:
    gateway = {**ON, "hybrid": {"max_tokens": 60}}
    async with serving(tmp_path, upstreams(), gateway=gateway) as served, over_http(served) as session:
        names = ["fs__read_file", "fs__write_file", "mail__delete", "mail__send"]
        error = (await session.call(names=names))["error"]
        assert error["code"] == "INVALID_INPUT"
        assert "gateway.hybrid.max_tokens" in error["message"]
        assert await session.focus(names=names[-1:]) == names[-1:]


async def test_what_is_not_clear_is_refused(tmp_path: Path) -> None:
    unclear: list[dict[str, Any]] = [
        {},
        {"query": "a", "names": ["b"]},
        {"names": 3},
        {"how": "forget"},
        {"how": "clear", "names": ["mail__send"]},
    ]
    async with serving(tmp_path, upstreams(), gateway=ON) as served:
        answers = [await served.call("focus", arguments) for arguments in unclear]
    assert [each["structuredContent"]["error"]["code"] for each in answers] == ["INVALID_INPUT"] * len(unclear)


async def test_focused_tools_are_flat_beside_namespaces(tmp_path: Path) -> None:
    gateway = {**ON, "style": "namespaces"}
    async with serving(tmp_path, upstreams(), gateway=gateway) as served, over_http(served) as session:
        before = await session.names()
        assert {"fs", "mail", "focus"} <= {*before}
        assert await session.focus(names=["mail__send"]) == ["mail__send"]
        assert await session.names() == [*before, "mail__send"]


async def test_a_full_list_has_everything_already(tmp_path: Path) -> None:
    gateway = {**ON, "tools_exposure": "full_proxy"}
    async with serving(tmp_path, upstreams(), gateway=gateway) as served, over_http(served) as session:
        before = await session.names()
        assert "already" in (await session.call(names=["mail__send"]))["note"]
        assert await session.names() == before
        assert served.gateway.state.focused == {}
        assert RequestScope(mode=ExposureMode.FULL_PROXY).focus is None
