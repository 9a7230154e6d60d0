"""What is asked for tools reaches the index of a running gateway, and nothing that models read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from pml_gateway.config.load import LoadedSettings
from pml_gateway.config.settings import Settings
from pml_gateway.example_queries.library import ExampleLibrary, ExampleOrigin
from pml_gateway.example_queries.sources import tool_digest
from pml_gateway.gateway.gateway import Gateway, open_gateway
from pml_gateway.policy.principal import LOCAL
from pml_gateway.serve.reload import follow_files
from tests.support.memory import MemoryStreams, paths_in, settings_for
from tests.support.principals import principal
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.waiting import LIMIT, swapped

pytestmark = pytest.mark.anyio

ASKED = "who spilled the coffee"
UPSTREAMS = {"a": ScriptedServer([tool("one"), tool("two")])}
LEXICAL = {"ranking": "lexical"}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pml_gateway.gateway.indexing.EXAMPLES_SECONDS", 0.0)


@asynccontextmanager
async def opened(folder: Path, settings: Settings) -> AsyncIterator[Gateway]:
    async with open_gateway(settings, paths_in(folder), identity="t", open_streams=MemoryStreams(UPSTREAMS)) as gateway:
        assert await gateway.refresh(30)
        await gateway.wait_for_search(30)
        yield gateway


def examples(gateway: Gateway) -> dict[str, tuple[str, ...]]:
    index = gateway.state.index
    return {document.key: document.examples for document in index.documents} if index is not None else {}


async def put(gateway: Gateway, folder: Path) -> None:
    """What `pml example-queries import` does in another process."""
    found = gateway.state.catalog.by_name("a__one")
    assert found is not None
    library = ExampleLibrary(paths_in(folder).example_queries_dir)
    await anyio.to_thread.run_sync(library.put, tool_digest(found), [ASKED], ExampleOrigin.OWNER)


async def test_examples_of_another_process_reach_the_index_without_a_restart(tmp_path: Path) -> None:
    settings = settings_for(UPSTREAMS, search=LEXICAL)
    loaded = LoadedSettings(settings, {}, (), ())
    async with opened(tmp_path, settings) as gateway, anyio.create_task_group() as tasks:
        assert examples(gateway) == {"a__one": (), "a__two": ()}
        tasks.start_soon(follow_files, gateway, loaded, lambda: loaded, ())
        with anyio.fail_after(LIMIT):
            while examples(gateway)["a__one"] != (ASKED,):
                # Written again and again, because nothing says when the watcher has begun to look.
                await put(gateway, tmp_path)
                await anyio.sleep(0.05)
        assert examples(gateway)["a__two"] == ()
        tasks.cancel_scope.cancel()


async def test_no_model_reads_them(tmp_path: Path) -> None:
    async with opened(tmp_path, settings_for(UPSTREAMS, search=LEXICAL)) as gateway:
        await put(gateway, tmp_path)
        gateway.indexer.renew()
        await swapped(gateway, lambda: examples(gateway)["a__one"] == (ASKED,))
        assert all(ASKED not in json.dumps(each.definition) for each in gateway.state.catalog.tools)
        hits = gateway.state.search(gateway.state.view(LOCAL), ASKED, 5).tools
        assert ASKED not in json.dumps([each.definition for each, _ in hits])


async def test_they_lead_nobody_to_a_tool_that_rights_hide(tmp_path: Path) -> None:
    async with opened(tmp_path, settings_for(UPSTREAMS, search=LEXICAL)) as gateway:
        await put(gateway, tmp_path)
        gateway.indexer.renew()
        await swapped(gateway, lambda: examples(gateway)["a__one"] == (ASKED,))
        view = gateway.state.view(principal("client:narrow", deny=("a:one",)))
        hits = gateway.state.search(view, ASKED, 5).tools
        assert "a__one" not in {each.qualified_name for each, _ in hits}


async def test_a_setting_does_without_and_takes_effect_at_once(tmp_path: Path) -> None:
    off: Any = {**LEXICAL, "example_queries": False}
    async with opened(tmp_path, settings_for(UPSTREAMS, search=LEXICAL)) as gateway:
        await put(gateway, tmp_path)
        gateway.indexer.renew()
        await swapped(gateway, lambda: examples(gateway)["a__one"] == (ASKED,))
        await gateway.reload(settings_for(UPSTREAMS, search=off))
        await swapped(gateway, lambda: examples(gateway)["a__one"] == ())
