"""User interfaces of servers (MCP Apps): their tools and resources, for clients that show them and for others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.catalog.apps import is_app_only, shows_apps, without_apps
from tests.extensions.test_relay import CLIENTS, SERVERS, SHOWS_APPS, client_of
from tests.support.memory import settings_for
from tests.support.scripted_server import RESOURCES, ScriptedServer, resource, tool
from tests.support.serving import serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("gateways")]

TYPE = "text/html;profile=mcp-app"
MODES = pytest.mark.parametrize("mode", ["full_proxy", "meta_only", "hybrid"])


def app_server(server: str, *, modern: bool = False, uri: str = "") -> ScriptedServer:
    """A server with a user interface: a tool for both, one for the model, one for the interface alone."""
    page = uri or f"ui://{server}/view.html"
    meta = {"csp": {"connectDomains": ["https://a.test"]}, "permissions": {"camera": {}}, "domain": "x.a.test"}

    async def answer(_ctx: Any, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        if method != "resources/read":
            return None
        content = {"uri": params["uri"], "mimeType": TYPE, "text": f"<p>{server}</p>", "_meta": {"ui": meta}}
        return {"contents": [content], "ttlMs": 0, "cacheScope": "private"}

    return ScriptedServer(
        [
            tool("show", "Show the chart.", _meta={"ui": {"resourceUri": page}}),
            tool(f"{server}_plan", "Plan the chart.", _meta={"ui": {"resourceUri": page, "visibility": ["model"]}}),
            tool("refresh_chart", "Refresh the chart.", _meta={"ui": {"resourceUri": page, "visibility": ["app"]}}),
        ],
        methods=RESOURCES,
        resources=[resource(page, mimeType=TYPE, _meta={"ui": meta})],
        answer=answer,
        modern=modern,
    )


def serving_app(folder: Path, servers: dict[str, ScriptedServer], mode: str, **sections: Any) -> Any:
    return serving(folder, servers, settings_for(servers, gateway={"tools_exposure": mode}, **sections))


def same(message: dict[str, Any], name: str) -> str:
    """An answer without the name that was asked for, and what differs in every answer."""
    shown = str({key: value for key, value in message.items() if key != "id"})
    return re.sub(r"'(request_id|hint)': '[^']*'|'closest': [^]]*]", "", shown).replace(name, "NAME")


@CLIENTS
@SERVERS
@MODES
async def test_a_tool_for_the_interface_alone_does_not_exist_for_the_model(
    tmp_path: Path, client: str, modern: bool, mode: str
) -> None:
    up = app_server("up", modern=modern)
    async with (
        serving_app(tmp_path, {"up": up}, mode) as served,
        client_of(served, client, extensions=SHOWS_APPS) as shows,
        client_of(served, client) as plain,
    ):
        for name in ("up__refresh_chart", "refresh_chart"):
            message = await plain.message("tools/call", {"name": name, "arguments": {}})
            unknown = await plain.message("tools/call", {"name": "up__refresh_nothing", "arguments": {}})
            assert same(message, name) == same(unknown, "up__refresh_nothing")
        assert "up__refresh_chart" not in await plain.names()
        for each in (shows, plain):
            for asked in ("refresh the chart", "up:*", "up__refresh_chart"):
                found = await each.result("tools/call", {"name": "search_tools", "arguments": {"query": asked}})
                assert "refresh_chart" not in str(found.get("structuredContent")).replace(asked, "")
            for call in (
                {"name": "tool_schema", "arguments": {"names": ["up__refresh_chart"]}},
                {"name": "call_tool", "arguments": {"name": "up__refresh_chart", "arguments": {}}},
                {
                    "name": "call_batch",
                    "arguments": {"calls": [{"name": "up__refresh_chart", "arguments": {}}]},
                },
            ):
                refused = await each.result("tools/call", call)
                assert "NOT_FOUND" in str(refused)
        assert not up.calls
        # The client keeps it from its model, and lets the interface call it by the server's own name.
        assert ("up__refresh_chart" in await shows.names()) == (mode == "full_proxy")
        for name in ("up__refresh_chart", "refresh_chart"):
            called = await shows.result("tools/call", {"name": name, "arguments": {"a": 1}})
            assert not called.get("isError")
    assert [each["name"] for each in up.calls] == ["refresh_chart"] * 2


@CLIENTS
async def test_the_interface_of_a_server_is_read_as_the_server_gives_it(tmp_path: Path, client: str) -> None:
    # Both servers use the same address for their pages.
    upstreams = {"one": app_server("one", uri="ui://view.html"), "two": app_server("two", uri="ui://view.html")}
    async with (
        serving_app(tmp_path, upstreams, "full_proxy") as served,
        client_of(served, client, extensions=SHOWS_APPS) as shows,
    ):
        tools = {each["name"]: each for each in (await shows.result("tools/list"))["tools"]}
        listed = {each["uri"]: each for each in (await shows.result("resources/list"))["resources"]}
        for server in ("one", "two"):
            uri = tools[f"{server}__show"]["_meta"]["ui"]["resourceUri"]
            assert uri.startswith("ui://")
            [content] = (await shows.result("resources/read", {"uri": uri}))["contents"]
            assert (content["uri"], content["mimeType"], content["text"]) == (uri, TYPE, f"<p>{server}</p>")
            assert content["_meta"]["ui"]["permissions"] == {"camera": {}}
            assert listed[uri]["_meta"]["ui"]["domain"] == "x.a.test"


async def test_an_interface_calls_no_tool_of_another_server_by_a_name_that_both_have(tmp_path: Path) -> None:
    upstreams = {"one": app_server("one"), "two": app_server("two")}
    async with (
        serving_app(tmp_path, upstreams, "full_proxy") as served,
        client_of(served, "2026", extensions=SHOWS_APPS) as shows,
    ):
        refused = await shows.message("tools/call", {"name": "refresh_chart", "arguments": {}})
        assert "NOT_FOUND" in str(refused)
        assert not (await shows.result("tools/call", {"name": "two__refresh_chart", "arguments": {}})).get("isError")
    assert [len(each.calls) for each in upstreams.values()] == [0, 1]


async def read_page(client: Any, server: str) -> None:
    """Have a client open the interface of a server."""
    [uri] = [
        each["_meta"]["ui"]["resourceUri"]
        for each in (await client.result("tools/list"))["tools"]
        if each["name"] == f"{server}__show"
    ]
    await client.result("resources/read", {"uri": uri})


async def call_show(client: Any, server: str) -> None:
    """Have the model of a client call a tool whose result the interface shows."""
    await client.result("tools/call", {"name": f"{server}__show", "arguments": {}})


REFRESH = {"name": "refresh_chart", "arguments": {}}


@pytest.mark.parametrize("opened", [read_page, call_show])
async def test_the_interface_that_a_session_opened_calls_the_tool_of_its_own_server(
    tmp_path: Path, opened: Any
) -> None:
    upstreams = {"one": app_server("one"), "two": app_server("two")}
    async with serving_app(tmp_path, upstreams, "full_proxy") as served:
        for server in ("two", "one"):
            async with client_of(served, "handshake", extensions=SHOWS_APPS) as shows:
                await opened(shows, server)
                before = {name: len(each.calls) for name, each in upstreams.items()}
                assert not (await shows.result("tools/call", REFRESH)).get("isError")
                called = [name for name, each in upstreams.items() if len(each.calls) > before[name]]
                assert called == [server]


async def test_two_open_interfaces_with_a_tool_of_the_same_name_are_told_apart_by_its_full_name_alone(
    tmp_path: Path,
) -> None:
    upstreams = {"one": app_server("one"), "two": app_server("two")}
    async with (
        serving_app(tmp_path, upstreams, "full_proxy") as served,
        client_of(served, "handshake", extensions=SHOWS_APPS) as shows,
    ):
        for server in upstreams:
            await read_page(shows, server)
        refused = await shows.message("tools/call", REFRESH)
        assert "several servers have a tool named 'refresh_chart'" in str(refused)
        assert "one__refresh_chart or two__refresh_chart" in str(refused)
        assert not (await shows.result("tools/call", {**REFRESH, "name": "two__refresh_chart"})).get("isError")
    assert [len(each.calls) for each in upstreams.values()] == [0, 1]


@CLIENTS
async def test_an_interface_does_not_reach_a_tool_for_models_of_another_server_by_a_name_of_its_own(
    tmp_path: Path, client: str
) -> None:
    upstreams = {"one": app_server("one"), "two": ScriptedServer([tool("refresh_chart")])}
    async with (
        serving_app(tmp_path, upstreams, "full_proxy") as served,
        client_of(served, client, extensions=SHOWS_APPS) as shows,
        client_of(served, client) as plain,
    ):
        assert "one__refresh_chart or two__refresh_chart" in str(await shows.message("tools/call", REFRESH))
        assert not any(each.calls for each in upstreams.values())
        if client == "handshake":
            await read_page(shows, "one")
            await shows.result("tools/call", REFRESH)
            assert [len(each.calls) for each in upstreams.values()] == [1, 0]
        await plain.result("tools/call", REFRESH)
        assert len(upstreams["two"].calls) == 1


@pytest.mark.parametrize("name", ["two__refresh_board", "refresh_board"])
async def test_an_interface_does_not_reach_what_is_for_the_interface_of_another_server(
    tmp_path: Path, name: str
) -> None:
    two = ScriptedServer([tool("board"), tool("refresh_board", _meta={"ui": {"visibility": ["app"]}})])
    async with (
        serving_app(tmp_path, {"one": app_server("one"), "two": two}, "full_proxy") as served,
        client_of(served, "handshake", extensions=SHOWS_APPS) as shows,
    ):
        await read_page(shows, "one")
        refused = await shows.message("tools/call", {"name": name, "arguments": {}})
        assert "is for the user interface of 'two' alone" in str(refused)
    assert not two.calls


@pytest.mark.parametrize("rules", [{"deny": ["up:refresh_chart"]}, {"allow": ["up:show"]}])
async def test_a_tool_of_an_interface_is_under_the_rules_of_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: dict[str, Any]
) -> None:
    monkeypatch.setenv("KEY_OF_C", "k" * 40)
    up = app_server("up")
    async with (
        serving_app(tmp_path, {"up": up}, "full_proxy", clients={"c": {"key": "${env:KEY_OF_C}", **rules}}) as served,
        client_of(served, "handshake", key="k" * 40, extensions=SHOWS_APPS) as shows,
    ):
        assert "up__refresh_chart" not in await shows.names()
        assert "NOT_FOUND" in str(await shows.message("tools/call", {"name": "refresh_chart", "arguments": {}}))
    assert not up.calls


async def test_interfaces_that_are_switched_off_leave_plain_tools(tmp_path: Path) -> None:
    up = app_server("up")
    off = {"extensions": {"deny": ["io.modelcontextprotocol/ui"]}}
    async with (
        serving_app(tmp_path, {"up": up}, "full_proxy", upstreams=off) as served,
        client_of(served, "2026", extensions=SHOWS_APPS) as shows,
    ):
        tools = (await shows.result("tools/list"))["tools"]
    assert sorted(each["name"] for each in tools if each["name"].startswith("up__")) == ["up__show", "up__up_plan"]
    assert not any("ui" in each.get("_meta", {}) for each in tools)


@pytest.mark.parametrize(
    ("meta", "is_only"),
    [
        ({"ui": {"visibility": ["app"]}}, True),
        ({"ui": {"visibility": ["app", "other"]}}, True),
        ({"ui": {"visibility": ["model", "app"]}}, False),
        ({"ui": {"visibility": []}}, False),
        ({"ui": {"visibility": "app"}}, False),
        ({"ui": {}}, False),
        ({"ui": ["app"]}, False),
        (None, False),
    ],
)
def test_what_a_tool_says_of_its_visibility_is_read(meta: Any, is_only: bool) -> None:
    definition = {"name": "t", "_meta": meta}
    assert is_app_only(definition) is is_only
    assert (without_apps(definition) is None) is is_only


def test_a_client_shows_interfaces_if_it_names_their_type() -> None:
    assert shows_apps(SHOWS_APPS)
    settings: list[Any] = [{}, {"mimeTypes": "x"}, []]
    others: list[Any] = [None, {}, *({"io.modelcontextprotocol/ui": each} for each in settings)]
    for given in others:
        assert not shows_apps(given)
