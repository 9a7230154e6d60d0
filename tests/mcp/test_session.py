"""The session with a server that asks more than it may."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp_types
import pytest
from anyio import wait_all_tasks_blocked
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage

from pml_gateway.mcp.elicitation import Questions
from pml_gateway.mcp.http import ConnectionFacts
from pml_gateway.mcp.session import MAX_OPEN_REQUESTS, PassthroughSession, RateLimiter, WatchedDispatcher

pytestmark = pytest.mark.anyio

LIMIT = 30


@asynccontextmanager
async def session_with_server() -> AsyncIterator[tuple[Any, Any]]:
    """The streams of a server's end, which may send as fast as it can."""
    async with create_client_server_memory_streams() as (streams, server_streams):
        dispatcher = WatchedDispatcher(*streams, RateLimiter(1_000_000))
        async with PassthroughSession(dispatcher, lambda _name: {}, Questions(), ConnectionFacts()):
            yield server_streams


async def test_a_server_that_reads_no_answers_is_read_no_further_until_it_does() -> None:
    taken, answered = list[int](), list[int]()

    async def ask() -> None:
        for number in range(3 * MAX_OPEN_REQUESTS):
            await write.send(SessionMessage(mcp_types.JSONRPCRequest(jsonrpc="2.0", id=number, method="ping")))
            taken.append(number)

    with anyio.fail_after(LIMIT):
        async with session_with_server() as (read, write), anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await wait_all_tasks_blocked()
            # Those that are open, an answer on its way, one that is refused, and one that waits to be read.
            assert len(taken) == MAX_OPEN_REQUESTS + 3
            for _ in range(3 * MAX_OPEN_REQUESTS):
                answered.append((await read.receive()).message.id)
    assert sorted(answered) == sorted(taken)
