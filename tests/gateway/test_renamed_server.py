"""A server that gets another name while clients use it: its old name means nothing, and what is known goes with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from pml_gateway.config.settings import Settings
from pml_gateway.gateway.gateway import open_gateway
from pml_gateway.policy.principal import LOCAL
from pml_gateway.setup.server_state import copy_state, drop_state
from tests.support.memory import MemoryStreams, paths_in
from tests.support.scripted_server import ScriptedServer, prompt, tool
from tests.support.serving import Serving, serving
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


def settings_of(name: str, **sections: Any) -> Settings:
    return Settings.model_validate(
        {"servers": {name: {"command": "in-memory"}}, "trust": {"new_servers": "review"}, **sections}
    )


def workflow(name: str) -> dict[str, Any]:
    return {"w": {"description": "Adds.", "steps": [{"tool": name, "arguments": {}}]}}


def not_found(result: dict[str, Any]) -> bool:
    return bool(result["isError"]) and result["structuredContent"]["error"]["code"] == "NOT_FOUND"


@pytest.fixture
def streams() -> MemoryStreams:
    server = ScriptedServer([tool("add"), tool("drop")], prompts=[prompt("plan")])
    return MemoryStreams({"old": server, "new": server})


async def renamed(served: Serving, settings: Settings) -> None:
    await served.gateway.reload(settings)
    await until(lambda: "new__add" in served.gateway.state.view(LOCAL).names)


async def test_calls_by_the_old_name_are_not_answered(tmp_path: Path, streams: MemoryStreams) -> None:
    given = settings_of("old", workflows=workflow("old__add"), trust={})
    async with serving(tmp_path, {}, given, open_streams=streams) as served:
        await until(lambda: "old__add" in served.gateway.state.view(LOCAL).names)

        await renamed(served, settings_of("new", workflows=workflow("new__add"), trust={}))

        names = await served.names("/full_proxy")
        assert [name for name in names if name.endswith(("add", "drop"))] == ["new__add", "new__drop"]
        for name in ("old__add", "old:add"):
            assert not_found(await served.call(name))
            assert not_found(await served.call("call_tool", {"name": name}))
        assert not_found(await served.call("call_tool", {"server": "old", "name": "add"}))
        steps = await served.call("execute_workflow", {"steps": [{"tool": "old:add", "arguments": {}}]})
        assert steps["isError"]
        assert not (await served.call("new__add")).get("isError")
        assert not (await served.call("workflows__w")).get("isError")


async def test_a_namespace_has_the_new_name_alone(tmp_path: Path, streams: MemoryStreams) -> None:
    style = {"gateway": {"style": "namespaces"}, "trust": {}}
    async with serving(tmp_path, {}, settings_of("old", **style), open_streams=streams) as served:
        await until(lambda: "old__add" in served.gateway.state.view(LOCAL).names)
        await renamed(served, settings_of("new", **style))
        assert not (await served.call("new", {"action": "add"})).get("isError")
        assert not_found(await served.call("old", {"action": "add"}))


async def test_what_the_owner_accepted_stays_accepted_and_lists_are_known_at_once(
    tmp_path: Path, streams: MemoryStreams
) -> None:
    paths = paths_in(tmp_path)
    before, after = settings_of("old", trust={}), settings_of("new")
    async with open_gateway(before, paths, identity=paths.identity(None), open_streams=streams) as gateway:
        await gateway.refresh(30)
        assert [each.qualified_name for each in gateway.state.catalog.tools] == ["old__add", "old__drop"]
        await anyio.to_thread.run_sync(copy_state, paths, before, "old", "new")
        await gateway.reload(after)
        assert [each.qualified_name for each in gateway.state.catalog.tools] == ["new__add", "new__drop"]
        await anyio.to_thread.run_sync(drop_state, paths, before.servers["old"], "old", "new")
        assert not any(pins.held for pins in gateway.trust_gate.servers.values())
        await gateway.refresh(30)
        assert not any(pins.held for pins in gateway.trust_gate.servers.values())


async def test_a_gateway_that_starts_with_the_new_name_knows_what_it_knew(
    tmp_path: Path, streams: MemoryStreams
) -> None:
    paths = paths_in(tmp_path)
    before, after = settings_of("old", trust={}), settings_of("new")
    async with open_gateway(before, paths, identity=paths.identity(None), open_streams=streams) as gateway:
        await gateway.refresh(30)
    await anyio.to_thread.run_sync(copy_state, paths, before, "old", "new")
    async with open_gateway(
        after, paths, identity=paths.identity(None), open_streams=streams, connect=False
    ) as gateway:
        state = gateway.state
        assert [each.qualified_name for each in state.catalog.tools] == ["new__add", "new__drop"]
        assert state.view(LOCAL).resolve("old__add") is None
        assert not any(pins.held for pins in gateway.trust_gate.servers.values())
