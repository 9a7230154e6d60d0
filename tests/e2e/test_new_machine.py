"""The first minutes on a machine with nothing on it: an empty home, no npm cache, one npm server in a client's file."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

from tests.support.process import OWN_GATEWAYS, end_gateway, environment, run_pml, write_settings

from .install import NPM_PACKAGES

# Packages are downloaded several times, each into a home of its own.
pytestmark = [pytest.mark.e2e, pytest.mark.heavy, pytest.mark.anyio, pytest.mark.timeout(600)]

PACKAGE = "@modelcontextprotocol/server-memory"
PINNED = f"{PACKAGE}@{NPM_PACKAGES[PACKAGE]}"
DOWNLOAD_SECONDS = 180


async def test_a_server_of_a_client_is_brought_in_served_called_and_given_back(home: Path) -> None:
    servers = {"memory": {"command": "npx", "args": ["-y", PINNED], "env": {"MEMORY_FILE_PATH": str(home / "graph")}}}
    file = home / ".cursor" / "mcp.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"mcpServers": servers}, indent=2), encoding="utf-8")
    before, extra = file.read_bytes(), {"HOME": str(home), "CI": os.environ.get("CI", "")}

    def pml(*arguments: str) -> str:
        run = run_pml(home / ".pml", *arguments, extra=extra, cwd=home)
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    (home / ".pml").mkdir()
    pml("init", "--yes")
    pml("connect", "cursor", "--yes")
    (entry,) = json.loads(file.read_bytes())["mcpServers"].values()
    gateway = StdioServerParameters(
        command=entry["command"],
        args=entry["args"],
        env=environment(home / ".pml", {**extra, **entry.get("env", {})}),
        cwd=home,
    )
    ada: dict[str, Any] = {"name": "Ada", "entityType": "person", "observations": ["met on a new machine"]}
    with anyio.fail_after(DOWNLOAD_SECONDS), ExitStack() as stack:
        stack.callback(end_gateway, home / ".pml", extra)
        async with Client(gateway) as client:
            # npx downloads the server at first, which may take longer than a call waits.
            while (await client.call_tool("memory__create_entities", {"entities": [ada]})).is_error:  # noqa: ASYNC110
                await anyio.sleep(0.5)
            found = await client.call_tool("search_tools", {"query": "read the whole knowledge graph"})
            assert "memory__read_graph" in str(found.structured_content)
            graph = await client.call_tool("call_tool", {"name": "memory__read_graph", "arguments": {}})
    assert "met on a new machine" in str(graph.content)
    assert "Ada" in pml("call", "memory__read_graph")

    pml("disconnect", "cursor", "--yes")
    assert file.read_bytes() == before
    assert (home / ".npm").is_dir(), "the server came from a cache that this run made"


def npx_entries(*packages: str) -> dict[str, dict[str, Any]]:
    return {
        package.rpartition("/")[2]: {"command": "npx", "args": ["-y", f"{package}@{NPM_PACKAGES[package]}"]}
        for package in packages
    }


def test_commands_interrupted_while_npx_installs_leave_a_cache_that_works(home: Path) -> None:
    servers = npx_entries(PACKAGE, "@modelcontextprotocol/server-everything")
    config = write_settings(home / ".pml", {"servers": servers, "upstreams": {"connect_timeout": 60}})
    extra = {"HOME": str(home)}
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-m", "pml_gateway", "tools", "--config", str(config)],
            env=environment(home / ".pml", {**OWN_GATEWAYS, **extra}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=home,
        ) as command:
            assert command.stderr is not None
            next((line for line in command.stderr if "installing" in line), None)
            command.send_signal(signal.SIGINT)
            command.wait(60)
    run = run_pml(home / ".pml", "tools", "--json", "--config", str(config), extra=extra, cwd=home)
    tools = {tool["server"] for tool in json.loads(run.stdout)["tools"]}
    assert tools == servers.keys(), run.stderr
    logs = "".join(path.read_text(encoding="utf-8") for path in (home / ".pml" / "logs").iterdir())
    assert "ERR_MODULE_NOT_FOUND" not in logs
    assert "ENOTEMPTY" not in logs


def test_what_npx_left_incomplete_is_mended(home: Path) -> None:
    config = write_settings(home / ".pml", {"servers": npx_entries(PACKAGE), "upstreams": {"connect_timeout": 60}})
    extra = {"HOME": str(home)}

    def pml(*arguments: str) -> dict[str, Any]:
        run = run_pml(home / ".pml", *arguments, "--json", "--config", str(config), extra=extra, cwd=home)
        answer: dict[str, Any] = json.loads(run.stdout)
        return answer

    assert pml("tools")["tools"]
    (folder,) = (home / ".npm" / "_npx").iterdir()
    shutil.rmtree(folder / "node_modules" / "zod")
    [broken] = [each for each in pml("doctor", "--fix", "--yes")["findings"] if each["area"] == "servers"]
    assert str(folder) in broken["what"], broken
    assert broken["fixed"]
    [mended] = [each for each in pml("doctor")["findings"] if each["area"] == "servers"]
    assert mended["severity"] == "ok", mended
