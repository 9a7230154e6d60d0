"""The change feed: a stream in Redis by which replicas tell each other that something has changed.

An entry names what has changed, without its new value: values are encrypted, and are read from where they are kept.
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

STREAM = f"{PREFIX}:changes"

MAX_ENTRIES = 10_000
"""Minimum length to which the stream is cut: the changes of a minute, for a replica that lost its connection."""

BLOCK_SECONDS = 1.0
"""Time that one read waits for an entry, less than a command may take."""

RETRY_SECONDS = 0.5
"""Pause after a read that failed; the server is asked no sooner than after its own pause anyway."""

READ_AT_ONCE = 1000

OnChange = Callable[[str | None], None]
"""Called with the id of what changed; with None if changes may have been missed, so that anything may have."""


class ChangeFeed:
    """The stream, as one replica writes and reads it."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._subscribers: dict[str, list[OnChange]] = defaultdict(list)

    async def publish(self, topic: str, id_: str) -> None:
        """Tell all replicas, this one included, that something changed. An id must not be a secret.

        Raises:
            SharedStateError: Redis does not answer.
        """

        async def add(redis: Redis) -> None:
            async with redis.pipeline(transaction=False) as commands:
                commands.xadd(STREAM, {"topic": topic, "id": id_}, maxlen=MAX_ENTRIES, approximate=True)
                commands.pexpire(STREAM, int(MAX_TTL * 1000))
                await commands.execute()

        await self._server.run(add)

    @contextmanager
    def subscribed(self, topic: str, on_change: OnChange) -> Iterator[None]:
        """Call `on_change` on the event loop for each change of a topic, in this context."""
        self._subscribers[topic].append(on_change)
        try:
            yield
        finally:
            self._subscribers[topic].remove(on_change)

    async def run(self) -> None:
        """Read the stream, for as long as the owner's task group lives."""
        last: str | None = None
        while True:
            try:
                if last is None:
                    last = await self._server.run(_last_id)
                    self.resync()
                last = await self._read(last)
            except SharedStateError:
                # The stream may be gone with a server that was restarted, or cut meanwhile.
                last = None
                await anyio.sleep(RETRY_SECONDS)

    async def _read(self, last: str) -> str:
        """Pass on the entries after an id, after waiting a moment for some; return the last id."""
        found: Any = await self._server.run(
            lambda redis: redis.xread({STREAM: last}, count=READ_AT_ONCE, block=int(BLOCK_SECONDS * 1000)), waits=True
        )
        for _, entries in found or ():
            for entry, fields in entries:
                last = entry.decode()
                # Anybody who may write to Redis can write something else.
                topic, id_ = (fields.get(name, b"").decode(errors="replace") for name in (b"topic", b"id"))
                for on_change in list(self._subscribers.get(topic, ())):
                    on_change(id_)
        return last

    def resync(self) -> None:
        """Have all subscribers read everything again: Redis may have lost data, or changes may have been missed."""
        for subscribers in list(self._subscribers.values()):
            for on_change in list(subscribers):
                on_change(None)


async def _last_id(redis: Redis) -> str:
    newest: Any = await redis.xrevrange(STREAM, count=1)
    return newest[0][0].decode() if newest else "0-0"
