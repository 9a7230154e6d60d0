"""Requests about what another replica holds: passed on to it, whole and once, and only by replicas."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
import pytest

from tests.support.raw import HandshakeSession, decoded
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

KEYS = {"anna": "the key of anna, long enough", "ben": "the key of ben, long enough"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PML_STORAGE_KEY", "a random text that all gateways have")
    for name, key in KEYS.items():
        monkeypatch.setenv(name.upper(), key)


async def whose(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
    return text_result(f"for {call['arguments']['who']}")


@asynccontextmanager
async def replica(redis_url: str, folder: Path, **sections: Any) -> AsyncIterator[Serving]:
    server = ScriptedServer(tools=[tool("whose", properties={"who": {"type": "string"}})], handler=whose)
    given = {"clients": {name: {"key": f"${{env:{name.upper()}}}"} for name in KEYS}, **sections}
    async with serving(folder, {"data": server}, storage={"url": redis_url}, **given) as running:
        yield running


@asynccontextmanager
async def two_replicas(redis_url: str, folder: Path, **sections: Any) -> AsyncIterator[tuple[Serving, Serving]]:
    async with (
        replica(redis_url, folder / "one", **sections) as one,
        replica(redis_url, folder / "two", **sections) as two,
    ):
        for each in (one, two):
            await until(partial(knows_the_other, each))
        yield one, two


def knows_the_other(one: Serving) -> bool:
    replicas = one.gateway.replicas
    assert replicas is not None
    return any(each.url for each in replicas.known[1:])


async def asked(session: HandshakeSession, url: str, method: str, **params: Any) -> httpx2.Response:
    return await anyio.to_thread.run_sync(lambda: session.send(method, params, url))


async def test_a_session_is_used_at_any_replica(redis_url: str, tmp_path: Path) -> None:
    async with two_replicas(redis_url, tmp_path) as (one, two), one.handshake(key=KEYS["anna"]) as session:
        listed = decoded(await asked(session, two.url, "tools/list"))["result"]["tools"]
        called = decoded(
            await asked(
                session,
                two.url,
                "tools/call",
                name="call_tool",
                arguments={"name": "data__whose", "arguments": {"who": "anna"}},
            )
        )
        by_ben = await anyio.to_thread.run_sync(
            lambda: httpx2.post(
                two.url,
                content=json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}),
                headers={**session.headers, "authorization": f"Bearer {KEYS['ben']}"},
            )
        )
        ended = await anyio.to_thread.run_sync(
            lambda: httpx2.request("DELETE", two.url, headers=session.headers, timeout=30)
        )
        after = [await asked(session, each.url, "tools/list") for each in (one, two)]
    assert "call_tool" in {tool["name"] for tool in listed}
    assert called["result"]["content"][0]["text"] == "for anna"
    assert by_ben.status_code == 404
    assert ended.status_code == 200
    assert [each.status_code for each in after] == [404, 404]


async def test_the_session_of_a_replica_that_has_ended_is_not_found(redis_url: str, tmp_path: Path) -> None:
    async with replica(redis_url, tmp_path / "two") as two:
        async with replica(redis_url, tmp_path / "one") as one:
            session = await anyio.to_thread.run_sync(partial(HandshakeSession, one.url, key=KEYS["anna"]))
            used = decoded(await asked(session, two.url, "tools/list"))
            assert "result" in used, used
        gone = await asked(session, two.url, "tools/list")
        session.close()
        async with two.handshake(key=KEYS["anna"]) as anew:
            assert "tools" in decoded(await asked(anew, two.url, "tools/list"))["result"]
    assert gone.status_code == 404
