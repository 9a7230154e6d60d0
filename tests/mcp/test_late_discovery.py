"""A process that answers late is still asked in its era; one that says nothing is not taken for an old one."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import METHOD_NOT_FOUND, jsonrpc_message_adapter

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.mcp.connection import Connection, open_connection
from pml_gateway.mcp.elicitation import Questions
from pml_gateway.mcp.http import ConnectionFacts
from pml_gateway.mcp.negotiation import HANDSHAKE, MODERN, ClosedAtVersionError, NegotiatedProtocol
from pml_gateway.working_directory import WorkingDirectory
from tests.support.asking import asking

pytestmark = pytest.mark.anyio

CONNECT_TIMEOUT = 1.0
INFO = {"name": "up", "version": "1"}
DISCOVERED = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "serverInfo": INFO, "ttlMs": 0}
INITIALIZED = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": INFO}
UNKNOWN = {"code": METHOD_NOT_FOUND, "message": "unknown"}

Serve = Callable[[Any, Any], Any]
"""Serves one connection with its read and write streams."""


@asynccontextmanager
async def connected(serve: Serve) -> AsyncIterator[Connection]:
    """A connection that is opened in the modern era to a process that is served like this."""

    @asynccontextmanager
    async def open_streams(*_: Any, **__: Any) -> AsyncIterator[tuple[Any, Any]]:
        # A pipe takes what is written before the process reads.
        to_server, server_reads = anyio.create_memory_object_stream[SessionMessage | Exception](math.inf)
        to_client, client_reads = anyio.create_memory_object_stream[SessionMessage | Exception](math.inf)
        async with anyio.create_task_group() as tasks, to_server, server_reads, to_client, client_reads:
            tasks.start_soon(serve, server_reads, to_client)
            yield client_reads, to_server
            tasks.cancel_scope.cancel()

    opened = open_connection(
        "up",
        UpstreamDefinition.model_validate({"command": "in-memory"}),
        open_streams=open_streams,
        working_directory=WorkingDirectory.here(),
        spoken=NegotiatedProtocol(MODERN),
        logs_dir=Path("unused"),
        connect_timeout=CONNECT_TIMEOUT,
        header_maps=lambda _: {},
        on_notice=lambda _method, _params: None,
        http=ConnectionFacts(1_000_000, None),
        questions=Questions(),
    )
    with anyio.fail_after(30):
        async with opened as connection:
            yield connection


def scripted(*answers: list[str], ends_after: int = 100) -> Serve:
    """Answer the methods of each list, in this order, once as many requests have come as there are lists before it."""

    async def serve(read: Any, write: Any) -> None:
        waiting: dict[str, Any] = {}
        due = list(answers)
        requests = 0
        async for item in read:
            message = item.message.model_dump(by_alias=True, exclude_none=True)
            if "id" not in message or "method" not in message:
                continue
            requests += 1
            if requests > ends_after:
                await write.aclose()
                return
            waiting[message["method"]] = message["id"]
            for said in due.pop(0) if due else [message["method"]]:
                method, _, how = said.partition(" ")
                result = {"server/discover": DISCOVERED, "initialize": INITIALIZED}.get(method, {"tools": []})
                said_so = {"error": UNKNOWN} if how == "refused" else {"result": result}
                response = {"jsonrpc": "2.0", "id": waiting.pop(method), **said_so}
                await write.send(SessionMessage(jsonrpc_message_adapter.validate_python(response)))

    return serve


async def test_a_process_that_starts_after_the_limit_speaks_the_era_that_it_was_asked_for_first() -> None:
    server = asking(modern=True).server()

    async def serve(read: Any, write: Any) -> None:
        while read.statistics().current_buffer_used < 2:  # noqa: ASYNC110  # requests, and nothing tells of them
            await anyio.sleep(0.01)
        await server.run(read, write, server.create_initialization_options())

    async with connected(serve) as connection:
        assert (connection.era, connection.is_surely_old) == (MODERN, False)
        listed = await connection.session.send_raw("tools/list", {}, timeout=20)
        assert "ask" in [tool["name"] for tool in listed["tools"]]


@pytest.mark.parametrize(
    ("answers", "era", "is_surely_old"),
    [
        pytest.param([["server/discover"]], MODERN, False, id="at once"),
        pytest.param([[], ["server/discover", "initialize"]], MODERN, False, id="late"),
        pytest.param([[], ["initialize", "server/discover"]], MODERN, False, id="in another order"),
        pytest.param([[], ["server/discover", "initialize refused"]], MODERN, False, id="late and only modern"),
        pytest.param([[], ["server/discover"]], MODERN, False, id="late, and the handshake never answered"),
        pytest.param([[], ["initialize refused", "server/discover"]], MODERN, False, id="after a refused handshake"),
        pytest.param([["server/discover refused"], ["initialize"]], HANDSHAKE, True, id="refused"),
        pytest.param([[], ["server/discover refused", "initialize"]], HANDSHAKE, True, id="refused late"),
        pytest.param([[], ["initialize"]], HANDSHAKE, True, id="read, and never answered"),
    ],
)
async def test_a_process_is_asked_for_the_modern_era(answers: list[list[str]], era: str, is_surely_old: bool) -> None:
    async with connected(scripted(*answers)) as connection:
        assert (connection.era, connection.is_surely_old) == (era, is_surely_old)
        assert await connection.session.send_raw("tools/list", {}, timeout=20) == {"tools": []}


async def test_a_process_that_ends_while_it_is_asked_has_said_nothing() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        async with connected(scripted([], ends_after=1)):
            pass
    assert caught.value.subgroup(ClosedAtVersionError)
