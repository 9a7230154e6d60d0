"""Edits of configuration files while a gateway starts."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from pml_gateway.config.load import load_settings
from pml_gateway.gateway.gateway import open_gateway
from pml_gateway.serve.reload import follow_files
from pml_gateway.types import ExposureMode
from tests.support.memory import MemoryStreams, paths_in
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


async def test_an_edit_between_reading_and_watching_is_served(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"

    def write(mode: str) -> None:
        file.write_text(f"servers: {{up: {{command: none}}}}\ngateway: {{tools_exposure: {mode}}}\n", encoding="utf-8")

    write("meta_only")
    loaded = load_settings(config_file=file, environ={})
    streams = MemoryStreams({"up": ScriptedServer([tool("echo")])})
    async with (
        open_gateway(loaded.settings, paths_in(tmp_path), identity="test", open_streams=streams) as gateway,
        anyio.create_task_group() as tasks,
    ):
        write("full_proxy")
        tasks.start_soon(follow_files, gateway, loaded, lambda: load_settings(config_file=file, environ={}), ())
        await until(lambda: gateway.state.settings.gateway.tools_exposure is ExposureMode.FULL_PROXY)
        tasks.cancel_scope.cancel()
