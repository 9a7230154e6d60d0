"""What the gateways of several folders have in common: all but their settings and what follows from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pml_gateway.gateway.gateway import Gateway, open_gateway
from pml_gateway.gateway.shared import open_shared
from pml_gateway.policy.principal import LOCAL
from pml_gateway.upstreams.dialogue.local_clients import LocalClients
from tests.support.memory import MemoryStreams, paths_in, settings_for
from tests.support.scripted_server import ScriptedServer, tool

pytestmark = pytest.mark.anyio


async def settled(gateway: Gateway) -> Gateway:
    assert await gateway.refresh(20)
    assert await gateway.indexer.wait(20)
    await gateway.reading.judge_unread()
    return gateway


async def test_folders_with_other_settings_share_what_is_read_made_and_learned(tmp_path: Path) -> None:
    upstream = ScriptedServer([tool("one", "Do one thing."), tool("two", "Do another thing.")])
    upstreams, paths = {"up": upstream}, paths_in(tmp_path)
    settings, others = (settings_for(upstreams, gateway={"blacklisted_tools": [each]}) for each in ("up:two", "up:one"))
    streams = MemoryStreams(upstreams)
    async with open_gateway(settings, paths, identity="t", open_streams=streams) as earlier:
        await settled(earlier)
    async with (
        open_shared(paths, open_streams=streams, local=LocalClients()) as shared,
        open_gateway(settings, paths, identity="t", shared=shared) as first,
        open_gateway(others, paths, identity="t", shared=shared) as second,
    ):
        await settled(first)
        await settled(second)
        assert [*first.state.view(LOCAL).names, *second.state.view(LOCAL).names] == ["up__one", "up__two"]
        assert first.state.catalog is second.state.catalog
        assert first.state.index is second.state.index
        assert first.pool.upstreams["up"] is second.pool.upstreams["up"]
        assert first.shapes.file is second.shapes.file
        assert first.trust_gate.file.load() is second.trust_gate.file.load()
    assert upstream.opened == 2
