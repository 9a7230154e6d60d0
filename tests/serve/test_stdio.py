"""A client over stdio that reads nothing loses what counts for the moment only."""

from __future__ import annotations

import anyio
import pytest
from mcp.shared._context_streams import create_context_streams
from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from pml_gateway.serve import stdio
from pml_gateway.serve.stdio import UnansweredRequests
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


async def test_notices_of_the_moment_do_not_pile_up_and_answers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "MAX_WAITING", 3)
    unanswered = UnansweredRequests()
    arriving, read = create_context_streams[SessionMessage | Exception](1)
    write, outgoing = create_context_streams[SessionMessage](0)
    async with arriving, read, write, outgoing, anyio.create_task_group() as tasks:
        await arriving.send(SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/call")))
        await unanswered.read(read, lambda: 0.0).receive()
        to_client = unanswered.write(write)
        for _ in range(5):
            progress = JSONRPCNotification(jsonrpc="2.0", method="notifications/progress", params={"progress": 1})
            tasks.start_soon(to_client.send, SessionMessage(progress))
        await until(lambda: to_client.waiting == 3)
        answer = JSONRPCResponse(jsonrpc="2.0", id=1, result={})
        tasks.start_soon(to_client.send, SessionMessage(answer))
        await until(lambda: to_client.waiting == 4)
        got = [(await outgoing.receive()).message for _ in range(4)]
        assert got[-1] == answer
        await until(lambda: not unanswered)
