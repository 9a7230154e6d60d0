"""Attacks through extensions: what is hidden stays so, and what one peer sends is no other peer's problem."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from pml_gateway.config.settings import Settings
from pml_gateway.mcp.sdk import connection_of, request_channel
from tests.extensions.test_apps import app_server
from tests.extensions.test_relay import CLIENTS, NOT_FOUND, SHOWS_APPS, UI, X, client_of
from tests.extensions.test_skills import METHODS, SKILLS, all_listed, entry, skilled
from tests.support.machine import open_machine
from tests.support.memory import settings_for
from tests.support.scripted_server import PROMPTS, RESOURCES, ScriptedServer, prompt, resource, text_result, tool
from tests.support.serving import serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("gateways")]


@CLIENTS
@pytest.mark.parametrize(
    "params",
    [
        {"uri": "skill://mail/SKILL.md", "name": "one__one_tool"},
        {"uri": "skill://mail/SKILL.md", "name": "one_tool"},
        {"uri": "skill://mail/SKILL.md", "name": "anything"},
        {"uri": ["skill://mail/SKILL.md"]},
        {"uri": {"of": "skill://mail/SKILL.md"}},
        {"uri": "skill://post/SKILL.md", "name": "secret"},
        {"uri": "skill://post/SKILL.md", "name": ["secret"]},
        {"name": "one__secret"},
        {"name": "secret"},
        {"name": "one__switched_off"},
        {"name": "switched_off"},
        {"name": "hush"},
        {"name": "one__hush"},
        {"uri": "skill://post/SKILL.md", "with": {"tool": "secret"}},
        {"uri": "skill://post/SKILL.md", "ref": {"type": "ref/prompt", "name": "hush"}},
        {"uri": "skill://post/SKILL.md", "steps": [{"tool_names": ["x", "one__secret"]}]},
        {"uri": "skill://post/SKILL.md", "tools": {"switched_off": {}}},
        {"uri": "skill://post/SKILL.md", "then": {"resourceUri": "skill://mail/SKILL.md"}},
        {"uri": "skill://post/SKILL.md", "skills": ["skill://mail/%53KILL.md"]},
        {"uri": "skill://post/SKILL.md", "names": ["x"] * 1000},
        {"uri": "skill://post/SKILL.md", "of": [[0] * 9_000] * 2},
    ],
)
async def test_nothing_hidden_is_named_to_a_server(tmp_path: Path, client: str, params: dict[str, Any]) -> None:
    one = skilled("one", "mail", "post")
    one.tools += [tool("secret"), tool("switched_off")]
    one.methods |= PROMPTS
    one.prompts = [prompt("hush"), prompt("loud")]
    settings = settings_for(
        {"one": one}, gateway={"blacklisted_tools": ["one:skill://mail/*", "one:secret", "one:hush"]}
    ).model_dump(mode="json", exclude_unset=True)
    settings["servers"]["one"]["tools"] = {"switched_off": {"enabled": False}}
    async with (
        all_listed(tmp_path, {"one": one}, Settings.model_validate(settings)) as served,
        client_of(served, client) as caller,
    ):
        before = len(one.asked)
        for method in ("skills/get", "resources/directory/read"):
            assert (await caller.message(method, params))["error"]["code"] == NOT_FOUND
        assert [each for each in one.asked[before:] if each[0] in METHODS] == []


@CLIENTS
async def test_a_prompt_is_named_to_its_server_as_the_server_names_it(tmp_path: Path, client: str) -> None:
    def server() -> ScriptedServer:
        async def answer(_ctx: Any, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
            return {"got": params["name"]} if method == "x/run" else None

        return ScriptedServer(
            [tool("t")],
            declares={"extensions": {X: {}}},
            beyond=frozenset({"x/run"}),
            methods=PROMPTS,
            prompts=[prompt("loud")],
            answer=answer,
        )

    upstreams = {"one": server(), "two": server()}
    async with all_listed(tmp_path, upstreams) as served, client_of(served, client) as caller:
        names = [each["name"] for each in (await caller.result("prompts/list"))["prompts"]]
        for name in names:
            assert (await caller.result("x/run", {"name": name}))["got"] == "loud"
    assert [len([1 for method, _ in each.asked if method == "x/run"]) for each in upstreams.values()] == [1, 1]


@CLIENTS
async def test_files_of_a_skill_that_are_hidden_are_not_named(tmp_path: Path, client: str) -> None:
    one = skilled("one", "mail")
    hidden = {"blacklisted_tools": ["one:skill://mail/references/*"]}
    async with (
        all_listed(tmp_path, {"one": one}, settings_for({"one": one}, gateway=hidden)) as served,
        client_of(served, client) as caller,
    ):
        [listed] = (await caller.result("skills/list"))["skills"]
        got = (await caller.result("skills/get", {"uri": listed["uri"]}))["skill"]
    for each in (listed, got):
        assert [file["uri"] for file in each["resources"]] == ["skill://mail/SKILL.md"]


@pytest.mark.one_gateway("it counts the requests of one gateway")
@CLIENTS
async def test_a_list_of_skills_that_never_ends_is_read_once(tmp_path: Path, client: str) -> None:
    async def answer(_ctx: Any, method: str, _params: dict[str, Any]) -> dict[str, Any] | None:
        if method != "skills/list":
            return None
        return {"skills": [entry("mail"), 5, None], "nextCursor": "same", "ttlMs": 0, "cacheScope": "private"}

    one = ScriptedServer(
        [tool("t")],
        declares={"extensions": {SKILLS: {}}},
        beyond=METHODS,
        methods=RESOURCES,
        resources=[resource("skill://mail/SKILL.md")],
        answer=answer,
    )
    async with all_listed(tmp_path, {"one": one}) as served, client_of(served, client) as caller:
        listed = (await caller.result("skills/list"))["skills"]
    assert len([1 for method, _ in one.asked if method == "skills/list"]) == 2
    assert len(listed) == 1


@CLIENTS
async def test_skills_are_asked_of_servers_with_skills_alone(tmp_path: Path, client: str) -> None:
    nosy = skilled("nosy", "mail")
    nosy.declares = {"extensions": {X: {}}, "experimental": {"a": {}}}
    old = ScriptedServer([tool("o")], declares={"experimental": {"a": {}}}, beyond=frozenset({"x/run"}))
    two = ScriptedServer([tool("b")], declares={"extensions": {X: {}}}, beyond=frozenset({"x/run"}))
    upstreams = {"old": old, "nosy": nosy, "two": two, "three": skilled("three", "post")}
    async with all_listed(tmp_path, upstreams) as served, client_of(served, client) as caller:
        assert len((await caller.result("skills/list"))["skills"]) == 1
        assert "error" in await caller.message("skills/get", {"uri": "skill://mail/SKILL.md"})
        await caller.result("x/run", {"token": "secret"})
    assert not {method for method, _ in nosy.asked} & METHODS
    assert [len([1 for method, _ in each.asked if method == "x/run"]) for each in (old, two)] == [0, 1]


async def test_large_settings_of_one_peer_take_nothing_from_others(tmp_path: Path) -> None:
    large = {"z/large": {"p": "x" * 20_000}, "z/list": {"n": [*range(20_000)]}}
    good = ScriptedServer([tool("plain"), tool("panel", needs=UI)], declares={"extensions": {X: {}}})
    upstreams = {"evil": ScriptedServer([tool("e")], declares={"extensions": large}), "good": good}
    async with (
        serving(tmp_path, upstreams, gateway={"tools_exposure": "full_proxy"}) as served,
        client_of(served, "handshake", extensions=large) as attacker,
        client_of(served, "handshake", extensions=SHOWS_APPS) as shows,
    ):
        await attacker.names()
        assert (await shows.declared())["extensions"] == {X: {}}
        assert {"good__plain", "good__panel"} <= set(await shows.names())


async def test_a_notice_for_one_client_reaches_no_other_of_a_shared_session(tmp_path: Path) -> None:
    both, contexts = anyio.Event(), dict[str, Any]()

    async def handler(ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        who = call["arguments"]["text"]
        contexts[who] = ctx
        if who == "one":
            await both.wait()
            await request_channel(ctx).notify("notifications/x/begun", {"secret of": "one"})
        elif who == "two":
            both.set()
            await anyio.lowlevel.checkpoint()
        return text_result(who)

    up = ScriptedServer([tool("t")], handler, declares={"extensions": {X: {}}})
    full = {"tools_exposure": "full_proxy"}
    async with (
        open_machine(tmp_path, {"up": up}, gateway=full) as opened,
        opened.attached("one", introduced=False) as one,
        opened.attached("two", introduced=False) as two,
    ):
        for client, name in ((one, "one"), (two, "two")):
            await client.notice("attached")
            await client.introduce({"extensions": {X: {}}}, name)
            await client.tools()
        for client in (one, two):
            await client.request("tools/call", {"name": "up__t", "arguments": {"text": "first"}})
        first = await one.begin("tools/call", {"name": "up__t", "arguments": {"text": "one"}})
        second = await two.begin("tools/call", {"name": "up__t", "arguments": {"text": "two"}})
        await one.answer(first)
        await two.answer(second)
        await connection_of(contexts["one"]).notify("notifications/x/later", {"secret of": "one"})
        await two.request("tools/call", {"name": "up__t", "arguments": {"text": "last"}})
    assert not [each for each in two.told if "secret" in str(each)]


@CLIENTS
async def test_a_tool_of_an_interface_is_called_only_where_its_server_is_listed(tmp_path: Path, client: str) -> None:
    up = app_server("up")
    for listed in (False, True):
        gateway = {
            "tools_exposure": "full_proxy" if listed else "meta_only",
            "direct_calls": "listed",
        }
        folder = tmp_path / str(listed)
        folder.mkdir()
        async with (
            serving(folder, {"up": up}, settings_for({"up": up}, gateway=gateway)) as served,
            client_of(served, client, extensions=SHOWS_APPS) as shows,
        ):
            for name in ("up__refresh_chart", "refresh_chart"):
                message = await shows.message("tools/call", {"name": name, "arguments": {}})
                assert ("FORBIDDEN" in str(message)) is not listed
    assert len(up.calls) == 2
