"""Tools that a server adds without a word are found after `upstreams.refresh_interval`, whatever it claims to say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from pml_gateway.config.settings import Settings
from pml_gateway.gateway.gateway import open_gateway
from tests.support.memory import paths_in, settings_for
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import Serving, serving
from tests.support.waiting import swapped, until

pytestmark = pytest.mark.anyio

SOON: dict[str, Any] = {"refresh_interval": 0.05}

FROM_A_FILE = '''
"""A server whose tools are the lines of a file; its SDK claims to say when they change."""
import os, sys, threading
from pathlib import Path
from fastmcp import FastMCP
from fastmcp.tools import Tool

def nothing() -> str:
    return ""

class Server(FastMCP):
    async def list_tools(self, **_):
        return [Tool.from_function(nothing, name=name) for name in Path(sys.argv[1]).read_text().split()]

server = Server("file")
if len(sys.argv) > 2:
    import socket, uvicorn
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    bound.listen()
    Path(sys.argv[2]).write_text(f"http://127.0.0.1:{bound.getsockname()[1]}/mcp")
    uvicorn.Server(uvicorn.Config(server.http_app(), log_level="error")).run(sockets=[bound])
else:
    server.run(show_banner=False)
'''


async def listed(served: Serving, name: str) -> None:
    """Wait until a tool is in the catalog."""
    await swapped(served.gateway, lambda: served.gateway.state.catalog.by_name(name))


@pytest.mark.parametrize("modern", [False, True])
async def test_a_server_that_claims_to_announce_changes_and_does_not_is_listed_again(
    tmp_path: Path, modern: bool
) -> None:
    up = ScriptedServer([tool("one")], modern=modern, methods=frozenset({"prompts/list"}))
    async with serving(tmp_path, {"up": up}, settings_for({"up": up}, upstreams=SOON)) as served:
        await listed(served, "up__one")
        up.tools.append(tool("two"))
        await listed(served, "up__two")


async def test_what_a_server_announces_of_one_list_does_not_put_off_the_others(tmp_path: Path) -> None:
    up = ScriptedServer([tool("one")], methods=frozenset({"prompts/list"}))
    settings = settings_for({"up": up}, upstreams={"refresh_interval": 0.3})
    async with serving(tmp_path, {"up": up}, settings) as served:
        await listed(served, "up__one")
        up.tools.append(tool("two"))
        async with anyio.create_task_group() as tasks:

            async def chatter() -> None:
                while True:
                    await up.announce("prompts")
                    await anyio.sleep(0.02)

            tasks.start_soon(chatter)
            await listed(served, "up__two")
            tasks.cancel_scope.cancel()


async def test_an_upstream_that_is_not_connected_is_left_alone(tmp_path: Path) -> None:
    up = ScriptedServer([tool("one")])
    quiet = settings_for({"up": up}, upstreams={**SOON, "idle_timeout": 0.01})
    async with serving(tmp_path, {"up": up}, quiet) as served:
        upstream = served.gateway.pool.upstreams["up"]
        await until(lambda: upstream.connector.state == "idle")
        before = up.lists
        for _ in range(50):
            await anyio.sleep(0.005)
        assert up.lists == before


@pytest.mark.slow
@pytest.mark.parametrize("over", ["stdio", "http"])
@pytest.mark.parametrize("era", ["", "handshake"])
async def test_a_real_server_is_listed_again(tmp_path: Path, over: str, era: str) -> None:
    script, names, url = tmp_path / "server.py", tmp_path / "names", tmp_path / "url"
    script.write_text(FROM_A_FILE, encoding="utf-8")
    names.write_text("one", encoding="utf-8")
    command = [sys.executable, str(script), str(names)]
    async with anyio.create_task_group() as tasks:
        entry: dict[str, Any] = {"command": command[0], "args": command[1:]}
        if over == "http":
            tasks.start_soon(anyio.run_process, [*command, str(url)])
            await until(lambda: url.exists() and url.read_text(encoding="utf-8"))
            entry = {"url": url.read_text(encoding="utf-8")}
        settings = Settings.model_validate({"servers": {"up": entry}, "upstreams": {"refresh_interval": 0.5}})
        async with open_gateway(settings, paths_in(tmp_path), identity="test") as gateway:
            if era:
                gateway.pool.upstreams["up"].connector.era = era
            await swapped(gateway, lambda: gateway.state.catalog.by_name("up__one"))
            names.write_text("one two", encoding="utf-8")
            await swapped(gateway, lambda: gateway.state.catalog.by_name("up__two"))
        tasks.cancel_scope.cancel()
