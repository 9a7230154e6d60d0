"""While the index is being built, searches answer from what is ready, and say so to whom it concerns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.memory import settings_for
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.anyio

WIDE, NARROW = "key-of-a-wide-client-12", "key-of-a-narrow-client-1"


async def searched(served: Serving, key: str) -> Any:
    result = await served.call("search_tools", {"query": "read a file"}, key=key)
    return result["structuredContent"]


async def test_a_search_says_how_many_of_the_tools_it_may_see_are_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstreams = {
        "fs": ScriptedServer([tool("read_file", "Read a file."), tool("write_file", "Write a file.")]),
        "db": ScriptedServer([tool("read_rows", "Read rows of a table.")]),
    }
    monkeypatch.setenv("PML_TEST_WIDE", WIDE)
    monkeypatch.setenv("PML_TEST_NARROW", NARROW)
    clients = {"wide": {"key": "${env:PML_TEST_WIDE}"}, "narrow": {"key": "${env:PML_TEST_NARROW}", "allow": ["db:*"]}}
    async with serving(tmp_path, upstreams, settings_for(upstreams, clients=clients)) as served:
        await served.gateway.refresh(30)
        assert await served.gateway.indexer.wait(30)
        whole = served.gateway.state.index
        assert whole is not None
        assert "partial" not in await searched(served, WIDE)

        served.gateway.current.swap_index(whole.awaiting_vectors())
        assert (await searched(served, WIDE))["partial"] == ("0 of 3 tools indexed by meaning so far")
        assert (await searched(served, NARROW))["partial"] == "0 of 1 tools indexed by meaning so far"

        some = whole.awaiting_vectors()
        some.encoded = np.asarray([each.server == "db" for each in whole.documents])
        served.gateway.current.swap_index(some)
        assert (await searched(served, WIDE))["partial"].startswith("1 of 3 ")
        assert "partial" not in await searched(served, NARROW)
