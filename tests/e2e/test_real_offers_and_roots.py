"""What real servers offer beside tools, and roots, with the Python clients: through the gateway as directly."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import mcp_types
import pytest
from fastmcp import Client as FastMCPClient
from fastmcp.client.transports import StdioTransport
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import PromptReference, ResourceTemplateReference

from tests.support.process import over_stdio, run_pml, running_gateway, write_settings

from .install import Installation
from .servers import real_servers

pytestmark = [pytest.mark.e2e, pytest.mark.anyio]

LIMIT = 90
DOCUMENT = "demo://resource/static/document/architecture.md"
TEMPLATE = "demo://resource/dynamic/text/{resourceId}"
_TIME_OF_DAY = re.compile(r"\d{1,2}:\d\d:\d\d [AP]M")

_BLOB = re.compile(r'(?<="blob":")([^"]*)')

Over = Literal["stdio", "bridge", "http"]


@asynccontextmanager
async def gateway(over: Over, home: Path, **servers: dict[str, Any]) -> AsyncIterator[Any]:
    """What reaches a gateway that keeps the names and knows what the servers offer: a URL, or a stdio entry."""
    settings = {"gateway": {"tools_exposure": "full_proxy"}, "naming": {"prefix": "never"}, "servers": servers}
    write_settings(home, settings)
    listed = run_pml(home, "tools")
    assert listed.returncode == 0, listed.stderr
    if over == "http":
        with running_gateway(home, settings) as process:
            yield process.url
        return
    with over_stdio(over, home) as entry:
        yield entry


def sdk(target: Any, **options: Any) -> Client:
    """A client of the `mcp` SDK, in the handshake era that real servers speak."""
    if isinstance(target, str):
        return Client(target, mode="legacy", **options)
    return Client(stdio_client(StdioServerParameters(**target)), mode="legacy", **options)


def fastmcp(target: Any) -> FastMCPClient[Any]:
    """A FastMCP client."""
    if isinstance(target, str):
        return FastMCPClient(target)
    return FastMCPClient(StdioTransport(target["command"], target["args"], env=target.get("env"), keep_alive=False))


@pytest.fixture(scope="module")
def entries(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return real_servers(installation, tmp_path_factory.mktemp("offers") / "servers")


def written(result: Any) -> Any:
    """A result, or a list of definitions, as JSON; without what differs from one moment to the next."""
    items = result if isinstance(result, list) else [result]
    dumped = [item.model_dump_json(by_alias=True, exclude_none=True, exclude={"meta"}) for item in items]
    return [_TIME_OF_DAY.sub("TIME", _BLOB.sub(lambda found: b64decode(found[1]).decode(), each)) for each in dumped]


async def what_the_sdk_gets(target: Any) -> list[Any]:
    """Every offer of server-everything, and an update of a resource, as a client of the `mcp` SDK gets them."""
    updates: list[str] = []
    updated = anyio.Event()

    async def note(message: Any) -> None:
        if isinstance(message, mcp_types.ResourceUpdatedNotification):
            updates.append(str(message.params.uri))
            updated.set()

    async with sdk(target, message_handler=note) as client:
        department = PromptReference(type="ref/prompt", name="completable-prompt")
        template = ResourceTemplateReference(type="ref/resource", uri=TEMPLATE)
        found = [
            (await client.list_prompts()).prompts,
            (await client.list_resources()).resources,
            (await client.list_resource_templates()).resource_templates,
            await client.get_prompt("resource-prompt", {"resourceType": "Text", "resourceId": "7"}),
            await client.read_resource(DOCUMENT),
            await client.read_resource("demo://resource/dynamic/blob/7"),
            await client.complete(department, {"name": "name", "value": "E"}, {"department": "Sales"}),
            await client.complete(template, {"name": "resourceId", "value": "12"}),
        ]
        await client.subscribe_resource(DOCUMENT)
        await client.call_tool("toggle-subscriber-updates", {})
        await updated.wait()
        await client.unsubscribe_resource(DOCUMENT)
    return [*map(written, found), updates[0]]


async def what_fastmcp_gets(target: Any) -> list[Any]:
    """The same offers as a FastMCP client gets them."""
    async with fastmcp(target) as client:
        department = PromptReference(type="ref/prompt", name="completable-prompt")
        found = [
            await client.list_prompts(),
            await client.list_resources(),
            await client.list_resource_templates(),
            await client.get_prompt("args-prompt", {"city": "Bern", "state": "Bern"}),
            await client.read_resource(DOCUMENT),
            await client.complete(department, {"name": "department", "value": "S"}),
        ]
    return [*map(written, found)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is removed as of")
@pytest.mark.parametrize("over", ["stdio", "bridge", "http"])
async def test_offers_and_updates_arrive_as_they_do_directly(
    tmp_path: Path, entries: dict[str, dict[str, Any]], over: Over
) -> None:
    everything = entries["everything"]
    with anyio.fail_after(LIMIT):
        async with gateway(over, tmp_path, everything=everything) as target:
            for what_it_gets in (what_the_sdk_gets, what_fastmcp_gets):
                direct = await what_it_gets(everything)
                assert await what_it_gets(target) == direct


class Workspace:
    """A client's roots, which it may change."""

    def __init__(self, folder: Path) -> None:
        self.folders = [folder / "first", folder / "second"]
        for each in self.folders:
            each.mkdir()
            (each / "note.txt").write_text(f"kept in {each.name}", encoding="utf-8")
        self.opened = self.folders[0]

    async def roots(self, _context: Any) -> mcp_types.ListRootsResult:
        return mcp_types.ListRootsResult(roots=[mcp_types.Root(uri=self.opened.as_uri())])  # type: ignore[arg-type]

    async def read(self, client: Client, folder: Path) -> str:
        result = await client.call_tool("read_text_file", {"path": str(folder / "note.txt")})
        return str(result.content[0].text)  # type: ignore[union-attr]


async def until(holds: Callable[[str], bool], ask: Callable[[], Any]) -> str:
    """Ask until the answer holds: the server takes up new roots between calls, and tells nobody when it has."""
    while not holds(answer := str(await ask())):  # noqa: ASYNC110  # nothing tells
        await anyio.sleep(0.02)
    return answer


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("over", ["direct", "stdio", pytest.param("bridge", marks=pytest.mark.slow), "http"])
async def test_the_directories_of_server_filesystem_follow_the_clients_roots(
    tmp_path: Path, entries: dict[str, dict[str, Any]], over: Literal["direct"] | Over
) -> None:
    filesystem, workspace = entries["filesystem"], Workspace(tmp_path)
    first, second = workspace.folders
    async with _reached(over, tmp_path / "home", filesystem) as target:
        with anyio.fail_after(LIMIT):
            async with sdk(target, list_roots_callback=workspace.roots) as client:
                assert await until(lambda text: "denied" not in text, lambda: workspace.read(client, first)) == (
                    "kept in first"
                )
                assert "denied" in await workspace.read(client, second)
                workspace.opened = second
                await client.send_roots_list_changed()
                assert await until(lambda text: "denied" not in text, lambda: workspace.read(client, second)) == (
                    "kept in second"
                )
                assert "denied" in await workspace.read(client, first)


@asynccontextmanager
async def _reached(over: Literal["direct"] | Over, home: Path, entry: dict[str, Any]) -> AsyncIterator[Any]:
    if over == "direct":
        yield entry
        return
    async with gateway(over, home, filesystem=entry) as target:
        yield target
