"""The gateway as a process in front of real third-party servers, met by real clients."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client as FastMCPClient
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from mcp_types import methods

from pml_gateway.exposure.token_count import count_tokens
from tests.support.meta import LISTED
from tests.support.process import GatewayProcess, run_pml, running_gateway
from tests.support.raw import HandshakeSession, result_modern
from tests.support.waiting import wait_for

from .inspector import Inspector
from .install import Installation
from .servers import real_servers

pytestmark = [pytest.mark.e2e, pytest.mark.anyio]

_TIME_OF_DAY = re.compile(r"\d{1,2}:\d\d:\d\d [AP]M")

MODES = ("meta_only", "semantic", "hybrid", "full_proxy")

CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("everything", "echo", {"message": "grüezi"}),
    ("everything", "get-sum", {"a": 2, "b": 40}),
    ("everything", "get-tiny-image", {}),
    ("everything", "get-resource-reference", {"resourceType": "Text", "resourceId": 1}),
    ("everything", "get-resource-links", {"count": 3}),
    ("everything", "get-structured-content", {"location": "New York"}),
    ("everything", "get-annotated-message", {"messageType": "error", "includeImage": True}),
    ("everything", "get-sum", {"a": "not a number"}),
    ("filesystem", "read_text_file", {"path": "{files}/hello.txt"}),
    ("filesystem", "read_text_file", {"path": "/etc/passwd"}),
    ("filesystem", "list_allowed_directories", {}),
    ("memory", "read_graph", {}),
    ("time", "convert_time", {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}),
    ("time", "convert_time", {"source_timezone": "Nowhere", "time": "12:00", "target_timezone": "UTC"}),
    ("git", "git_log", {"repo_path": "{repository}", "max_count": 1}),
    ("remote", "echo", {"message": "over HTTP"}),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("real")


@pytest.fixture(scope="module")
def entries(installation: Installation, folder: Path, everything_url: str) -> dict[str, dict[str, Any]]:
    return {**real_servers(installation, folder / "servers"), "remote": {"url": everything_url}}


@pytest.fixture(scope="module")
def gateway(folder: Path, entries: dict[str, dict[str, Any]]) -> Iterator[GatewayProcess]:
    local = {name: entry for name, entry in entries.items() if name != "remote"}
    with running_gateway(folder / "home", {"servers": local}) as process:

        def are_listed(names: Iterable[str]) -> bool:
            tools = result_modern(f"{process.url}/full_proxy", "tools/list")["tools"]
            return set(names) <= {tool["name"].partition("__")[0] for tool in tools}

        wait_for(lambda: are_listed(local), "every local server lists its tools")
        # It has the same resources as `everything`, and of two servers the one listed first keeps the URIs.
        process.write_config({"servers": entries})
        wait_for(lambda: are_listed(entries), "the remote server lists its tools too")
        yield process


def _arguments(arguments: dict[str, Any], folder: Path) -> dict[str, Any]:
    places = {"{files}": folder / "servers" / "files", "{repository}": folder / "servers" / "repository"}
    text = json.dumps(arguments)
    for placeholder, path in places.items():
        text = text.replace(placeholder, str(path))
    decoded: dict[str, Any] = json.loads(text)
    return decoded


def _canonical(result: dict[str, Any]) -> str:
    """The protocol's known fields of a result, in one spelling."""
    known = methods.serialize_server_result(
        "tools/call", "2025-11-25", {k: v for k, v in result.items() if k != "_meta"}
    )
    # server-everything writes the time of day into its resources, and the calls compared are moments apart.
    return _TIME_OF_DAY.sub("TIME", json.dumps({"isError": False, **known}, sort_keys=True))


