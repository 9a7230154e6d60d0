"""HTTP servers that answer what they should not: each fault has a name, and everybody else is served."""

from __future__ import annotations

import gzip
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp.shared.exceptions import MCPError

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.mcp.connection import open_connection
from pml_gateway.mcp.elicitation import Questions
from pml_gateway.mcp.http import ConnectionFacts
from pml_gateway.mcp.negotiation import HANDSHAKE, NegotiatedProtocol
from pml_gateway.mcp.transport import open_streams
from pml_gateway.working_directory import WorkingDirectory
from tests.processes.test_hostile_processes import beside, call, error_of, row_of, text_of
from tests.support.raw_http import RawRequest, raw_server, response, result

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

MEBIBYTE = 1024 * 1024


def answering(*contents: bytes) -> Callable[[RawRequest], Awaitable[None]]:
    async def misbehave(request: RawRequest) -> None:
        for content in contents:
            await request.send(content)

    return misbehave


async def big_answer(request: RawRequest) -> None:
    """100 MiB of JSON, in pieces."""
    head = b'{"jsonrpc":"2.0","id":' + json.dumps(request.message["id"]).encode() + b',"result":{"a":"'
    await request.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n" + head)
    for _ in range(100):
        await request.send(b"x" * MEBIBYTE)
    await request.send(b'"}}')


async def bomb(request: RawRequest) -> None:
    """200 MiB of JSON in 200 kB."""
    packed = gzip.compress(b'{"jsonrpc":"2.0","id":1,"result":{"a":"' + b"x" * 200 * MEBIBYTE + b'"}}', 1)
    await request.send(response(packed, content_encoding="gzip"))


async def truncated(request: RawRequest) -> None:
    whole = response(result(request.message, {"content": [], "tools": []}))
    await request.send(whole[:-10])


async def endless_events(request: RawRequest) -> None:
    await request.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
    note = b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}\n\n'
    while True:
        await request.send(note * 100)
        await anyio.lowlevel.checkpoint()


async def endless_event(request: RawRequest) -> None:
    await request.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\ndata: ")
    for _ in range(200):
        await request.send(b"x" * MEBIBYTE)


FAULTS: list[tuple[str, Callable[[RawRequest], Awaitable[None]], str]] = [
    ("500", answering(response(b"oops", "text/plain", "500 Internal Server Error")), "HTTP 500"),
    ("503", answering(response(b"busy", "text/plain", "503 Service Unavailable")), "HTTP 503"),
    ("html", answering(response(b"<html>Sign in</html>", "text/html")), ""),
    ("no_json", answering(response(b"certainly", "application/json")), ""),
    ("big", big_answer, "larger than 67108864 bytes"),
    ("bomb", bomb, "larger than 67108864 bytes"),
    ("no_gzip", answering(response(b"certainly", content_encoding="gzip")), "no gzip"),
    ("zstd", answering(response(b"certainly", content_encoding="zstd")), "not asked for"),
    ("truncated", truncated, ""),
    ("endless_events", endless_events, "no "),
    ("endless_event", endless_event, ""),
    ("closes", answering(), ""),
]


@pytest.mark.parametrize(("name", "misbehave", "words"), FAULTS, ids=[name for name, *_ in FAULTS])
async def test_a_call_that_is_answered_so_ends_with_a_named_error(
    tmp_path: Path, name: str, misbehave: Callable[[RawRequest], Awaitable[None]], words: str
) -> None:
    limit = {"call_timeout": 2} if name == "endless_events" else {}
    async with (
        raw_server(misbehave, "tools/call") as server,
        beside(tmp_path, {"url": server.url, **limit}) as (_, caller),
    ):
        error = error_of(await call(caller))
        assert error["code"] in ("UPSTREAM_ERROR", "UPSTREAM_UNAVAILABLE", "TIMEOUT")
        assert error["message"].startswith("bad: ")
        assert words in error["message"]
        assert error["details"]["executed"] in ("yes", "unknown")
        assert len([each for each in server.seen if each.message.get("method") == "tools/call"]) == 1


@pytest.mark.parametrize(("name", "misbehave", "words"), FAULTS, ids=[name for name, *_ in FAULTS])
async def test_a_list_that_is_answered_so_names_the_fault_of_its_server(
    tmp_path: Path, name: str, misbehave: Callable[[RawRequest], Awaitable[None]], words: str
) -> None:
    limit = {"connect_timeout": 3} if name == "endless_events" else {}
    async with (
        raw_server(misbehave, "tools/list") as server,
        beside(tmp_path, {"url": server.url, **limit}) as (gateway, _),
    ):
        row = row_of(gateway)
        assert row["state"] != "ready"
        assert row["error"].startswith("bad: ")
        assert words in row["error"]


