"""Gateways that share a Redis server and have the same settings: in one event loop, or as processes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.storage.redis import PREFIX, RedisServer
from pml_gateway.storage.replicas import Replicas
from tests.support.memory import settings_for
from tests.support.process import STOP_SECONDS, GatewayProcess, running_gateway
from tests.support.raw import result_modern
from tests.support.scripted_server import ScriptedServer
from tests.support.serving import Serving, serving
from tests.support.waiting import until, wait_for

KEYS = {"anna": "the key of anna, long enough", "ben": "the key of ben, long enough"}


def bearer(who: str) -> dict[str, str]:
    """The header with a client's key."""
    return {"Authorization": f"Bearer {KEYS[who]}"}


@pytest.fixture
def shared_sections(redis_url: str, empty_redis: object, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings of gateways with one empty Redis server and two clients."""
    monkeypatch.setenv("REDIS", redis_url)
    monkeypatch.setenv("STORAGE_KEY", "a random text of two machines, long enough")
    for who, key in KEYS.items():
        monkeypatch.setenv(who.upper(), key)
    clients = {who: {"key": f"${{env:{who.upper()}}}"} for who in KEYS}
    return {"storage": {"url": "${env:REDIS}", "key": "${env:STORAGE_KEY}"}, "clients": clients}


def replicas_of(served: Serving) -> Replicas:
    """A gateway's view of the replicas, with their Redis server."""
    assert served.gateway.replicas is not None
    return served.gateway.replicas


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
            await until(lambda each=each: len(replicas_of(each).known) >= number)
        yield tuple(served)


DATA_SERVER = """
import asyncio
from pathlib import Path
from fastmcp import FastMCP
server = FastMCP("data")
@server.tool
def rows(count: int) -> list[dict]:
    "Return rows."
    return [{"number": number, "text": f"row {number}"} for number in range(count)]
@server.tool
def total(rows: list) -> int:
    "Return the sum of the numbers of rows."
    return sum(row["number"] for row in rows)
@server.tool
async def slow(seconds: float, started: str) -> str:
    "Return after a while."
    Path(started).touch()
    await asyncio.sleep(seconds)
    return "done"
server.run(show_banner=False)
"""


def script(folder: Path, text: str, *arguments: object) -> dict[str, Any]:
    """The definition of a server that is a script in a folder."""
    file = folder / "server.py"
    file.write_text(text, encoding="utf-8")
    return {"command": sys.executable, "args": [str(file), *map(str, arguments)]}


def variables(redis_url: str) -> dict[str, str]:
    """The variables that the settings of replicas name."""
    keys = {who.upper(): key for who, key in KEYS.items()}
    return {"REDIS": redis_url, "PML_STORAGE_KEY": "a random text of all machines, long enough", **keys}


def replica_settings(servers: Mapping[str, Any], **sections: Any) -> dict[str, Any]:
    """The settings of replicas with two clients."""
    clients = {who: {"key": f"${{env:{who.upper()}}}"} for who in KEYS}
    return {"servers": servers, "clients": clients, "storage": "${env:REDIS}", **sections}


@contextmanager
def replica_processes(
    redis_url: str, folder: Path, number: int, servers: Mapping[str, Any], *tools: str, **sections: Any
) -> Iterator[list[GatewayProcess]]:
    """Run so many replicas, each in a folder of its own, all of which know these tools when this yields."""
    settings, extra = replica_settings(servers, **sections), variables(redis_url)
    with ExitStack() as stack:
        homes = [folder / f"replica-{at}" for at in range(number)]
        started = [stack.enter_context(running_gateway(home, settings, extra=extra)) for home in homes]
        for each in started:
            wait_for(partial(_knows, each, {*tools}), "the replica has listed its servers")
        stack.callback(_stop_together, started)
        yield started


def _stop_together(replicas: Sequence[GatewayProcess]) -> None:
    """Stop replicas at once, so that their drains and shutdowns overlap."""
    for each in replicas:
        if each.process.poll() is None:
            each.process.terminate()
    for each in replicas:
        each.process.wait(STOP_SECONDS)


def _knows(replica: GatewayProcess, tools: set[str]) -> bool:
    params = {"name": "tool_schema", "arguments": {"names": sorted(tools)}}
    found = result_modern(replica.url, "tools/call", params, key=KEYS["ben"])["structuredContent"]
    return {each["name"] for each in found.get("tools", ())} == tools


async def written(server: RedisServer, pattern: str) -> dict[bytes, tuple[bytes, int]]:
    """What is written under names of a pattern, with the milliseconds that it is kept."""

    async def read(name: bytes, redis: Any) -> tuple[bytes, int]:
        if await redis.type(name) == b"zset":
            return b" ".join(await redis.zrange(name, 0, -1)), int(await redis.pttl(name))
        return bytes(await redis.get(name)), int(await redis.pttl(name))

    names: Any = await server.run(lambda redis: redis.keys(f"{PREFIX}:{pattern}"))
    return {name: await server.run(partial(read, name)) for name in names}
