"""Tools that are switched off: they exist for nobody, and the owner is told why."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pml_gateway.config.settings import Settings
from tests.support.command_line import home_of, run_here
from tests.support.memory import settings_for
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import serving

pytestmark = pytest.mark.anyio


def switched(settings: Settings, name: str, *, enabled: bool) -> Settings:
    servers = settings.model_dump(mode="json", exclude_unset=True)["servers"]
    servers["up"]["tools"] = {name: {"enabled": enabled}}
    return Settings.model_validate({**settings.model_dump(mode="json", exclude_unset=True), "servers": servers})


async def test_a_disabled_tool_is_on_no_list_and_not_found_by_any_route(tmp_path: Path) -> None:
    upstream = ScriptedServer([tool("read", "Read a note."), tool("wipe", "Wipe all notes.")])
    settings = settings_for({"up": upstream}, gateway={"tools_exposure": "full_proxy"})
    async with serving(tmp_path, {"up": upstream}, switched(settings, "wipe", enabled=False)) as served:
        assert await served.names() == ["up__read"]
        hits = (await served.call("search_tools", {"query": "wipe all notes"}))["structuredContent"]["hits"]
        assert [hit["name"] for hit in hits] in ([], ["up__read"])
        for name, arguments in (
            ("up__wipe", {}),
            ("call_tool", {"name": "up:wipe", "arguments": {}}),
            ("tool_schema", {"name": "up__wipe"}),
        ):
            error = (await served.call(name, arguments))["structuredContent"]["error"]
            assert error["code"] == "NOT_FOUND", name
        batch = await served.call("call_batch", {"calls": [{"tool": "up__wipe", "arguments": {}}]})
        assert "NOT_FOUND" in str(batch["structuredContent"])
        assert upstream.calls == []


async def test_a_switch_reaches_a_running_gateway_without_a_restart_of_the_server(tmp_path: Path) -> None:
    upstream = ScriptedServer([tool("read"), tool("wipe")])
    settings = settings_for({"up": upstream}, gateway={"tools_exposure": "full_proxy"})
    async with serving(tmp_path, {"up": upstream}, settings) as served:
        assert await served.names() == ["up__read", "up__wipe"]
        opened = upstream.opened
        await served.gateway.updates.apply_settings(switched(settings, "wipe", enabled=False))
        assert await served.names() == ["up__read"]
        await served.gateway.updates.apply_settings(switched(settings, "wipe", enabled=True))
        assert await served.names() == ["up__read", "up__wipe"]
        assert upstream.opened == opened


@pytest.mark.slow
def test_the_owner_is_told_which_tools_are_disabled(tmp_path: Path) -> None:
    with home_of(tmp_path, {}) as home:
        (home / "config.yaml").write_text(
            f"servers: {{calc: {{command: {json.dumps(sys.executable)}, args: [-m, pml_gateway.demo.servers.calc], "
            "tools: {calculate: {enabled: false}}}}\ngateway: {blacklisted_tools: ['calc:calculate']}\n"
        )
        tools = json.loads(run_here(home, "tools", "--explain", "--json").stdout)["tools"]
        explained = {row["name"]: row for row in tools}
        assert explained["calc:calculate"]["reason"] == "disabled"
        assert explained["calc:calculate"]["pattern"] == "servers.calc.tools.calculate.enabled"
        findings = json.loads(run_here(home, "doctor", "--json").stdout)["findings"]
        about = [each for each in findings if "pml enable calc:calculate" in json.dumps(each)]
        assert about, findings
        assert "disabled" in json.dumps(about)
        assert not [each for each in findings if "matches no tool" in json.dumps(each)]
