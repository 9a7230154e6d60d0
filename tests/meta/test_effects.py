"""Effects that a client can act on: meta-tools that call tools up to an effect, and effects that an owner sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import CALLS_BY_EFFECT, KNOWN_META_TOOLS
from tests.support.memory import settings_for
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

KEY = "key-of-a-narrow-client-1"
READ, WRITE = {"readOnlyHint": True}, {"readOnlyHint": False, "destructiveHint": False}
DESTRUCTIVE = {"destructiveHint": True}
EVERY = (*KNOWN_META_TOOLS, *CALLS_BY_EFFECT)
TOOLS = [
    tool("look", annotations=READ),
    tool("add", annotations=WRITE),
    tool("erase", annotations=DESTRUCTIVE),
    tool("guess"),
    tool("contradict", annotations={"readOnlyHint": True, "destructiveHint": True}),
]
REACHED = {
    "call_tool_read": {"look"},
    "call_tool_write": {"look", "add"},
    "call_tool_destructive": {"look", "add", "erase", "guess", "contradict"},
    "call_tool": {"look", "add", "erase", "guess", "contradict"},
}


def upstreams(*tools: dict[str, Any]) -> dict[str, ScriptedServer]:
    return {"up": ScriptedServer(list(tools or TOOLS))}


def code_of(result: dict[str, Any]) -> str:
    error = (result.get("structuredContent") or {}).get("error")
    return error["code"] if error else ""


async def definitions(served: Serving, **options: Any) -> dict[str, Any]:
    listed = await served.result("tools/list", path="/meta_only", **options)
    return {each["name"]: each for each in listed["tools"]}


@pytest.mark.parametrize("name", REACHED)
async def test_a_call_tool_calls_up_to_its_effect_and_names_the_one_for_the_rest(tmp_path: Path, name: str) -> None:
    ups = upstreams()
    async with serving(tmp_path, ups, gateway={"meta_tools": EVERY}) as served:
        reached = set()
        for each in TOOLS:
            before = len(ups["up"].calls)
            result = await served.call(name, {"name": f"up__{each['name']}"})
            assert (len(ups["up"].calls) > before) == (code_of(result) == "")
            if code_of(result):
                error = result["structuredContent"]["error"]
                wider = "call_tool_write" if each["name"] == "add" else "call_tool_destructive"
                assert (error["code"], error["hint"]) == ("FORBIDDEN", f"call it with {wider}")
            else:
                reached.add(each["name"])
        assert reached == REACHED[name]


async def test_only_a_meta_tool_that_the_client_has_is_recommended(tmp_path: Path) -> None:
    settings = settings_for(upstreams(), gateway={"meta_tools": ["search_tools", "call_tool_read", "call_batch"]})
    async with serving(tmp_path, upstreams(), settings) as served:
        error = (await served.call("call_tool_read", {"name": "up__erase"}))["structuredContent"]["error"]
        assert "call_tool" not in error["hint"]
        assert "call_tool" not in await definitions(served)


async def test_the_meta_tools_announce_the_strongest_effect_that_their_client_may_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("K", KEY)
    narrow = {"key": "${env:K}", "allow": ["up:look"]}
    async with serving(tmp_path, upstreams(), gateway={"meta_tools": EVERY}, clients={"a": narrow}) as served:
        mine = await definitions(served, key=KEY)
        for name in ("call_tool", "call_batch", "execute_workflow"):
            assert mine[name]["annotations"] == {"readOnlyHint": True}
    everything = ScriptedServer([tool("look", annotations=READ), tool("add", annotations=WRITE)])
    async with serving(tmp_path / "b", {"up": everything}, gateway={"meta_tools": EVERY}) as served:
        theirs = await definitions(served)
        assert theirs["call_tool"]["annotations"] == {"destructiveHint": False}
        assert [theirs[name]["annotations"] for name in CALLS_BY_EFFECT] == [
            {"readOnlyHint": True},
            {"destructiveHint": False},
            {"destructiveHint": True},
        ]
    unknown = ScriptedServer([tool("look", annotations=READ), tool("guess")])
    async with serving(tmp_path / "c", {"up": unknown}) as served:
        assert (await definitions(served))["call_tool"]["annotations"] == {"destructiveHint": True}


@pytest.mark.parametrize("denied", ["call_tool", "call_tool*", "call_*"])
async def test_who_may_not_use_call_tool_has_none_of_those_by_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, denied: str
) -> None:
    monkeypatch.setenv("K", KEY)
    client = {"key": "${env:K}", "deny": [denied]}
    async with serving(tmp_path, upstreams(), gateway={"meta_tools": EVERY}, clients={"a": client}) as served:
        assert not {"call_tool", *CALLS_BY_EFFECT} & set(await definitions(served, key=KEY))
        refused = await served.call("call_tool_read", {"name": "up__look"}, key=KEY)
        missing = await served.call("call_tool_rite", {"name": "up__look"}, key=KEY)
        assert code_of(refused) == code_of(missing) == "NOT_FOUND"


async def test_one_of_them_can_be_denied_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K", KEY)
    client = {"key": "${env:K}", "deny": ["call_tool_destructive"]}
    async with serving(tmp_path, upstreams(), gateway={"meta_tools": EVERY}, clients={"a": client}) as served:
        assert {"call_tool_read", "call_tool_write"} <= set(await definitions(served, key=KEY))
        assert code_of(await served.call("call_tool_destructive", {"name": "up__erase"}, key=KEY)) == "NOT_FOUND"


async def test_a_batch_refuses_the_slots_with_a_stronger_effect_and_makes_the_others(tmp_path: Path) -> None:
    ups = upstreams()
    async with serving(tmp_path, ups) as served:
        calls = [{"name": f"up__{each}"} for each in ("look", "add", "erase", "guess")]
        answer = (await served.call("call_batch", {"calls": calls, "max_effect": "write"}))["structuredContent"]
        assert [slot.get("error", {}).get("code", "") for slot in answer["slots"]] == [
            "",
            "",
            "FORBIDDEN",
            "FORBIDDEN",
        ]
        assert sorted(call["name"] for call in ups["up"].calls) == ["add", "look"]


async def test_a_workflow_with_a_step_of_a_stronger_effect_makes_no_call(tmp_path: Path) -> None:
    ups = upstreams()
    async with serving(tmp_path, ups) as served:
        steps = [{"id": "a", "tool": "up__look"}, {"id": "b", "tool": "up__erase", "depends_on": ["a"]}]
        request = {"steps": steps, "max_effect": "read"}
        answer = (await served.call("execute_workflow", request))["structuredContent"]
        assert not ups["up"].calls
        assert "effect read at most" in str(answer)
        dry = (await served.call("execute_workflow", {**request, "dry_run": True}))["structuredContent"]
        assert not dry["valid"]
        allowed = (await served.call("execute_workflow", {"steps": steps, "dry_run": True}))["structuredContent"]
        assert (allowed["valid"], allowed["effect"]) == (True, "destructive")
        wrong = (await served.call("execute_workflow", {"steps": steps, "max_effect": "reed"}))["structuredContent"]
        assert wrong["error"]["hint"] == 'write "max_effect": "read"'


async def test_a_tool_without_hints_reads_unknown_where_that_decides_who_calls_it(tmp_path: Path) -> None:
    for meta_tools, marked in ((EVERY, True), (KNOWN_META_TOOLS, False)):
        folder = tmp_path / str(marked)
        async with serving(folder, upstreams(), gateway={"meta_tools": meta_tools}) as served:
            found = await served.call("search_tools", {"query": "guess", "server": "up"})
            assert ("[unknown]" in str(found["structuredContent"])) is marked


async def test_the_owner_sets_the_effects_titles_and_descriptions_that_clients_see(tmp_path: Path) -> None:
    ups = upstreams()
    servers = {
        "up": {
            "command": "in-memory-up",
            "effect_default": "read",
            "tools": {
                "erase": {"effect": "write", "title": "Archive", "description": "Moves a note to the archive."},
                "contradict": {"effect": "destructive"},
                "add": {"enabled": False},
            },
        }
    }
    settings = settings_for(ups, gateway={"meta_tools": EVERY}).model_copy(
        update={"servers": {name: UpstreamDefinition.model_validate(entry) for name, entry in servers.items()}}
    )
    async with serving(tmp_path, ups, settings) as served:
        listed = await served.result("tools/list", path="/full_proxy")
        tools = {each["name"]: each for each in listed["tools"]}
        assert set(tools) == {"up__look", "up__erase", "up__guess", "up__contradict"}
        assert tools["up__guess"]["annotations"] == READ
        assert tools["up__erase"]["annotations"] == WRITE
        assert (tools["up__erase"]["title"], tools["up__erase"]["description"]) == (
            "Archive",
            "Moves a note to the archive.",
        )
        assert tools["up__contradict"]["annotations"] == {"readOnlyHint": False, "destructiveHint": True}
        assert code_of(await served.call("call_tool_read", {"name": "up__guess"})) == ""
        assert code_of(await served.call("call_tool_write", {"name": "up__erase"})) == ""
        assert code_of(await served.call("call_tool_read", {"name": "up__erase"})) == "FORBIDDEN"
        hits = (await served.call("search_tools", {"query": "archive a note"}))["structuredContent"]
        assert "up__erase" in str(hits) and "[write]" in str(hits)
        # Its owner's words change nothing about how the server is reached.
        opened = ups["up"].opened
        again = settings.servers["up"].model_copy(update={"tools": {}})
        await served.gateway.updates.apply_settings(settings.model_copy(update={"servers": {"up": again}}))
        assert "up__add" in await served.names("/full_proxy")
        assert code_of(await served.call("call_tool_write", {"name": "up__erase"})) == "FORBIDDEN"
        assert ups["up"].opened == opened


async def test_nothing_is_promised_while_a_server_has_not_listed_its_tools(tmp_path: Path) -> None:
    ups = {"up": ScriptedServer([tool("look", annotations=READ)]), "slow": ScriptedServer([tool("erase")], hang=True)}
    async with serving(tmp_path, ups) as served:
        assert (await definitions(served))["call_tool"]["annotations"] == {"destructiveHint": True}


async def test_a_step_of_a_workflow_has_the_limit_of_its_call(tmp_path: Path) -> None:
    changed: list[bool] = []

    async def act(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        if call["name"] == "look" and not changed:
            changed.append(True)
            ups["up"].tools[:] = [tool("look", annotations=READ), tool("other", annotations=DESTRUCTIVE)]
            await served.gateway.refresh(30)
        return text_result(call["name"])

    ups = {"up": ScriptedServer([tool("look", annotations=READ), tool("other", annotations=READ)], act)}
    steps = [{"id": "a", "tool": "up:look"}, {"id": "b", "tool": "up:other", "depends_on": ["a"]}]
    workflows = {"both": {"description": "Both.", "steps": steps}}
    trust = {"changes": "notice"}
    async with serving(tmp_path, ups, gateway={"meta_tools": EVERY}, workflows=workflows, trust=trust) as served:
        await served.gateway.refresh(30)
        await served.call("call_tool_read", {"name": "workflows:both"})
        assert changed
        assert [call["name"] for call in ups["up"].calls] == ["look"]


async def test_a_call_that_its_owner_says_destroys_is_not_sent_twice(tmp_path: Path) -> None:
    async def act(_ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        ups["up"].kill()
        await anyio.sleep_forever()
        raise AssertionError

    hints = {"readOnlyHint": True, "idempotentHint": True}
    ups = {"up": ScriptedServer([tool("look", annotations=hints)], act)}
    entry = {"command": "in-memory-up", "tools": {"look": {"effect": "destructive"}}}
    servers = {"up": UpstreamDefinition.model_validate(entry)}
    settings = settings_for(ups).model_copy(update={"servers": servers})
    async with serving(tmp_path, ups, settings) as served:
        error = (await served.call("call_tool", {"name": "up:look"}))["structuredContent"]["error"]
    assert error["details"]["executed"] == "unknown"
    assert len(ups["up"].calls) == 1


async def test_a_meta_tool_that_there_is_not_is_not_recommended(tmp_path: Path) -> None:
    settings = settings_for(upstreams(), gateway={"meta_tools": ["search_tools", "call_tool_read"]})
    async with serving(tmp_path, upstreams(), settings) as served:
        answer = await served.call("call_tool_read", {"name": "call_tool_write"})
    assert "itself" not in str(answer["structuredContent"])


@pytest.mark.parametrize(
    ("meta_tools", "called", "named"),
    [
        (("search_tools", *CALLS_BY_EFFECT), "call_tool", [*CALLS_BY_EFFECT]),
        (("search_tools", *CALLS_BY_EFFECT), "call", [*CALLS_BY_EFFECT]),
        (("call_tool_read", "call_tool_destructive"), "call_tool_write", ["call_tool_read", "call_tool_destructive"]),
        (KNOWN_META_TOOLS, "call_tool_read", ["call_tool"]),
        (("search_tools",), "call_tool", []),
    ],
)
async def test_a_call_tool_that_is_off_is_answered_with_those_that_are_there(
    tmp_path: Path, meta_tools: tuple[str, ...], called: str, named: list[str]
) -> None:
    async with serving(tmp_path, upstreams(), gateway={"meta_tools": meta_tools}) as served:
        result = await served.call(called, {"name": "up__look"})
        error = result["structuredContent"]["error"]
        assert (error["code"], error["details"]["closest"]) == ("NOT_FOUND", named)
        assert all(name in error["hint"] for name in named)


@pytest.mark.parametrize(
    ("meta_tools", "name", "caller"),
    [
        (CALLS_BY_EFFECT, "look", "call_tool_read"),
        (CALLS_BY_EFFECT, "add", "call_tool_write"),
        (CALLS_BY_EFFECT, "guess", "call_tool_destructive"),
        (KNOWN_META_TOOLS, "guess", "call_tool"),
        (("search_tools",), "guess", "ask the gateway's owner"),
    ],
)
async def test_an_unlisted_tool_is_refused_with_the_meta_tool_that_calls_it(
    tmp_path: Path, meta_tools: tuple[str, ...], name: str, caller: str
) -> None:
    gateway = {"meta_tools": [*meta_tools], "direct_calls": "listed"}
    async with serving(tmp_path, upstreams(), gateway=gateway) as served:
        error = (await served.call(f"up__{name}"))["structuredContent"]["error"]
        assert error["code"] == "FORBIDDEN"
        assert caller in error["hint"]
        assert f"{caller}_" not in error["hint"]


@pytest.mark.parametrize("is_split", [False, True])
async def test_a_namespace_obeys_the_strongest_effect_of_the_call_it_is_in(tmp_path: Path, is_split: bool) -> None:
    ups = upstreams()
    gateway = {
        "style": "namespaces",
        "meta_tools": [*EVERY],
        "namespaces": {"groups": {"all": ["up:*"]}, "split_by_access": is_split},
    }
    read, write = ("all_read", "all_write") if is_split else ("all", "all")

    def calls() -> set[str]:
        return {params["name"] for params in ups["up"].calls}

    async with serving(tmp_path, ups, gateway=gateway) as served:
        slots = [{"tool": read, "arguments": {"action": "look"}}, {"tool": write, "arguments": {"action": "erase"}}]
        batch = (await served.call("call_batch", {"calls": slots, "max_effect": "read"}))["structuredContent"]
        assert [slot["ok"] for slot in batch["slots"]] == [True, False]
        assert batch["slots"][1]["error"]["code"] == "FORBIDDEN"

        steps = [{"id": "a", **slots[0]}, {"id": "b", **slots[1]}]
        dry = await served.call("execute_workflow", {"steps": steps, "dry_run": True})
        assert dry["structuredContent"]["effect"] == "destructive"
        refused = await served.call("execute_workflow", {"steps": steps, "max_effect": "write"})
        assert "may have the effect write at most" in str(refused["structuredContent"]), refused

        assert code_of(await served.call("call_tool_write", {"name": write, "arguments": {"action": "erase"}})) != ""
        assert calls() == {"look"}
        await served.call("call_tool_read", {"name": read, "arguments": {"action": "look"}})
        assert len(ups["up"].calls) == 2
