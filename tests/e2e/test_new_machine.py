"""The first minutes on a machine with nothing on it: an empty home, no npm cache, one npm server in a client's file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

from tests.support.process import environment, run_pml
from tests.support.skipping import unavailable

from .install import NPM_PACKAGES, InstallationError

pytestmark = [pytest.mark.e2e, pytest.mark.heavy, pytest.mark.anyio]

PACKAGE = "@modelcontextprotocol/server-memory"
PINNED = f"{PACKAGE}@{NPM_PACKAGES[PACKAGE]}"
LOOK_UP_SECONDS = 60
DOWNLOAD_SECONDS = 180


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with nothing but the address of the registry, where this machine has one of its own."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("npx") is None:
        unavailable(InstallationError("npm and npx are not on PATH"))
    home = tmp_path / "home"
    home.mkdir()
    try:
        subprocess.run(
            [npm, "view", PINNED, "version"], check=True, capture_output=True, timeout=LOOK_UP_SECONDS, cwd=tmp_path
        )
        registry = subprocess.run(
            [npm, "config", "get", "registry"], check=True, capture_output=True, text=True, timeout=LOOK_UP_SECONDS
        ).stdout.strip()
    except (subprocess.SubprocessError, OSError) as exc:
        unavailable(InstallationError(f"the npm registry does not answer: {exc}"))
    (home / ".npmrc").write_text(f"registry={registry}\n", encoding="utf-8")
    return home


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
    with anyio.fail_after(DOWNLOAD_SECONDS):
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
