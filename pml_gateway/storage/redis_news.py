"""News between replicas: a stream in Redis by which each tells the others that something has changed.

News name what has changed, without its new value: values are encrypted, and are read from where they are kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio

from pml_gateway.errors import SharedStateError
from pml_gateway.storage.redis import MAX_TTL, PREFIX, RedisServer

if TYPE_CHECKING:
    from redis.asyncio import Redis

STREAM = f"{PREFIX}:news"

MAX_NEWS = 10_000
"""News that the stream holds at least: those of a minute, as a replica that lost its connection reads them later."""

BLOCK_SECONDS = 1.0
"""Time that one read waits for news, less than a command may take."""

PAUSE_SECONDS = 0.5
"""Pause after a read that failed; the server is asked no sooner than after its own pause anyway."""

READ_AT_ONCE = 1000

Tell = Callable[[str | None], None]
"""Told the id of what changed; None if news may have been missed, so that everything has to be looked at."""


class RedisNews:
    """The stream of news, as one replica writes and reads it."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._listeners: dict[str, list[Tell]] = defaultdict(list)

    async def publish(self, topic: str, id_: str) -> None:
        """Tell all replicas, this one included, that something changed. An id must not be a secret.

        Raises:
            SharedStateError: Redis does not answer.
        """

        async def add(redis: Redis) -> None:
            async with redis.pipeline(transaction=False) as commands:
                commands.xadd(STREAM, {"topic": topic, "id": id_}, maxlen=MAX_NEWS, approximate=True)
                commands.pexpire(STREAM, int(MAX_TTL * 1000))
                await commands.execute()

        await self._server.run(add)

    @contextmanager
    def following(self, topic: str, tell: Tell) -> Iterator[None]:
        """Have `tell` called on the event loop for each of a topic's news, in this context."""
        self._listeners[topic].append(tell)
        try:
            yield
        finally:
            self._listeners[topic].remove(tell)

    async def run(self) -> None:
        """Read news, for as long as the owner's task group lives."""
        last: str | None = None
        while True:
            try:
                if last is None:
                    last = await self._server.run(_last_id)
                    self.tell_all()
                last = await self._read(last)
            except SharedStateError:
                # The stream may be gone with a server that was restarted, or cut meanwhile.
                last = None
                await anyio.sleep(PAUSE_SECONDS)

    async def _read(self, last: str) -> str:
        """Pass on what follows an id, after waiting a moment for it; return the last id."""
        found: Any = await self._server.run(
            lambda redis: redis.xread({STREAM: last}, count=READ_AT_ONCE, block=int(BLOCK_SECONDS * 1000)), waits=True
        )
        for _, entries in found or ():
            for entry, fields in entries:
                last = entry.decode()
                # Anybody who may write to Redis can write something else.
                topic, id_ = (fields.get(name, b"").decode(errors="replace") for name in (b"topic", b"id"))
                for tell in list(self._listeners.get(topic, ())):
                    tell(id_)
        return last

    def tell_all(self) -> None:
        """Have everything looked at, as Redis may have lost what it had, or news may have been missed."""
        for listeners in list(self._listeners.values()):
            for tell in list(listeners):
                tell(None)


async def _last_id(redis: Redis) -> str:
    newest: Any = await redis.xrevrange(STREAM, count=1)
    return newest[0][0].decode() if newest else "0-0"
