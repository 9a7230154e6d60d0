"""Names that are too long behind a client's prefix are shortened, and what called or ruled them before still does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.memory import settings_for
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

LONG = "summarise_everything_that_was_said_in_a_meeting"
LONGER = "summarise everything.that/was said in all meetings of a week or a month"
NEW_LIMIT, OLD_LIMIT = 52, 64
OLD: dict[str, Any] = {"naming": {"max_length": OLD_LIMIT}}
FULL = "/full_proxy"


def meetings() -> dict[str, ScriptedServer]:
    return {"meetings": ScriptedServer([tool("list"), tool(LONG), tool(LONGER)])}


async def answers(served: Serving, name: str) -> list[str]:
    """What a tool answers, called directly and through meta-tools."""
    direct = await served.call(name)
    through = await served.call("call_tool", {"name": name, "arguments": {}})
    return [result["content"][0]["text"] for result in (direct, through)]


@pytest.mark.parametrize("prefix", ["always", "on_collision", "never"])
@pytest.mark.slow
async def test_names_of_an_earlier_version_still_call_after_a_restart(tmp_path: Path, prefix: str) -> None:
    servers = meetings()
    async with serving(tmp_path, servers, naming={"prefix": prefix, "max_length": OLD_LIMIT}) as served:
        before = await served.names(FULL)
    async with serving(tmp_path, servers, naming={"prefix": prefix}) as served:
        after = await served.names(FULL)
        assert all(len(name) <= NEW_LIMIT for name in after)
        assert max(map(len, before)) == OLD_LIMIT
        for name in {*before, *after}:
            first, second = await answers(served, name)
            assert first == second
    # The restart after that knows them as well, from what the one before wrote down.
    async with serving(tmp_path, servers, naming={"prefix": prefix}) as served:
        assert await served.names(FULL) == after
        for name in before:
            assert len(await answers(served, name)) == 2


async def test_a_limit_that_is_lowered_while_the_gateway_runs_renames_what_is_too_long_only(tmp_path: Path) -> None:
    servers = meetings()
    async with serving(tmp_path, servers, **OLD) as served:
        before = await served.names(FULL)
        await served.gateway.updates.apply_settings(settings_for(servers))
        after = await served.names(FULL)
        assert {*before} & {*after} == {"meetings__list"}
        for name in before:
            assert len(await answers(served, name)) == 2
        await served.gateway.updates.apply_settings(settings_for(servers, **OLD))
        assert await served.names(FULL) == before
        for name in after:
            assert len(await answers(served, name)) == 2


@pytest.mark.parametrize("rule", ["blacklisted_tools", "whitelisted_tools"])
async def test_rules_with_the_name_of_before_mean_the_tool(tmp_path: Path, rule: str) -> None:
    servers = meetings()
    async with serving(tmp_path / "old", servers, **OLD) as served:
        (old,) = [name for name in await served.names(FULL) if len(name) == OLD_LIMIT]
    gateway = {"hybrid": {rule: [old]}} if rule == "whitelisted_tools" else {rule: [old]}
    async with serving(tmp_path / "new", servers, gateway=gateway) as served:
        listed = await served.names("/hybrid" if rule == "whitelisted_tools" else FULL)
        named = [name for name in listed if name.startswith("meetings__") and name != "meetings__list"]
        found = await served.call("call_tool", {"name": old, "arguments": {}})
    if rule == "whitelisted_tools":
        assert len(named) == 1
        assert "isError" not in found
    else:
        assert len(named) == 1
        assert found["structuredContent"]["error"]["code"] == "NOT_FOUND"


async def test_namespaces_are_shortened_too_and_called_by_what_they_were(tmp_path: Path) -> None:
    name = "the-server-of-everything-that-was-ever-said-in-a-meeting-room"
    servers = {name: ScriptedServer([tool("list"), tool(LONGER)])}
    async with serving(tmp_path, servers, gateway={"style": "namespaces"}) as served:
        (listed,) = [each for each in await served.names() if each.startswith("the-server")]
        assert len(listed) <= NEW_LIMIT < len(name) <= OLD_LIMIT
        texts = [(await served.call(each, {"action": "list"}))["content"][0]["text"] for each in (listed, name)]
    assert texts == ["list []"] * 2
