"""The real servers themselves: what the gateway is compared with must work without it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from fastmcp.client import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

from pml_gateway.demo.definitions import demo_servers

from .inspector import Inspector, InspectorError

pytestmark = [pytest.mark.e2e, pytest.mark.anyio]

ANSWER_SECONDS = 60

CALLS: dict[str, tuple[str, dict[str, Any], str]] = {
    "everything": ("echo", {"message": "hi"}, "Echo: hi"),
    "filesystem": ("list_allowed_directories", {}, "files"),
    "memory": ("read_graph", {}, "entities"),
    "time": ("get_current_time", {"timezone": "UTC"}, "UTC"),
    "git": ("git_log", {"repo_path": "."}, "First commit"),
}


@pytest.mark.parametrize("name", CALLS)
async def test_each_stdio_server_lists_tools_and_answers(servers: dict[str, dict[str, Any]], name: str) -> None:
    entry, (tool, arguments, expected) = servers[name], CALLS[name]
    if name == "git":
        arguments = {"repo_path": entry["args"][-1]}
    transport = StdioTransport(entry["command"], entry["args"], env=entry.get("env"), keep_alive=False)
    with anyio.fail_after(ANSWER_SECONDS):
        async with Client(transport) as client:
            names = [listed.name for listed in await client.list_tools()]
            result = await client.call_tool(tool, arguments)
    assert tool in names
    assert expected in str(result.content)


async def test_everything_answers_over_http(everything_url: str) -> None:
    with anyio.fail_after(ANSWER_SECONDS):
        async with Client(StreamableHttpTransport(everything_url)) as client:
            assert "echo" in [tool.name for tool in await client.list_tools()]
            result = await client.call_tool("echo", {"message": "over http"})
    assert "Echo: over http" in str(result.content)


def test_the_inspector_lists_and_calls_over_http(everything_url: str, inspector: Callable[..., Inspector]) -> None:
    remote = inspector(everything_url)
    assert "get-sum" in [tool["name"] for tool in remote.list_tools()]
    result = remote.call_tool("get-sum", {"a": 2, "b": 3})
    assert result["content"] == [{"type": "text", "text": "The sum of 2 and 3 is 5."}]


@pytest.mark.slow
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_lists_and_calls_over_stdio(
    tmp_path: Path, inspector: Callable[..., Inspector], era: str
) -> None:
    entry = demo_servers(tmp_path / "demo")["calc"]
    local = inspector([entry["command"], *entry["args"]], era=era)
    assert "factorize" in [tool["name"] for tool in local.list_tools()]
    assert local.call_tool("factorize", {"number": 12})["structuredContent"]["factors"] == [2, 2, 3]
    assert local.call_tool("factorize", {"number": 0})["isError"] is True
    with pytest.raises(InspectorError, match="tool_not_found"):
        local.call_tool("no such tool", {})


def test_the_inspector_says_why_it_cannot_connect(inspector: Callable[..., Inspector]) -> None:
    with pytest.raises(InspectorError, match="Connection closed"):
        inspector([sys.executable, "-c", "pass", "--config", "not the inspector's"]).list_tools()