@pytest.mark.parametrize(
    ("misbehave", "words"),
    [
        (answering(response(b"", "text/plain", "404 Not Found")), "HTTP 404"),
        (answering(response(b"", "text/plain", "500 Internal Server Error")), "HTTP 500"),
        (answering(response(b"<html></html>", "text/html")), "text/html"),
        (answering(), ""),
    ],
    ids=["404", "500", "html", "closes"],
)
async def test_what_is_no_mcp_server_at_all_says_so(
    tmp_path: Path, misbehave: Callable[[RawRequest], Awaitable[None]], words: str
) -> None:
    async with raw_server(misbehave, "*") as server, beside(tmp_path, {"url": server.url}) as (gateway, caller):
        assert words in row_of(gateway)["error"]
        assert error_of(await call(caller))["code"].startswith("UPSTREAM")


@pytest.mark.parametrize("at", ["initialize", "tools/list", "tools/call", "*"])
@pytest.mark.parametrize("status", ["301 Moved Permanently", "303 See Other", "307 Temporary Redirect"])
async def test_a_redirect_to_another_host_is_not_followed_and_takes_no_credentials_along(
    tmp_path: Path, status: str, at: str
) -> None:
    async with raw_server(answering(), "*") as thief:
        redirect = response(b"", "text/plain", status, location=thief.url)
        async with (
            raw_server(answering(redirect), at) as server,
            beside(tmp_path, {"url": server.url, "headers": {"Authorization": "Bearer s3cret-token"}}) as (_, caller),
        ):
            error = error_of(await call(caller))
            assert "s3cret" not in json.dumps(error)
        assert thief.seen == []


async def test_the_result_of_another_request_is_not_taken_for_this_one(tmp_path: Path) -> None:
    async def answer(request: RawRequest) -> None:
        foreign = {"content": [{"type": "text", "text": "for somebody else"}]}
        await request.send(response(result({"id": "pml-999999"}, foreign)))

    async with raw_server(answer, "tools/call") as server, beside(tmp_path, {"url": server.url}) as (_, caller):
        assert "not to this one" in error_of(await call(caller))["message"]


async def test_a_small_limit_refuses_small_answers(tmp_path: Path) -> None:
    async def answer(request: RawRequest) -> None:
        await request.send(response(result(request.message, {"content": [{"type": "text", "text": "x" * 200_000}]})))

    async with (
        raw_server(answer, "tools/call") as server,
        beside(tmp_path, {"url": server.url}, max_message_bytes="128KiB") as (_, caller),
    ):
        assert "larger than 131072 bytes" in error_of(await call(caller))["message"]


async def test_packed_answers_within_the_limit_are_taken(tmp_path: Path) -> None:
    async def answer(request: RawRequest) -> None:
        whole = {"content": [{"type": "text", "text": "x" * 1_000_000}]}
        packed: Any = gzip.compress(result(request.message, whole))
        await request.send(response(packed, content_encoding="gzip"))

    async with raw_server(answer, "tools/call") as server, beside(tmp_path, {"url": server.url}) as (_, caller):
        assert len((await call(caller))["content"][0]["text"]) == 1_000_000


@pytest.mark.parametrize("at", ["DELETE", "GET"])
async def test_a_server_that_never_answers_what_nobody_waits_for_is_used_again(tmp_path: Path, at: str) -> None:
    async def hang(_request: RawRequest) -> None:
        await anyio.sleep_forever()

    async with (
        raw_server(hang, at, session_id="s-1") as server,
        beside(tmp_path, {"url": server.url, "connect_timeout": 2}) as (gateway, caller),
    ):
        for _ in range(2):
            with anyio.fail_after(30):
                assert text_of(await call(caller)) == "fine"
            gateway.pool.upstreams["bad"].connector.reconnect()
            with anyio.fail_after(30):
                await gateway.refresh(25)
        assert at in [each.method for each in server.seen] + [each.message.get("method") for each in server.seen]


async def test_a_request_with_a_notice_in_its_arguments_has_the_time_of_a_request(tmp_path: Path) -> None:
    async def late(request: RawRequest) -> None:
        with anyio.move_on_after(3), suppress(anyio.EndOfStream):
            await request.stream.receive()
        await request.send(response(result(request.message, {"late": True})))

    async with (
        raw_server(late, "prompts/get") as server,
        open_connection(
            "up",
            UpstreamDefinition.model_validate({"url": server.url}),
            open_streams=open_streams,
            working_directory=WorkingDirectory.here(),
            spoken=NegotiatedProtocol(HANDSHAKE),
            logs_dir=tmp_path,
            connect_timeout=2,
            header_maps=lambda _: {},
            on_notice=lambda _method, _params: None,
            http=ConnectionFacts(1_000_000, None),
            questions=Questions(),
        ) as connection,
    ):
        params = {"name": "p", "arguments": {"method": "notifications/x"}}
        assert await connection.session.send_raw("prompts/get", params, timeout=20) == {"late": True}


