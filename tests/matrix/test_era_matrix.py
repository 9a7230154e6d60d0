"""Clients of every protocol version in front of servers of either era over every transport."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
import pytest

from tests.matrix.conftest import UPSTREAMS, Matrix
from tests.matrix.server import NUMBERS, WEATHER
from tests.support.raw import MODERN
from tests.support.serving import Serving

pytestmark = pytest.mark.anyio

VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", MODERN]

Ask = Callable[..., Awaitable[dict[str, Any]]]


@asynccontextmanager
async def client(served: Serving, version: str) -> AsyncIterator[Ask]:
    """Asks in one protocol version, without any SDK in between."""
    if version == MODERN:
        yield served.result
        return
    async with served.handshake(version=version) as session:

        async def ask(method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
            return await anyio.to_thread.run_sync(lambda: session.result(method, params))

        assert session.initialized["protocolVersion"] == version
        yield ask


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_client_of_any_version_gets_everything_of_every_upstream(matrix: Matrix, version: str) -> None:
    async with matrix() as served, client(served, version) as ask:
        await tools_are_listed_with_what_the_version_knows(ask, version)
        await calls_answer_in_the_shape_of_the_version(ask, version)
        await prompts_resources_and_completions_arrive(ask)


async def tools_are_listed_with_what_the_version_knows(ask: Ask, version: str) -> None:
    listed = {tool["name"]: tool for tool in (await ask("tools/list"))["tools"]}
    for name, era in UPSTREAMS.items():
        plain, weather = listed[f"{name}__plain"], listed[f"{name}__weather"]
        assert plain["description"] == "Answers with a text.", name
        assert ("annotations" in plain) == (version >= "2025-03-26"), name
        assert ("title" in plain) == ("_meta" in plain) == (version >= "2025-06-18"), name
        assert ("icons" in plain) == (version >= "2025-11-25"), name
        assert ("outputSchema" in weather) == (version >= "2025-06-18"), name
        assert (f"{name}__numbers" in listed) == (era == "new"), name
        if era == "new":
            assert ("outputSchema" in listed[f"{name}__numbers"]) == (version == MODERN), name


async def calls_answer_in_the_shape_of_the_version(ask: Ask, version: str) -> None:
    for name, era in UPSTREAMS.items():
        plain = await ask("tools/call", {"name": f"{name}__plain", "arguments": {"wer": "Jörg 🎈"}})
        assert plain["content"] == [{"type": "text", "text": "plain {'wer': 'Jörg 🎈'}"}], name
        assert plain["_meta"]["example.org/took"] == 3, name
        assert plain.get("resultType") == ("complete" if version == MODERN else None), name
        weather = await ask("tools/call", {"name": f"{name}__weather", "arguments": {}})
        assert weather.get("structuredContent") == WEATHER, name
        if era == "new":
            numbers = await ask("tools/call", {"name": f"{name}__numbers", "arguments": {}})
            assert numbers.get("structuredContent") == (NUMBERS if version == MODERN else None), name
            assert numbers["content"], name


async def prompts_resources_and_completions_arrive(ask: Ask) -> None:
    prompts = [prompt["name"] for prompt in (await ask("prompts/list"))["prompts"]]
    resources = [resource["uri"] for resource in (await ask("resources/list"))["resources"]]
    templates = [one["uriTemplate"] for one in (await ask("resources/templates/list"))["resourceTemplates"]]
    assert len(prompts) == len(resources) == len(templates) == len(UPSTREAMS)
    for name in prompts:
        got = await ask("prompts/get", {"name": name, "arguments": {"who": "Zoë"}})
        assert got["messages"] == [{"role": "user", "content": {"type": "text", "text": "Hello Zoë"}}], name
        completed = await ask(
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": name}, "argument": {"name": "who", "value": "Zo"}},
        )
        assert completed["completion"]["values"] == ["Zo…"], name
    for uri in resources:
        (contents,) = (await ask("resources/read", {"uri": uri}))["contents"]
        assert contents["text"].startswith("note note://"), uri
        assert contents["uri"] == uri
