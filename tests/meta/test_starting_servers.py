"""While servers start, a model is told which and to ask again, and a search waits a moment for their first lists."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from pml_gateway.gateway import gateway as gateway_module
from tests.support.memory import settings_for
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import Serving, serving
from tests.support.waiting import swapped, until

pytestmark = [pytest.mark.anyio, pytest.mark.field("D1")]

KEY = "key-of-a-narrow-client-1"
WAIT = "Still starting, ask again in a few seconds: {}."
UNKNOWN_TOOLS: list[tuple[str, dict[str, Any]]] = [
    ("tool_schema", {"names": ["forecast"]}),
    ("call_tool", {"name": "forecast", "arguments": {}}),
    ("call_batch", {"calls": [{"name": "forecast", "arguments": {}}]}),
    ("execute_workflow", {"steps": [{"tool": "forecast", "arguments": {}}]}),
    ("execute_workflow", {"intent": "what will the weather be"}),
]


def weather() -> ScriptedServer:
    return ScriptedServer([tool("forecast", "Forecast the weather of the coming days.")], hang=True)


@asynccontextmanager
async def starting(
    folder: Path, monkeypatch: pytest.MonkeyPatch, upstreams: dict[str, ScriptedServer], **sections: Any
) -> AsyncIterator[Serving]:
    """A gateway whose servers are being connected, and that gives a first list at once."""
    monkeypatch.setattr(gateway_module, "FIRST_LIST_WAIT", 0.2)
    async with serving(folder, upstreams, settings_for(upstreams, **sections)) as served:
        yield served


async def described(served: Serving, **options: Any) -> str:
    """How `search_tools` is described to a client."""
    tools = (await served.result("tools/list", **options))["tools"]
    description = next(each["description"] for each in tools if each["name"] == "search_tools")
    assert isinstance(description, str)
    return description


async def test_the_first_list_names_the_servers_that_start_and_later_ones_those_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstreams = {"fs": ScriptedServer([tool("read_file")]), "weather": weather(), "mail": weather()}
    async with starting(tmp_path, monkeypatch, upstreams) as served:
        await swapped(served.gateway, lambda: served.gateway.state.catalog.by_name("fs__read_file"))
        first = await described(served)
        assert f"Systems: fs. {WAIT.format('weather, mail')}" in first
        async with served.handshake() as session:
            assert WAIT.format("weather, mail") in session.initialized["instructions"]
        upstreams["weather"].hang = False
        await swapped(served.gateway, lambda: served.gateway.state.catalog.by_name("weather__forecast"))
        assert f"Systems: fs, weather. {WAIT.format('mail')}" in await described(served)
        upstreams["mail"].hang = False
        await swapped(served.gateway, lambda: served.gateway.state.catalog.by_name("mail__forecast"))
        last = await described(served)
        assert "Systems: fs, weather, mail. Search" in last
        assert "starting" not in last


async def test_without_any_tool_yet_nothing_says_that_no_system_is_available(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with starting(tmp_path, monkeypatch, {"weather": weather()}) as served:
        description = await described(served)
        assert WAIT.format("weather") in description
        assert "No system" not in description


async def test_a_server_that_fails_is_starting_no_more_and_clients_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstreams = {"fs": ScriptedServer([tool("read_file")]), "weather": weather()}
    async with starting(tmp_path, monkeypatch, upstreams) as served:
        await until(lambda: served.gateway.state.starting == ("weather",))
        assert WAIT.format("weather") in await described(served)
        upstreams["weather"].refuse = True
        upstreams["weather"].hang = False
        broken = served.gateway.pool.upstreams["weather"]
        broken.connector.reconnect()
        await until(lambda: not served.gateway.state.starting)
        assert "starting" not in await described(served)


async def test_a_server_without_any_tools_is_not_starting_once_it_has_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with starting(tmp_path, monkeypatch, {"empty": ScriptedServer([])}) as served:
        await until(lambda: not served.gateway.state.starting)
        assert "No system is available now." in await described(served)


async def test_beside_namespaces_the_search_names_the_servers_that_have_none_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with starting(tmp_path, monkeypatch, {"weather": weather()}, gateway={"style": "namespaces"}) as served:
        assert WAIT.format("weather") in await described(served)


async def test_a_search_waits_for_the_first_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upstreams = {"fs": ScriptedServer([tool("read_file")]), "weather": weather()}
    async with starting(tmp_path, monkeypatch, upstreams) as served:
        monkeypatch.setattr(gateway_module, "FIRST_LIST_WAIT", 30.0)
        answers: list[dict[str, Any]] = []

        async def search() -> None:
            answers.append(await served.call("search_tools", {"query": "forecast the weather"}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(search)
            await anyio.lowlevel.checkpoint()
            upstreams["weather"].hang = False
        found = answers[0]["structuredContent"]
        assert found["hits"][0]["name"] == "weather__forecast"
        assert "unavailable" not in found


async def test_a_search_that_waited_in_vain_says_so_and_the_next_one_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstreams = {"fs": ScriptedServer([tool("read_file", "Read the contents of a file.")]), "weather": weather()}
    async with starting(tmp_path, monkeypatch, upstreams) as served:
        for query in ("zzzz qqqq", "forecast the weather of next week"):
            nothing = (await served.call("search_tools", {"query": query}))["structuredContent"]
            assert WAIT.format("weather") in nothing["reason"]
            assert "other words" not in nothing["reason"]
            assert nothing["unavailable"][0]["server"] == "weather"
            # Whoever waits again would wait so long.
            monkeypatch.setattr(gateway_module, "FIRST_LIST_WAIT", 3600.0)
        everything = (await served.call("search_tools", {"query": "*"}))["structuredContent"]
        assert everything["note"] == WAIT.format("weather")
        globbed = (await served.call("search_tools", {"query": "weather:*"}))["structuredContent"]
        assert WAIT.format("weather") in globbed["reason"]


@pytest.mark.parametrize(("name", "arguments"), UNKNOWN_TOOLS)
async def test_a_tool_that_may_be_of_a_starting_server_is_not_simply_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, arguments: dict[str, Any]
) -> None:
    gateway = {"meta_tools": [name, "search_tools"]}
    async with starting(tmp_path, monkeypatch, {"weather": weather()}, gateway=gateway) as served:
        assert WAIT.format("weather") in str(await served.call(name, arguments))


async def test_a_direct_call_by_a_bare_name_hears_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with starting(tmp_path, monkeypatch, {"weather": weather()}) as served:
        message = await served.message("tools/call", {"name": "forecast", "arguments": {}})
        assert WAIT.format("weather") in str(message)


async def test_who_may_not_see_all_of_a_server_does_not_learn_that_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PML_TEST_NARROW", KEY)
    clients = {"narrow": {"key": "${env:PML_TEST_NARROW}", "deny": ["weather:*"]}}
    async with starting(tmp_path, monkeypatch, {"weather": weather()}, clients=clients) as served:
        call = partial(served.call, key=KEY)
        assert "weather" not in await described(served, key=KEY)
        assert "weather" not in str(await call("search_tools", {"query": "zzzz"}))
        assert "weather" not in str(await call("tool_schema", {"names": ["nothing"]}))