@pytest.mark.slow
async def test_every_call_answers_as_it_does_directly(
    gateway: GatewayProcess, entries: dict[str, dict[str, Any]], folder: Path
) -> None:
    for server, tool, template in CALLS:
        arguments = _arguments(template, folder)
        entry = entries[server]
        transport = (
            StreamableHttpTransport(entry["url"])
            if "url" in entry
            else StdioTransport(entry["command"], entry["args"], env=entry.get("env"), keep_alive=False)
        )
        async with FastMCPClient(transport) as client:
            direct = await client.session.send_request(_request(tool, arguments), _any_result())
        with HandshakeSession(f"{gateway.url}/full_proxy") as session:
            proxied = session.result("tools/call", {"name": f"{server}__{tool}", "arguments": arguments})
            modern = result_modern(gateway.url, "tools/call", {"name": f"{server}__{tool}", "arguments": arguments})
            assert _canonical(proxied) == _canonical(direct), (server, tool)
            assert _canonical({k: v for k, v in modern.items() if k != "resultType"}) == _canonical(direct), (
                server,
                tool,
            )
            if not direct.get("isError"):
                named = session.result(
                    "tools/call",
                    {"name": "call_tool", "arguments": {"name": f"{server}:{tool}", "arguments": arguments}},
                )
                assert _canonical(named) == _canonical(direct), (server, tool)


def _request(tool: str, arguments: dict[str, Any]) -> Any:
    import mcp_types

    return mcp_types.CallToolRequest(params=mcp_types.CallToolRequestParams(name=tool, arguments=arguments))


def _any_result() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(dict[str, Any])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.slow
async def test_every_mode_lists_and_calls_for_the_fastmcp_client(gateway: GatewayProcess, mode: str) -> None:
    async with FastMCPClient(f"{gateway.url}/{mode}?query=read+a+file+from+disk") as client:
        names = [tool.name for tool in await client.list_tools()]
        if mode == "meta_only":
            assert names == LISTED
        elif mode == "full_proxy":
            assert "filesystem__read_text_file" in names
            assert "everything__echo" in names
            assert "remote__echo" in names
            assert "search_tools" not in names
        else:
            assert "filesystem__read_text_file" in names
            assert "time__get_current_time" not in names
        answer = await client.call_tool("everything__get-sum", {"a": 1, "b": 2})
        assert "3" in answer.content[0].text


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_lists_and_calls_for_the_inspector(
    gateway: GatewayProcess, inspector: Callable[..., Inspector], mode: str
) -> None:
    client = inspector(f"{gateway.url}/{mode}?query=read+a+file+from+disk")
    names = [tool["name"] for tool in client.list_tools()]
    assert ("search_tools" in names) == (mode != "full_proxy")
    # The inspector calls nothing that is not listed, which is what call_tool is for.
    message = {"message": "from the inspector"}
    by_name = {"name": "everything__echo", "arguments": message}
    direct = mode == "full_proxy"
    result = client.call_tool("everything__echo", message) if direct else client.call_tool("call_tool", by_name)
    assert "from the inspector" in result["content"][0]["text"]


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_lists_and_calls_for_raw_modern_posts(gateway: GatewayProcess, mode: str) -> None:
    listed = result_modern(f"{gateway.url}/{mode}", "tools/list", {"query": "read a file from disk"})
    names = [tool["name"] for tool in listed["tools"]]
    assert ("filesystem__read_text_file" in names) == (mode != "meta_only")
    called = result_modern(
        f"{gateway.url}/{mode}", "tools/call", {"name": "everything__echo", "arguments": {"message": "raw"}}
    )
    assert called["content"][0]["text"] == "Echo: raw"
    assert called["resultType"] == "complete"


@pytest.mark.slow
def test_namespaces_of_real_servers_cost_less_than_half_of_their_tools(
    installation: Installation, tmp_path: Path
) -> None:
    known = real_servers(installation, tmp_path / "servers")
    servers = {name: known[name] for name in ("everything", "filesystem", "memory")}
    config = {"gateway": {"style": "namespaces"}, "servers": servers}
    with running_gateway(tmp_path / "home", config) as process:
        assert run_pml(tmp_path / "home", "refresh").returncode == 0
        flat = result_modern(f"{process.url}/full_proxy", "tools/list")["tools"]
        namespaced = result_modern(process.url, "tools/list")["tools"]
    beside = ["search_tools", "call_batch", "execute_workflow", "read_result"]
    assert [one["name"] for one in namespaced] == [*beside, *sorted(servers)]
    assert len(flat) >= 36
    tokens = [count_tokens(json.dumps(tools, separators=(",", ":"))) for tools in (namespaced, flat)]
    assert tokens[0] <= 0.45 * tokens[1]
