"""A gateway over stdio has one client, whose upstreams need one process each: started, listed, asked in its name."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.support.asking import Person
from tests.support.process import environment, serve_alone, write_settings
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.anyio, pytest.mark.slow]

ASKING = Path(__file__).parents[1] / "support" / "asking.py"
ROOT = Path(__file__).parents[2]
LIMIT = 120
CALL_TIMEOUT = 4


@asynccontextmanager
async def gateway(folder: Path, *arguments: str, **definition: Any) -> AsyncIterator[StdioServerParameters]:
    """How a client starts a gateway over stdio in front of a server that notes what happens to it."""
    up = {
        "command": sys.executable,
        "args": [str(ASKING), "--notes", str(folder), *arguments],
        "env": {"PYTHONPATH": str(ROOT)},
        **definition,
    }
    config = write_settings(folder, {"servers": {"up": up}, "gateway": {"tools_exposure": "full_proxy"}})
    with anyio.fail_after(LIMIT):
        command, *options = serve_alone("--config", str(config))
        yield StdioServerParameters(command=command, args=options, env=environment(folder))


async def lists(client: Client, name: str) -> list[str]:
    """All tools, once this one is among them."""
    while name not in (names := [tool.name for tool in (await client.list_tools()).tools]):  # noqa: ASYNC110  # may not be announced
        await anyio.sleep(0.05)
    return names


async def call(client: Client, tool: str, text: str) -> str:
    result = await client.call_tool(f"up__{tool}", {"text": text})
    return str(result.content[0].text)  # type: ignore[union-attr]


def processes(folder: Path) -> int:
    return len(list((folder / "pids").glob("*")))


@pytest.mark.parametrize("sessions", ["shared", "per_client"])
async def test_one_process_lists_and_asks_for_the_client(tmp_path: Path, sessions: str) -> None:
    ada = Person("ada")
    ada.answers = anyio.Event()
    said: dict[str, str] = {}
    async with gateway(tmp_path, sessions=sessions) as parameters, ada.client(parameters, modern=False) as client:
        assert "up__sample" in await lists(client, "up__plain")
        await until((tmp_path / "roots").exists)

        async def ask(text: str) -> None:
            said[text] = await call(client, "ask", text)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "one")
            tasks.start_soon(ask, "two")
            # Both are asked before either is answered.
            await until(lambda: sorted(ada.asked) == ["one", "two"])
            assert await call(client, "plain", "meanwhile") == "plain meanwhile"
            ada.answers.set()
        assert said == {"one": "ada: one", "two": "ada: two"}
        assert await call(client, "sample", "who") == "ada: who"
        assert await call(client, "roots", "") == "file:///ada"
        assert await call(client, "visit", "go") == "accept"
    assert processes(tmp_path) == 1
    assert (tmp_path / "roots").read_text() == "file:///ada"


async def test_time_limits_stand_still_while_the_client_is_asked(tmp_path: Path) -> None:
    ada = Person("ada")
    ada.answers = anyio.Event()
    async with (
        gateway(tmp_path, call_timeout=CALL_TIMEOUT) as parameters,
        ada.client(parameters, modern=False) as client,
        anyio.create_task_group() as tasks,
    ):
        await lists(client, "up__ask")
        said: list[str] = []

        async def ask() -> None:
            said.append(await call(client, "ask", "who"))

        tasks.start_soon(ask)
        await until(lambda: ada.asked)
        asked_at = time.monotonic()
        await until(lambda: time.monotonic() > asked_at + CALL_TIMEOUT)
        ada.answers.set()
        await until(lambda: said)
        assert said == ["ada: who"]


async def test_a_call_that_its_client_cancels_withdraws_its_question(tmp_path: Path) -> None:
    ada = Person("ada")
    ada.answers = anyio.Event()
    async with gateway(tmp_path) as parameters, ada.client(parameters, modern=False) as client:
        await lists(client, "up__ask")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, client, "ask", "first")
            await until(lambda: ada.asked)
            tasks.cancel_scope.cancel()
        ada.answers.set()
        assert await call(client, "ask", "second") == "ada: second"
    assert processes(tmp_path) == 1


async def test_a_client_that_cannot_be_asked_is_told_no_more_than_before(tmp_path: Path) -> None:
    async with gateway(tmp_path) as parameters, Client(parameters, mode="legacy") as client:
        assert "up__sample" not in await lists(client, "up__plain")
        assert await call(client, "plain", "x") == "plain x"
        assert (await call(client, "ask", "x")).startswith("refused -32601")
    assert processes(tmp_path) == 1
    assert not (tmp_path / "roots").exists()


async def test_an_upstream_connected_before_the_client_spoke_is_connected_anew_once(tmp_path: Path) -> None:
    ada = Person("ada")

    @asynccontextmanager
    async def hesitating(parameters: StdioServerParameters) -> AsyncIterator[Any]:
        async with stdio_client(parameters) as streams:
            await until(lambda: processes(tmp_path))
            yield streams

    async with gateway(tmp_path) as parameters, ada.client(hesitating(parameters), modern=False) as client:
        await lists(client, "up__sample")
        assert await call(client, "ask", "who") == "ada: who"
        assert await call(client, "roots", "") == "file:///ada"
    assert processes(tmp_path) == 2


@pytest.mark.filterwarnings("ignore:The logging capability is deprecated")
async def test_logs_of_the_shared_session_are_the_clients(tmp_path: Path) -> None:
    ada = Person("ada")
    async with gateway(tmp_path) as parameters, ada.client(parameters, modern=False) as client:
        await lists(client, "up__log")
        await client.set_logging_level("error")
        assert await call(client, "log", "ada") == "logged"
        await until(lambda: ada.logs)
    assert ada.logs == ["error ada"]
    assert processes(tmp_path) == 1


@pytest.mark.parametrize("arguments", [(), ("--modern",)], ids=["up-handshake", "up-2026"])
async def test_a_stateless_client_is_listed_what_it_can_be_asked_for(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    ada = Person("ada")
    async with gateway(tmp_path, *arguments) as parameters, ada.client(parameters, modern=True) as client:
        assert "up__sample" in await lists(client, "up__plain")
        assert await call(client, "sample", "who") == "ada: who"
        assert await call(client, "twice", "who") == "ada: who and ada: who"
