"""Keys of replicas over HTTP: revoked at one, they end what they have open at another."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest

from tests.support.raw import post_modern
from tests.support.replicas import bearer, replicas, shared_sections
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving
from tests.support.waiting import eventually, until

pytestmark = pytest.mark.anyio

__all__ = ["shared_sections"]


async def status(served: Serving, key: str) -> int:
    return (await anyio.to_thread.run_sync(lambda: post_modern(served.url, "tools/list", key=key))).status_code


async def is_ready(served: Serving) -> bool:
    url = served.url.replace("/mcp", "/readyz")
    return (await anyio.to_thread.run_sync(lambda: httpx2.get(url, timeout=10))).status_code == 200


async def test_sessions_and_calls_of_a_key_end_at_every_replica_when_one_revokes_it(
    tmp_path: Path, shared_sections: dict[str, Any]
) -> None:
    running, ended = anyio.Event(), anyio.Event()

    async def wait(*_: Any) -> dict[str, Any]:
        running.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        return text_result("done")

    async def give_up(work: Any) -> None:
        with suppress(httpx2.HTTPError):
            await anyio.to_thread.run_sync(work)

    upstreams = {"up": ScriptedServer([tool("look")], wait)}
    async with replicas(tmp_path, upstreams, 2, **shared_sections) as (one, two), anyio.create_task_group() as tasks:
        made = await anyio.to_thread.run_sync(one.runtime.keys.add, "anna")

        async def is_known() -> bool:
            return await status(two, made.text) == 200

        await eventually(is_known)
        async with two.handshake(key=made.text) as session:
            call = {"name": "up__look", "arguments": {}}
            tasks.start_soon(give_up, partial(session.send, "tools/call", call))
            await running.wait()
            await anyio.to_thread.run_sync(one.runtime.keys.revoke, [made.key_id])
            with anyio.fail_after(60):
                await ended.wait()
            assert await status(two, made.text) == 401

            async def is_gone() -> bool:
                session.headers["authorization"] = bearer("anna")["Authorization"]
                return (await anyio.to_thread.run_sync(session.send, "tools/list")).status_code == 404

            await eventually(is_gone)


async def test_a_replica_with_an_empty_folder_is_not_ready_until_redis_has_answered(
    tmp_path: Path, shared_sections: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    upstreams = {"up": ScriptedServer([tool("look")])}

    async with serving(tmp_path / "known", upstreams, **shared_sections) as served:
        made = await anyio.to_thread.run_sync(served.runtime.keys.add, "anna")
        await eventually(partial(is_ready, served))
    monkeypatch.setenv("REDIS", "redis://127.0.0.1:1")
    async with serving(tmp_path / "known", upstreams, **shared_sections) as served:
        await eventually(partial(is_ready, served))
        assert await status(served, made.text) == 200, "by the copy"
    async with serving(tmp_path / "empty", upstreams, **shared_sections) as served:
        await until(served.gateway.updates.has_list.is_set)
        assert not await is_ready(served)
