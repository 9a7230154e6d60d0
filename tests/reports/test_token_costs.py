"""The intents that stand in for one that nobody gave."""

from __future__ import annotations

from pathlib import Path

import pytest

from pml_gateway.gateway.gateway import open_gateway
from pml_gateway.reports.token_costs import SAMPLED_INTENTS, sample_intents
from tests.support.memory import MemoryStreams, paths_in, settings_for
from tests.support.scripted_server import ScriptedServer, tool

pytestmark = pytest.mark.anyio


async def test_a_sample_is_of_what_was_searched_for_last_or_of_what_tools_say(tmp_path: Path) -> None:
    upstreams = {"up": ScriptedServer([tool(f"t{number}", f"Does thing {number}. And more.") for number in range(40)])}
    async with open_gateway(
        settings_for(upstreams), paths_in(tmp_path), identity="test", open_streams=MemoryStreams(upstreams)
    ) as gateway:
        await gateway.refresh(20)
        state = gateway.state
        few = sample_intents(state, ["once", "once", "twice"])
        many = sample_intents(state, [f"query {number}" for number in range(20)])
    assert few is not None
    assert (len(few.intents), few.are_searches) == (SAMPLED_INTENTS, False)
    assert few.intents[0].startswith("Does thing")
    assert many is not None
    assert many.are_searches
    assert many.intents[-1] == "query 19"


async def test_without_tools_there_is_no_sample(tmp_path: Path) -> None:
    async with open_gateway(settings_for({}), paths_in(tmp_path), identity="test") as gateway:
        assert sample_intents(gateway.state, ["a"] * 20) is None
