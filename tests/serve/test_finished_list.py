"""A finished list goes over stdio as the bytes that are kept of it."""

from __future__ import annotations

import json

import anyio
import pytest
from mcp.shared._context_streams import create_context_streams
from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import JSONRPCMessage, JSONRPCResponse

from pml_gateway.serve.finished_list import ListsSent, Unwritten

pytestmark = pytest.mark.anyio


async def sent(message: JSONRPCMessage) -> tuple[str, list[object]]:
    """What is written for a message, and what is told of it."""
    told: list[object] = []
    write, read = create_context_streams[SessionMessage](1)
    async with write, read:
        await ListsSent(write, lambda item: told.append(item.message)).send(SessionMessage(message))
        with anyio.fail_after(5):
            item = await read.receive()
    return item.message.model_dump_json(by_alias=True, exclude_unset=True), told


async def test_the_bytes_are_in_the_place_of_the_list() -> None:
    tools = [{"name": "a", "description": 'says "tools":[] and ü'}, {"name": "b"}]
    answer = {"tools": Unwritten(json.dumps(tools).encode()), "nextCursor": '"tools":[]'}
    text, told = await sent(JSONRPCResponse(jsonrpc="2.0", id='"tools":[]', result=answer))
    assert json.loads(text) == {
        "jsonrpc": "2.0",
        "id": '"tools":[]',
        "result": {"tools": tools, "nextCursor": '"tools":[]'},
    }
    assert "\n" not in text
    assert isinstance(told[0], JSONRPCResponse)


@pytest.mark.parametrize("result", [{"tools": []}, {"tools": [{"name": "a"}]}, {"content": []}, {}])
async def test_other_answers_go_as_they_are(result: dict[str, object]) -> None:
    message = JSONRPCResponse(jsonrpc="2.0", id=1, result=result)
    assert (await sent(message))[0] == message.model_dump_json(by_alias=True, exclude_unset=True)
