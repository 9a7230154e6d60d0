"""One client cannot lock others out: places at servers, sessions, and what is kept for later are shared fairly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from mcp.client.client import Client as McpClient

from pml_gateway.quotas import RECENT_SECONDS, Visitors
from pml_gateway.upstreams.concurrency import CallLimit
from tests.support.local import machine
from tests.support.memory import settings_for
from tests.support.raw import META, MODERN
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


async def stateless(url: str, call: dict[str, Any] | None, *, key: str = "", local: str | None = None) -> None:
    """A stateless request of a client: a call, or a list."""
    method, params = ("tools/list", {}) if call is None else ("tools/call", call)

    def send() -> None:
        with httpx2.Client(transport=httpx2.HTTPTransport(local_address=local), timeout=LIMIT) as client:
            headers = {
                "accept": "application/json, text/event-stream",
                "mcp-protocol-version": MODERN,
                "mcp-method": method,
                **({"mcp-name": call["name"]} if call else {}),
                **({"authorization": f"Bearer {key}"} if key else {}),
            }
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
            assert client.post(url, json=body, headers=headers).status_code == 200

    await anyio.to_thread.run_sync(send)


async def test_a_client_that_fills_an_upstreams_queue_makes_no_others_call_busy(tmp_path: Path) -> None:
    upstream, go_on = held_up()
    limits = {"max_concurrent": 2, "max_queue": 4}
    answers: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}
    settings = settings_for({"up": upstream}, clients=CLIENTS, upstreams=limits)
    async with serving(tmp_path, {"up": upstream}, settings) as served:
        limit = served.gateway.pool.upstreams["up"].activity.limit

        async def call(client: str, key: str) -> None:
            answers[client].append(await served.call("up__wait", {"n": client}, key=key))

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(call, "a", KEY_A)
            await until(lambda: limit.waiting == 4 and len(answers["a"]) == 3)
            tasks.start_soon(call, "b", KEY_B)
            await until(lambda: [each["arguments"]["n"] for each in upstream.calls] == ["a", "b"])
            tasks.start_soon(call, "b", KEY_B)
            # It waits in the place of the call of the other client that came last.
            await until(lambda: len(answers["a"]) == 4)
            go_on.set()
    assert [answer["content"][0]["text"] for answer in answers["b"]] == ["done b"] * 2
    refused = [each["structuredContent"]["error"] for each in answers["a"] if each.get("isError")]
    assert [error["code"] for error in refused] == ["BUSY"] * 4


@pytest.mark.field("A5")
@pytest.mark.parametrize("clients", [CLIENTS, {}], ids=["keys", "addresses"])
async def test_slow_calls_over_http_keep_no_other_client_waiting(tmp_path: Path, clients: dict[str, Any]) -> None:
    upstream, go_on = held_up()
    settings = settings_for({"up": upstream}, clients=clients, gateway=EVERYTHING, upstreams={"max_concurrent": 8})
    async with serving(tmp_path, {"up": upstream}, settings) as served, anyio.create_task_group() as tasks:
        up = served.gateway.pool.upstreams["up"]

        async def call(name: str, key: str, local: str) -> None:
            options = {"key": key} if clients else {"local": local}
            await stateless(served.url, {"name": "up__wait", "arguments": {"n": name}}, **options)

        if not clients:
            # Somebody at another address is known from a request of a moment ago.
            await stateless(served.url, None, local="127.0.0.2")
        for _ in range(8):
            tasks.start_soon(call, "a", KEY_A, "127.0.0.1")
        await until(lambda: up.activity.limit.waiting + len(upstream.calls) == 8)
        tasks.start_soon(call, "b", KEY_B, "127.0.0.2")
        await until(lambda: "b" in [each["arguments"]["n"] for each in upstream.calls])
        assert up.activity.limit.waiting
        go_on.set()


@pytest.mark.field("A5")
async def test_clients_over_stdio_and_http_keep_places_for_each_other(tmp_path: Path) -> None:
    visitors, local, limit = Visitors(), 1, list[CallLimit]()
    limit.append(CallLimit("up", 8, 8, lambda: len(visitors) + local))
    visitors.note("client:a")
    async with anyio.create_task_group() as tasks:
        running: list[str] = []

        async def call(quota_key: str) -> None:
            async with limit[0].taken(anyio.current_time() + 60, quota_key=quota_key):
                running.append(quota_key)
                await anyio.sleep_forever()

        for _ in range(8):
            tasks.start_soon(call, "client:a")
        await until(lambda: limit[0].waiting == 1)
        tasks.start_soon(call, "local:x")
        await until(lambda: running == ["client:a"] * 7 + ["local:x"])
        tasks.cancel_scope.cancel()


def test_a_client_over_http_is_there_for_some_minutes_after_a_request() -> None:
    now = [0.0]
    visitors = Visitors(lambda: now[0])
    visitors.note("address:192.0.2.1")
    now[0] = RECENT_SECONDS - 1
    visitors.note("client:a")
    visitors.expected = frozenset({"client:a", "client:b"})
    assert len(visitors) == 3
    now[0] += 2
    assert len(visitors) == 2


async def test_a_lone_client_has_all_places_and_the_whole_queue() -> None:
    limit = CallLimit("up", 2, 2)
    async with anyio.create_task_group() as tasks:
        running: list[int] = []

        async def call(number: int) -> None:
            async with limit.taken(anyio.current_time() + 60, quota_key="a"):
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

        answered: list[str] = []

        async def call(client: McpClient, n: str) -> None:
            await client.call_tool("up__wait", {"n": n})
            answered.append(n)

        async with served.unable("b") as second, served.unable("c") as third:
            for _ in range(5):
                tasks.start_soon(call, first, "a")
            await until(lambda: served.up.activity.limit.waiting == 3 and sent() == "aa")
            tasks.start_soon(call, second, "b")
            await until(lambda: sent() == "aab")
            tasks.start_soon(call, third, "c")
            await until(lambda: sent() == "aabc")
            go_on.set()
            await until(lambda: len(answered) == 7)


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
            await until(lambda: served.up.activity.limit.waiting == 1 and len(upstream.calls) == 1)
        await until(lambda: len(upstream.calls) == 2)
        go_on.set()
