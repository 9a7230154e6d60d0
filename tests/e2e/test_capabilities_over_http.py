"""What server-everything offers to clients that can be asked something, through a gateway over HTTP as directly."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import anyio
import mcp_types
import pytest
from mcp.client.client import Client

from tests.support.asking import Person

from .install import Installation
from .servers import real_servers
from .test_real_offers_and_roots import DOCUMENT, gateway, sdk

pytestmark = [pytest.mark.e2e, pytest.mark.anyio, pytest.mark.filterwarnings("ignore:.*is removed as of")]

LIMIT = 120
CAPABILITIES: list[tuple[str, ...]] = [
    (),
    ("roots",),
    ("elicitation",),
    ("sampling", "roots"),
    ("elicitation", "sampling"),
]


def options_of(*client_capabilities: str) -> dict[str, Any]:
    ada = Person("ada")
    callbacks: dict[str, dict[str, Any]] = {
        "elicitation": {"elicitation_callback": ada.elicit},
        "sampling": {"sampling_callback": ada.sample},
        "roots": {"list_roots_callback": ada.roots},
    }
    return {key: value for ability in client_capabilities for key, value in callbacks[ability].items()}


async def tools(client: Client) -> list[str]:
    return sorted(each.name for each in (await client.list_tools()).tools)


async def until_listed(client: Client, expected: list[str]) -> None:
    """Servers that take long to start are listed when they have."""
    while await tools(client) != expected:  # noqa: ASYNC110  # may have been announced before
        await anyio.sleep(0.1)


async def update_after_toggling(target: Any) -> str:
    """The resource of which a client is told that follows it and then has the server simulate updates."""
    updates: list[str] = []
    updated = anyio.Event()

    async def note(message: Any) -> None:
        if isinstance(message, mcp_types.ResourceUpdatedNotification):
            updates.append(str(message.params.uri))
            updated.set()

    async with sdk(target, message_handler=note, **options_of("elicitation", "sampling", "roots")) as client:
        await client.subscribe_resource(DOCUMENT)
        await client.call_tool("toggle-subscriber-updates", {})
        await updated.wait()
    return updates[0]


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_clients_are_listed_and_told_what_they_are_directly(
    tmp_path: Path, installation: Installation, everything_url: str, transport: Literal["stdio", "http"]
) -> None:
    entry = real_servers(installation, tmp_path / "servers")["everything"]
    server = {"url": everything_url} if transport == "http" else entry
    with anyio.fail_after(LIMIT):
        async with gateway("http", tmp_path, everything=server) as url:
            known: dict[tuple[str, ...], list[str]] = {}
            for client_capabilities in CAPABILITIES:
                async with sdk(everything_url, **options_of(*client_capabilities)) as direct:
                    known[client_capabilities] = await tools(direct)
                async with sdk(url, **options_of(*client_capabilities)) as client:
                    await until_listed(client, known[client_capabilities])
            assert known["sampling", "roots"] != known["roots",] != known[()]
            async with sdk(url, **options_of("sampling")) as client:
                result = await client.call_tool("trigger-sampling-request", {"prompt": "who", "maxTokens": 5})
                assert "ada: Resource trigger-sampling-request context: who" in result.model_dump_json()
            assert await update_after_toggling(url) == DOCUMENT
