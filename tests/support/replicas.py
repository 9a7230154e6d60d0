"""Gateways in one event loop that share a Redis server, in front of the same upstreams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.storage.redis import PREFIX, RedisServer
from tests.support.memory import settings_for
from tests.support.scripted_server import ScriptedServer
from tests.support.serving import Serving, serving
from tests.support.waiting import until

KEYS = {"anna": "the key of anna, long enough", "ben": "the key of ben, long enough"}


def bearer(who: str) -> dict[str, str]:
    """The header with a client's key."""
    return {"Authorization": f"Bearer {KEYS[who]}"}


@pytest.fixture
def shared_sections(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings of gateways with one empty Redis server and two clients."""
    with pytest.importorskip("redis").Redis.from_url(redis_url) as client:
        client.flushall()
    monkeypatch.setenv("REDIS", redis_url)
    monkeypatch.setenv("STORAGE_KEY", "a random text of two machines, long enough")
    for who, key in KEYS.items():
        monkeypatch.setenv(who.upper(), key)
    clients = {who: {"key": f"${{env:{who.upper()}}}"} for who in KEYS}
    return {"storage": {"url": "${env:REDIS}", "key": "${env:STORAGE_KEY}"}, "clients": clients}


@asynccontextmanager
async def replicas(
    folder: Path, upstreams: Mapping[str, ScriptedServer], number: int = 2, /, **sections: Any
) -> AsyncIterator[tuple[Serving, ...]]:
    """Serve as so many replicas, all of which know of each other when this yields."""
    settings = settings_for(upstreams, **sections)
    async with AsyncExitStack() as stack:
        served = [
            await stack.enter_async_context(serving(folder / str(at), upstreams, settings)) for at in range(number)
        ]
        for each in served:
            known = each.gateway.replicas
            assert known is not None
            await until(lambda known=known: len(known.known) >= number)
        yield tuple(served)


async def written(server: RedisServer, pattern: str) -> dict[bytes, tuple[bytes, int]]:
    """What is written under names of a pattern, with the milliseconds that it is kept."""

    async def read(name: bytes, redis: Any) -> tuple[bytes, int]:
        if await redis.type(name) == b"zset":
            return b" ".join(await redis.zrange(name, 0, -1)), int(await redis.pttl(name))
        return bytes(await redis.get(name)), int(await redis.pttl(name))

    names: Any = await server.run(lambda redis: redis.keys(f"{PREFIX}:{pattern}"))
    return {name: await server.run(partial(read, name)) for name in names}
