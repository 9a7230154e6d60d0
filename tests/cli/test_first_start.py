"""What `pml serve` says of rules at its start: that one names no tool, once every server has said what it has."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from pml_gateway.gateway.gateway import open_gateway
from pml_gateway.local.advice import advise
from tests.support.memory import MemoryStreams, paths_in, settings_for
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


async def test_a_rule_is_called_idle_only_when_every_server_has_listed_its_tools(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pml_gateway.gateway.gateway.FIRST_LIST_WAIT", 0.05)
    monkeypatch.setenv("PML_TEST_KEY", "key-of-a-narrow-client-1")
    upstreams = {"up": ScriptedServer([tool("one")]), "late": ScriptedServer([tool("two")], hang=True)}
    rules = {"blacklisted_tools": ["late:two", "up:typo"]}
    clients = {"bot": {"key": "${env:PML_TEST_KEY}", "deny": ["search_tools", "late:*"]}}
    settings = settings_for(upstreams, gateway=rules, clients=clients, upstreams={"connect_timeout": 0.3})
    streams = MemoryStreams(upstreams)

    def warned() -> list[str]:
        return [record.getMessage() for record in caplog.records if "matches no tool" in record.getMessage()]

    async with (
        open_gateway(settings, paths_in(tmp_path), identity="test", open_streams=streams) as gateway,
        anyio.create_task_group() as tasks,
    ):
        gateway.note_request()
        tasks.start_soon(advise, gateway)
        await until(lambda: gateway.state.catalog.by_name("up__one"))
        assert warned() == []
        upstreams["late"].hang = False
        await until(warned)
        (idle,) = warned()
        assert idle.startswith("gateway.blacklisted_tools: 'up:typo' matches no tool; ")
        tasks.cancel_scope.cancel()
