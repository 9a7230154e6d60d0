"""Clients of every protocol version in front of servers of either era over every transport."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from benchmarks.machine.client import start_client
from tests.matrix.conftest import UPSTREAMS, Matrix, over_the_network
from tests.matrix.server import NUMBERS, WEATHER
from tests.support.process import OverStdio, over_stdio, write_settings
from tests.support.raw import MODERN
from tests.support.serving import LIMIT, Serving

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

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


@pytest.mark.parametrize("over", ["stdio", "bridge"])
@pytest.mark.parametrize("version", VERSIONS)
async def test_so_does_one_that_starts_the_gateway_or_a_bridge_to_it(
    tmp_path: Path, over: OverStdio, version: str
) -> None:
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    entries: dict[str, dict[str, Any]] = {
        name: {"command": sys.executable, "args": ["-m", "tests.matrix.server", era], "env": environment}
        for name, era in UPSTREAMS.items()
        if name.startswith("stdio")
    }
    async with AsyncExitStack() as stack:
        entries |= await over_the_network(stack)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        write_settings(tmp_path, {"servers": entries, "gateway": {"tools_exposure": "full_proxy"}})
        entry = stack.enter_context(over_stdio(over, tmp_path))
        program = [entry["command"], *entry["args"]]
        session = await start_client(
            tasks, "raw", program, folder=tmp_path, environment=entry["env"], version=version, announced={}
        )
        try:
            with anyio.fail_after(LIMIT):
                await session.open()
                await until_listed(session.result)
                await tools_are_listed_with_what_the_version_knows(session.result, version)
                await calls_answer_in_the_shape_of_the_version(session.result, version)
                await prompts_resources_and_completions_arrive(session.result)
        finally:
            await session.leave()


async def until_listed(ask: Ask) -> None:
    """The first start waits for its servers, but not for long."""
    known, prompts = set[str](), 0
    while known != UPSTREAMS.keys() or prompts < len(UPSTREAMS):
        known = {tool["name"].partition("__")[0] for tool in (await ask("tools/list"))["tools"]} & UPSTREAMS.keys()
        # The first of several prompts of a name keeps it as it is.
        prompts = len((await ask("prompts/list"))["prompts"])
        await anyio.sleep(0.05)


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
