"""Handshake sessions over HTTP: how many one client has, which of them gives way, and when one that is idle ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from pml_gateway.serve.limits import sessions as limits
from tests.support.raw import HandshakeSession, post_initialize
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving
from tests.support.waiting import LIMIT, until

pytestmark = pytest.mark.anyio

KEY_A, KEY_B = "key-of-client-a-0123456789", "key-of-client-b-0123456789"
CLIENTS = {"a": {"key": "${env:PML_TEST_KEY_A}"}, "b": {"key": "${env:PML_TEST_KEY_B}"}}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PML_TEST_KEY_A", KEY_A)
    monkeypatch.setenv("PML_TEST_KEY_B", KEY_B)


@asynccontextmanager
async def opened(served: Serving, count: int, key: str | None = None) -> AsyncIterator[list[HandshakeSession]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(served.handshake(key=key)) for _ in range(count)]


async def status(session: HandshakeSession) -> int:
    return (await anyio.to_thread.run_sync(lambda: session.send("ping"))).status_code


def held_up() -> tuple[ScriptedServer, anyio.Event]:
    go_on = anyio.Event()

    async def wait(_ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        await go_on.wait()
        return text_result("done")

    return ScriptedServer([tool("wait")], wait), go_on


async def test_a_client_with_too_many_sessions_loses_the_one_it_used_longest_ago(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, {"up": ScriptedServer([tool("t")])}, clients=CLIENTS, http={"max_client_sessions": 2}) as on,
        opened(on, 1, KEY_B) as [another],
        opened(on, 2, KEY_A) as [first, second],
    ):
        assert await status(first) == 200
        async with opened(on, 1, KEY_A) as [third]:
            assert [await status(each) for each in (first, second, third, another)] == [200, 404, 200, 200]


async def test_a_session_that_is_answering_is_not_the_one_that_ends(tmp_path: Path) -> None:
    upstream, go_on = held_up()
    answered: list[int] = []
    async with (
        serving(tmp_path, {"up": upstream}, http={"max_client_sessions": 2}) as on,
        opened(on, 2) as [busy, idle],
        anyio.create_task_group() as tasks,
    ):

        async def call() -> None:
            params = {"name": "up__wait", "arguments": {}}
            answered.append((await anyio.to_thread.run_sync(lambda: busy.send("tools/call", params))).status_code)

        tasks.start_soon(call)
        await until(lambda: upstream.calls)
        async with opened(on, 1) as [third]:
            assert [await status(each) for each in (idle, third)] == [404, 200]
            go_on.set()
            await until(lambda: answered)
            assert [*answered, await status(busy)] == [200, 200]


async def test_a_client_all_of_whose_sessions_are_answering_opens_no_more(tmp_path: Path) -> None:
    upstream, go_on = held_up()
    async with (
        serving(tmp_path, {"up": upstream}, http={"max_client_sessions": 1}) as on,
        opened(on, 1) as [busy],
        anyio.create_task_group() as tasks,
    ):
        params = {"name": "up__wait", "arguments": {}}
        tasks.start_soon(anyio.to_thread.run_sync, lambda: busy.send("tools/call", params))
        await until(lambda: upstream.calls)
        refused = await anyio.to_thread.run_sync(lambda: post_initialize(on.url))
        go_on.set()
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
    assert "http.max_client_sessions" in refused.text


async def test_where_all_clients_have_too_many_the_one_with_most_loses_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_SESSIONS", 4)
    async with (
        serving(tmp_path, {"up": ScriptedServer([tool("t")])}, clients=CLIENTS) as on,
        opened(on, 1, KEY_B) as [another],
        opened(on, 5, KEY_A) as own,
        opened(on, 1, KEY_B) as [later],
    ):
        assert [await status(each) for each in (another, later)] == [200, 200]
        assert [await status(each) for each in own] == [404, 404, 404, 200, 200]


async def test_sessions_that_nobody_uses_end(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, {"up": ScriptedServer([tool("t")])}, http={"session_idle_seconds": 0.2}) as on,
        opened(on, 1) as [session],
    ):
        pause = 0.2
        with anyio.fail_after(LIMIT):
            while await status(session) != 404:  # noqa: ASYNC110  # nothing tells of its end
                # Each use begins its time anew.
                await anyio.sleep(pause := 2 * pause)
