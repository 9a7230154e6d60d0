"""The change feed between gateways in Redis: who is called for what, and what happens after an outage."""

from __future__ import annotations

import anyio
import pytest

from pml_gateway.errors import SharedStateError
from pml_gateway.storage.change_feed import STREAM, ChangeFeed
from pml_gateway.storage.redis import RedisServer
from tests.storage.test_redis import opened
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


class Heard:
    """What one gateway was told."""

    def __init__(self) -> None:
        self.ids: list[str | None] = []
        self.changed = anyio.Event()

    def __call__(self, id_: str | None) -> None:
        self.ids.append(id_)
        self.changed.set()

    async def until(self, count: int) -> None:
        with anyio.fail_after(20):
            while len(self.ids) < count:
                self.changed = anyio.Event()
                await self.changed.wait()


async def test_every_gateway_hears_of_its_topics_in_order(redis_url: str) -> None:
    async with opened(redis_url) as one, opened(redis_url) as two, anyio.create_task_group() as tasks:
        here, there, other = Heard(), Heard(), Heard()
        first, second = ChangeFeed(one), ChangeFeed(two)
        with (
            first.subscribed("approvals", here),
            second.subscribed("approvals", there),
            second.subscribed("keys", other),
        ):
            tasks.start_soon(first.run)
            tasks.start_soon(second.run)
            for heard in (here, there, other):
                await heard.until(1)
            for number in range(3):
                await first.publish("approvals", str(number))
            await second.publish("keys", "k")
            await here.until(4)
            await there.until(4)
            await other.until(2)
        tasks.cancel_scope.cancel()
    assert here.ids == there.ids == [None, "0", "1", "2"]
    assert other.ids == [None, "k"]


async def test_what_is_no_news_is_passed_over(redis_url: str) -> None:
    async with opened(redis_url) as server, anyio.create_task_group() as tasks:
        feed, heard = ChangeFeed(server), Heard()
        with feed.subscribed("keys", heard):
            tasks.start_soon(feed.run)
            await heard.until(1)
            for fields in ({"of": "others"}, {b"topic": b"\xff", b"id": b"1"}, {b"topic": b"keys", b"id": b"\xff"}):
                await server.run(lambda redis, fields=fields: redis.xadd(STREAM, fields))  # type: ignore[misc]
            await feed.publish("keys", "k")
            await heard.until(3)
        tasks.cancel_scope.cancel()
    assert heard.ids == [None, "\ufffd", "k"]


async def test_after_news_could_not_be_read_everything_is_to_be_looked_at(redis_url: str) -> None:
    async with opened(redis_url) as server, anyio.create_task_group() as tasks:
        feed, heard = ChangeFeed(server), Heard()
        with feed.subscribed("keys", heard):
            tasks.start_soon(feed.run)
            await heard.until(1)
            await server.run(lambda redis: redis.set(STREAM, "no stream"))
            await until(lambda: bool(server.health.failure))
            await server.run(lambda redis: redis.delete(STREAM))
            await heard.until(2)
        tasks.cancel_scope.cancel()
    assert heard.ids == [None, None]


async def fail(server: RedisServer) -> None:
    """Have the server left alone for a moment."""

    async def broken(_: object) -> None:
        raise ConnectionError

    with pytest.raises(SharedStateError):
        await server.run(broken)