@pytest.mark.parametrize("depth", [150, 250, 500, 900, 980, 2_000, 10_000, 100_000])
@pytest.mark.parametrize("place", ["structured", "meta", "error"])
async def test_deeply_nested_answers_are_taken_or_refused_by_name(tmp_path: Path, place: str, depth: int) -> None:
    async def answer(request: RawRequest) -> None:
        nested = '{"a":' * depth + "1" + "}" * depth
        bodies = {
            "structured": f'"result":{{"content":[],"structuredContent":{nested}}}',
            "meta": f'"result":{{"content":[{{"type":"text","text":"x","_meta":{nested}}}]}}',
            "error": f'"error":{{"code":-1,"message":"no","data":{nested}}}',
        }
        await request.send(response(f'{{"jsonrpc":"2.0","id":"{request.message["id"]}",{bodies[place]}}}'.encode()))

    async with raw_server(answer, "tools/call") as server, beside(tmp_path, {"url": server.url}) as (_, caller):
        for name, arguments in (("bad__t", {}), ("call_tool", {"name": "bad__t", "arguments": {}})):
            if place == "error" and depth <= 200 and name == "bad__t":
                # A direct call passes the upstream's own error on as it was.
                with pytest.raises(MCPError) as raised:
                    await call(caller, name, arguments)
                assert raised.value.error.code == -1
                continue
            result_of_call = await call(caller, name, arguments)
            assert result_of_call.keys() & {"content", "structuredContent"}
            if depth > 200:
                assert error_of(result_of_call)["code"] == "UPSTREAM_ERROR"
            if place == "error":
                assert error_of(result_of_call)["code"] == "UPSTREAM_ERROR"


@pytest.mark.parametrize("status", ["400 Bad Request", "404 Not Found", "409 Conflict"])
async def test_a_stream_that_cannot_be_resumed_does_not_say_that_nothing_was_executed(
    tmp_path: Path, status: str
) -> None:
    async def misbehave(request: RawRequest) -> None:
        method = request.message.get("method")
        if request.method == "POST" and method == "tools/call":
            # The call runs; its answer is to be fetched later.
            events = b'id: e1\nretry: 1\ndata: {"jsonrpc":"2.0","method":"notifications/message","params":{}}\n\n'
            await request.send(response(events, "text/event-stream"))
        elif request.headers.get("last-event-id"):
            await request.send(response(b"", "text/plain", status))
        elif request.method != "POST":
            await request.send(response(b"", status="405 Method Not Allowed"))

    async with raw_server(misbehave, "tools/call") as server:
        server_answer = server.answer

        async def answer(request: RawRequest) -> None:
            await (misbehave(request) if request.headers.get("last-event-id") else server_answer(request))

        server.answer = answer  # type: ignore[method-assign]  # two methods misbehave
        async with beside(tmp_path, {"url": server.url}) as (_, caller):
            assert error_of(await call(caller))["details"]["executed"] == "unknown"


def as_json(content: bytes) -> bytes:
    return response(content)


def as_event(content: bytes) -> bytes:
    return response(b"data: " + content + b"\n\n", "text/event-stream")


@pytest.mark.parametrize("sent", [as_json, as_event])
async def test_a_lone_surrogate_costs_neither_the_server_nor_the_result(
    tmp_path: Path, sent: Callable[[bytes], bytes]
) -> None:
    async def answer(request: RawRequest) -> None:
        value: Any = {"content": [{"type": "text", "text": "cut \ud83d"}]}
        if request.message["method"] == "tools/list":
            value = {"tools": [{"name": "t", "description": "cut \ud83d", "inputSchema": {"type": "object"}}]}
        await request.send(sent(result(request.message, value)))

    for at in ("tools/list", "tools/call"):
        async with raw_server(answer, at) as server, beside(tmp_path / at, {"url": server.url}) as (gateway, caller):
            assert row_of(gateway)["state"] == "ready"
            text = text_of(await call(caller))
            if at == "tools/call":
                assert text == "cut \ufffd"
            else:
                described = gateway.state.catalog.by_name("bad__t")
                assert described is not None
                assert described.definition["description"] == "cut \ufffd"


@pytest.mark.parametrize("sent", [as_json, as_event])
@pytest.mark.parametrize("count", [20_000, 100_001])
async def test_a_large_list_is_taken_or_refused_by_name(
    tmp_path: Path, sent: Callable[[bytes], bytes], count: int
) -> None:
    async def answer(request: RawRequest) -> None:
        tools = [{"name": f"t{number}", "inputSchema": {"type": "object"}} for number in range(count)]
        await request.send(sent(result(request.message, {"tools": tools})))

    async with raw_server(answer, "tools/list") as server, beside(tmp_path, {"url": server.url}) as (gateway, caller):
        if count == 20_000:
            assert text_of(await call(caller, "bad__t19999")) == "fine"
        else:
            assert "more than 100000 tools" in row_of(gateway)["error"]
