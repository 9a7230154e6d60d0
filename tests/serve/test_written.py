"""Values that are JSON already go past the SDK, and arrive as they were written."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from mcp.shared._context_streams import create_context_streams
from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import JSONRPCMessage, JSONRPCResponse
from starlette.types import Message

from pml_gateway.gateway.request import RequestScope
from pml_gateway.json_text.pieces import LARGE, PIECE
from pml_gateway.json_text.reading import read_json
from pml_gateway.serve.messages.written import (
    Splicing,
    WrittenSent,
    WrittenValue,
    large_apart,
    pieces_of_message,
    size_of,
)
from pml_gateway.types import JsonObject
from tests.support.turns import turns_of_others

pytestmark = pytest.mark.anyio

TOOLS = [{"name": "a", "description": 'says "tools":[] and ü'}, {"name": "b"}]
SCOPE = RequestScope()


def written(value: Any, pieces: int = 1) -> WrittenValue:
    content = json.dumps(value).encode()
    step = -(-len(content) // pieces)
    return WrittenValue([content[at : at + step] for at in range(0, len(content), step)], len(content), SCOPE)


async def sent(message: JSONRPCMessage) -> tuple[JSONRPCMessage, list[object]]:
    """What is sent over stdio for a message, and what is told of it."""
    told: list[object] = []
    write, read = create_context_streams[SessionMessage](1)
    async with write, read:
        await WrittenSent(write, lambda item: told.append(item.message)).send(SessionMessage(message))
        with anyio.fail_after(60):
            item = await read.receive()
    return item.message, told


@pytest.mark.parametrize("pieces", [1, 7])
async def test_a_value_is_in_its_place_over_stdio(pieces: int) -> None:
    given = JSONRPCResponse(jsonrpc="2.0", id=1, result={"tools": written(TOOLS, pieces), "nextCursor": '"x"'})
    message, told = await sent(given)
    text = message.model_dump_json(by_alias=True, exclude_unset=True)
    assert json.loads(text) == {"jsonrpc": "2.0", "id": 1, "result": {"tools": TOOLS, "nextCursor": '"x"'}}
    assert b"".join(pieces_of_message(message)) == text.encode()
    assert size_of(given) >= len(json.dumps(TOOLS))
    assert "\n" not in text
    assert isinstance(told[0], JSONRPCResponse)


@pytest.mark.parametrize("result", [{"tools": []}, {"tools": [{"name": "a"}]}, {"content": []}, {}])
async def test_other_answers_go_as_they_are(result: dict[str, object]) -> None:
    message = JSONRPCResponse(jsonrpc="2.0", id=1, result=result)
    expected = message.model_dump_json(by_alias=True, exclude_unset=True)
    assert (await sent(message))[0].model_dump_json(by_alias=True, exclude_unset=True) == expected
    assert b"".join(pieces_of_message(message)) == expected.encode()


async def test_an_answer_over_http_has_the_length_that_it_promises() -> None:
    passed: list[Message] = []

    async def send(message: Message) -> None:
        passed.append(message)

    value = written(TOOLS)
    body = json.dumps({"result": {"tools": value, "again": value}}).encode()
    splicing = Splicing(send)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await splicing.send({"type": "http.response.start", "status": 200, "headers": headers})
    await splicing.send({"type": "http.response.body", "body": body})
    start, only = passed
    assert json.loads(only["body"]) == {"result": {"tools": TOOLS, "again": TOOLS}}
    assert dict(start["headers"])[b"content-length"] == str(len(only["body"])).encode()


async def test_an_event_over_http_leaves_in_pieces() -> None:
    passed: list[Message] = []

    async def send(message: Message) -> None:
        passed.append(message)

    value = written(TOOLS, pieces=3)
    splicing = Splicing(send)
    await splicing.send({"type": "http.response.start", "status": 200, "headers": []})
    await splicing.send({"type": "http.response.body", "body": f'data: "{value}"\r\n'.encode(), "more_body": True})
    await splicing.send({"type": "http.response.body", "body": b""})
    bodies = [message["body"] for message in passed[1:]]
    assert b"".join(bodies) == b"data: " + json.dumps(TOOLS).encode() + b"\r\n"
    assert len(bodies) > 3
    assert not passed[-1].get("more_body")


async def read(result: str) -> JsonObject:
    message = await read_json(f'{{"jsonrpc":"2.0","id":1,"result":{result}}}'.encode())
    found: JsonObject = message["result"]
    return found


async def test_what_came_unchanged_goes_on_as_its_server_wrote_it() -> None:
    content = f'[ {{"type":"text",\n"text":"\\u00fc{"x" * LARGE}"}} ]'
    seen, apart = await large_apart(await read(f'{{"content":{content},"isError":false}}'), SCOPE)
    assert seen == {"isError": False}
    assert b"".join(apart["content"].pieces) == content.replace("\n", " ").encode()


@pytest.mark.parametrize(
    "value",
    [
        [{"type": "text", "text": 'ü"\\\n😀' * PIECE}],
        [{"type": "resource", "resource": {"uri": "a://b", "blob": "QUJD" * PIECE}}],
        [{"type": "text", "text": str(number)} for number in range(40_000)],
    ],
    ids=["text", "resource", "blocks"],
)
async def test_what_was_changed_is_written_in_turns(value: list[JsonObject]) -> None:
    (seen, apart), turns = await turns_of_others(large_apart({"content": value}, SCOPE))
    assert seen == {}
    content = b"".join(apart["content"].pieces)
    assert json.loads(content) == value
    assert turns >= len(content) // (2 * PIECE)
    assert apart["content"].size == len(content)


async def test_what_is_small_stays_in_its_result() -> None:
    result = {"content": [{"type": "text", "text": "x"}], "structuredContent": {"a": [1]}}
    assert await large_apart(result, SCOPE) == (result, {})
