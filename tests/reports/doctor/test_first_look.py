"""A new server is looked at once: by a gateway that runs, else by the command itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import Settings, UpstreamSettings
from pml_gateway.reports.doctor.first_look import Following, first_look, tell_gateways
from tests.support.authorization import protected
from tests.support.memory import MemoryStreams, paths_in, settings_for
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import serving

pytestmark = pytest.mark.anyio

NOWHERE = UpstreamDefinition(command="pml-no-such-command")


async def test_a_running_gateway_says_what_a_server_offers(tmp_path: Path) -> None:
    up = ScriptedServer([tool("a"), tool("b")])
    settings = Settings.model_validate(
        {"servers": {**settings_for({"up": up}).model_dump()["servers"], "down": NOWHERE.model_dump()}}
    )
    async with serving(tmp_path, {}, settings, open_streams=MemoryStreams({"up": up})):
        paths = paths_in(tmp_path)
        following = await tell_gateways(paths)
        assert len(following.pids) == 1
        found = await first_look("up", settings.servers["up"], settings.upstreams, paths, following)
        assert (found.outcome, found.count) == ("ready", 2)
        failed = await first_look("down", NOWHERE, settings.upstreams, paths, following)
        assert (failed.outcome, "pml-no-such-command" in failed.error) == ("failed", True)
        unknown = await first_look("other", NOWHERE, settings.upstreams, paths, following)
        assert unknown.outcome == "failed"
        assert up.opened == 1


async def test_a_server_that_asks_for_a_login_gets_the_command_for_it(tmp_path: Path) -> None:
    async with protected() as stand:
        definition = UpstreamDefinition(url=stand.url)
        found = await first_look("acme", definition, UpstreamSettings(), paths_in(tmp_path), Following())
    assert (found.outcome, found.hint) == ("login_needed", "pml upstreams login acme")
    assert await tell_gateways(paths_in(tmp_path)) == Following()
