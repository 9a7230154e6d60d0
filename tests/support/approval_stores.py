"""Approvals of several gateways over one store, without the gateways: as memory has it, and as Redis does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import anyio
import redis
from anyio.abc import TaskGroup

from pml_gateway.config.settings import ApprovalSettings
from pml_gateway.gateway.approval_requests import ApprovalRequest, AskedCall, asked_call
from pml_gateway.gateway.approval_stores import RedisApprovalStore
from pml_gateway.gateway.approvals import Approvals
from pml_gateway.storage.change_feed import ChangeFeed
from pml_gateway.storage.redis import RedisServer, RedisValues, open_redis
from tests.support.waiting import LIMIT

STORAGE_KEY = "a random text of all gateways, long enough"
NO_HOLD = ApprovalSettings(hold_seconds=0, notify=False)


@dataclass
class Sharing:
    """One gateway's approvals, and its Redis server."""

    approvals: Approvals
    server: RedisServer
    store: RedisApprovalStore
    feed: ChangeFeed


@asynccontextmanager
async def sharing(url: str, count: int = 2, key: str = STORAGE_KEY) -> AsyncIterator[list[Sharing]]:
    """The approvals of several gateways that share a Redis server, each with a connection of its own."""
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(count):
            server = await stack.enter_async_context(open_redis(url, "${env:KEY}", {"KEY": key}))
            assert server is not None
            feed = ChangeFeed(server)
            store = RedisApprovalStore(RedisValues(server), feed)
            stack.enter_context(store.following())
            opened.append(Sharing(Approvals(store=store), server, store, feed))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        for each in opened:
            await _follow(each.feed, tasks)
        yield opened
        tasks.cancel_scope.cancel()


async def _follow(feed: ChangeFeed, tasks: TaskGroup) -> None:
    """Start reading the change feed, and wait until no later change is missed."""
    begun = anyio.Event()
    with feed.subscribed("", lambda _: begun.set()):
        tasks.start_soon(feed.run)
        with anyio.fail_after(LIMIT):
            await begun.wait()


@asynccontextmanager
async def approvals_in(store: str, url: str, count: int = 2) -> AsyncIterator[Sequence[Approvals]]:
    """The approvals of gateways of one process, or of several that share a Redis server."""
    if store == "memory":
        yield [Approvals()] * count
        return
    emptied(url)
    async with sharing(url, count) as opened:
        yield [each.approvals for each in opened]


def emptied(url: str) -> None:
    """Empty a Redis server."""
    with redis.Redis.from_url(url) as server:
        server.flushall()


def a_call(number: int = 0, *, client: str = "ada", definition: str = "wipes", within: str = "") -> AskedCall:
    """A call that needs an approval."""
    owner, arguments = (f"client:{client}", f"client:{client}", ""), {"number": number, "secret": "of-ada"}
    return asked_call(owner, client, "up__wipe", "up:wipe", definition, arguments, rule="rules[0]: ask", within=within)


async def ask(
    approvals: Approvals, *calls: AskedCall, settings: ApprovalSettings = NO_HOLD, within: str = ""
) -> ApprovalRequest:
    """Have the owner asked about calls."""
    return await approvals.ask(calls or [a_call()], within=within, settings=settings)
