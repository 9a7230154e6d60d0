"""One client cannot lock others out: places at servers, sessions, and what is kept for later are shared fairly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from pml_gateway.upstreams.concurrency import CallLimit
from tests.support.local import machine
from tests.support.memory import settings_for
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import serving
from tests.support.waiting import LIMIT, until

pytestmark = pytest.mark.anyio

KEY_A, KEY_B = "key-of-client-a-0123456789", "key-of-client-b-0123456789"
EVERYTHING = {"tools_exposure": "full_proxy"}
CLIENTS = {"a": {"key": "${env:PML_TEST_KEY_A}"}, "b": {"key": "${env:PML_TEST_KEY_B}"}}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PML_TEST_KEY_A", KEY_A)
    monkeypatch.setenv("PML_TEST_KEY_B", KEY_B)


def held_up() -> tuple[ScriptedServer, anyio.Event]:
    go_on = anyio.Event()

    async def wait(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        await go_on.wait()
        return text_result(f"done {call['arguments']['n']}")

    return ScriptedServer([tool("wait", properties={"n": {"type": "string"}})], wait), go_on


async def test_a_client_that_fills_an_upstreams_queue_makes_no_others_call_busy(tmp_path: Path) -> None:
    upstream, go_on = held_up()
    limits = {"max_concurrent": 2, "max_queue": 4}
    answers: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}
    settings = settings_for({"up": upstream}, clients=CLIENTS, upstreams=limits)
    async with serving(tmp_path, {"up": upstream}, settings) as served:
        limit = served.gateway.pool.upstreams["up"]

        async def call(client: str, key: str) -> None:
            answers[client].append(await served.call("up__wait", {"n": client}, key=key))

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(call, "a", KEY_A)
            await until(lambda: limit.waiting == 4 and len(answers["a"]) == 2)
            tasks.start_soon(call, "b", KEY_B)
            # It takes the place of the call of the other client that came last.
            await until(lambda: answers["b"] or len(answers["a"]) == 3)
            go_on.set()
    (answer,) = answers["b"]
    assert answer["content"][0]["text"] == "done b"
    refused = [each["structuredContent"]["error"] for each in answers["a"] if each.get("isError")]
    assert [error["code"] for error in refused] == ["BUSY"] * 3
    # Client b's call was not the last to be served, although it came last.
    assert [each["arguments"]["n"] for each in upstream.calls].index("b") == 2


async def test_a_lone_client_has_all_places_and_the_whole_queue() -> None:
    limit = CallLimit("up", 2, 2)
    async with anyio.create_task_group() as tasks:
        running: list[int] = []

        async def call(number: int) -> None:
            async with limit.taken(anyio.current_time() + 60, share="a"):
                running.append(number)
                await anyio.sleep_forever()

        for number in range(4):
            tasks.start_soon(call, number)
        await until(lambda: limit.waiting == 2)
        assert running == [0, 1]
        tasks.cancel_scope.cancel()
    assert limit.is_unused


async def test_local_clients_have_a_place_however_long_the_calls_of_another_take(tmp_path: Path) -> None:
    upstream, go_on = held_up()
    settings = settings_for({"up": upstream}, gateway=EVERYTHING, upstreams={"max_concurrent": 4})
    async with (
        machine(tmp_path, {"up": upstream}, settings) as served,
        served.unable("a") as first,
        anyio.create_task_group() as tasks,
    ):
        assert await served.gateway.refresh(LIMIT)

        def sent() -> str:
            return "".join(each["arguments"]["n"] for each in upstream.calls)

        async with served.unable("b") as second, served.unable("c") as third:
            for _ in range(5):
                tasks.start_soon(first.call_tool, "up__wait", {"n": "a"})
            await until(lambda: served.up.waiting == 3 and sent() == "aa")
            tasks.start_soon(second.call_tool, "up__wait", {"n": "b"})
            await until(lambda: sent() == "aab")
            tasks.start_soon(third.call_tool, "up__wait", {"n": "c"})
            await until(lambda: sent() == "aabc")
            go_on.set()
            await until(lambda: len(upstream.calls) == 7 and not served.up.in_flight)


async def test_places_that_were_kept_for_a_client_are_handed_out_when_it_leaves(tmp_path: Path) -> None:
    upstream, go_on = held_up()
    settings = settings_for({"up": upstream}, gateway=EVERYTHING, upstreams={"max_concurrent": 2})
    async with (
        machine(tmp_path, {"up": upstream}, settings) as served,
        served.unable("a") as first,
        anyio.create_task_group() as tasks,
    ):
        assert await served.gateway.refresh(LIMIT)
        async with served.unable("b"):
            for _ in range(2):
                tasks.start_soon(first.call_tool, "up__wait", {"n": "a"})
            await until(lambda: served.up.waiting == 1 and len(upstream.calls) == 1)
        await until(lambda: len(upstream.calls) == 2)
        go_on.set()
