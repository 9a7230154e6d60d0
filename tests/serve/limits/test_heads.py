"""What a request has beside its body: bytes and headers are limited before anything is kept, and memory stays flat."""

from __future__ import annotations

import json
import logging
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.abc
import pytest

from pml_gateway.serve.limits.connections import MAX_HEAD_BYTES, MAX_HEADERS
from tests.support.attacks import answer, connected, flood, health, is_served, request
from tests.support.raw import META
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import serving
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.field("A2")]

SERVED = b"HTTP/1.1 200 OK"
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large"
CHUNKED = (
    b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
)
START = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n"
MUCH = 3 * 1024 * 1024
"""Bytes that are sent at most: many times the limit."""


def up() -> dict[str, ScriptedServer]:
    return {"up": ScriptedServer([tool("t")])}


def repeated(start: bytes, piece: bytes) -> Iterator[bytes]:
    """A beginning, and the same again and again."""
    yield start
    for _ in range(MUCH // len(piece)):
        yield piece


ENDLESS = {
    "headers": (START, b"x-%s: y\r\n" % (b"h" * 500) * 50),
    "short headers": (START, b"a:b\r\n" * 5000),
    "one header": (START + b"x-large: ", b"v" * 50_000),
    "the name of a header": (START + b"x-", b"n" * 50_000),
    "a folded header": (START + b"x-folded: ", b"v" * 5000 + b" " * 5000),
    "request line": (b"GET /", b"a" * 50_000),
    "query": (b"GET /mcp?query=", b"%41" * 20_000),
    "authority": (b"GET http://", b"h" * 50_000),
    "cookies": (START + b"cookie: ", b"c=d; " * 10_000),
    "key": (START + b"authorization: Bearer ", b"k" * 50_000),
    "chunk extension": (CHUNKED + b"5;", b"e=f;" * 10_000),
    "trailers": (CHUNKED + b"1\r\n{\r\n0\r\n", b"t: u\r\n" * 5000),
    "one trailer": (CHUNKED + b"1\r\n{\r\n0\r\nt: ", b"u" * 50_000),
    "extensions of small chunks": (CHUNKED, b"1;eeeeeeeee\r\n \r\n" * 2000),
    "zeros before a chunk's size": (CHUNKED, b"0000001\r\n \r\n" * 2000),
    "headers that follow a request": (START + b"\r\n" + START, b"x-a: b\r\n" * 5000),
}


async def sent_whole(stream: anyio.abc.SocketStream, pieces: Iterator[bytes]) -> int:
    """Send until the other side takes no more; gives the bytes that were sent."""
    sent = 0
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        for piece in pieces:
            await stream.send(piece)
            sent += len(piece)
    return sent


async def answered(url: str, pieces: Iterator[bytes]) -> bytes:
    """What comes on a connection on which all of it is sent."""
    received = b""
    async with connected(url) as stream, anyio.create_task_group() as tasks:
        tasks.start_soon(sent_whole, stream, pieces)
        received = await answer(stream)
        tasks.cancel_scope.cancel()
    return received


@pytest.mark.parametrize("kind", ENDLESS)
async def test_what_has_no_end_is_refused_and_its_connection_closed(tmp_path: Path, kind: str) -> None:
    async with serving(tmp_path, up(), http={"header_seconds": 60}) as served:
        received = await answered(served.url, repeated(*ENDLESS[kind]))
        assert TOO_LARGE in received
        assert "hint" in json.loads(received.rpartition(b"\r\n\r\n")[2])
        assert await is_served(served.url) == SERVED


@pytest.mark.parametrize("kind", ["headers", "one header", "request line", "chunk extension", "one trailer"])
async def test_memory_stays_flat_while_it_is_sent_on_many_connections(tmp_path: Path, kind: str) -> None:
    start, piece = ENDLESS[kind]
    async with serving(tmp_path, up(), http={"header_seconds": 60}) as served, flood(served.url, 20, start) as streams:
        tracemalloc.start()
        try:
            async with anyio.create_task_group() as tasks:
                for stream in streams:
                    tasks.start_soon(sent_whole, stream, repeated(b"", piece))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 20 * 1024 * 1024


@pytest.mark.parametrize("kind", ["one header", "request line", "headers", "chunk extension"])
async def test_bytes_count_alike_however_they_are_cut(tmp_path: Path, kind: str) -> None:
    start, piece = ENDLESS[kind]
    whole = start + piece * 3
    async with serving(tmp_path, up(), http={"header_seconds": 60}) as served:
        received = await answered(served.url, (whole[at : at + 997] for at in range(0, len(whole), 997)))
    assert TOO_LARGE in received


def sized(size: int) -> bytes:
    """A request of so many bytes, without a body."""
    start = START + b"connection: close\r\nx-fill: "
    return start + b"v" * (size - len(start) - 4) + b"\r\n\r\n"


@pytest.mark.parametrize(("size", "status"), [(MAX_HEAD_BYTES, SERVED), (MAX_HEAD_BYTES + 1, TOO_LARGE)])
async def test_the_limit_is_what_it_says_to_the_byte(tmp_path: Path, size: int, status: bytes) -> None:
    async with serving(tmp_path, up()) as served:
        assert (await answered(served.url, iter([sized(size)]))).startswith(status)


@pytest.mark.parametrize(("count", "status"), [(MAX_HEADERS, SERVED), (MAX_HEADERS + 1, TOO_LARGE)])
async def test_headers_are_counted_as_each_takes_more_than_its_bytes(tmp_path: Path, count: int, status: bytes) -> None:
    async with serving(tmp_path, up()) as served:
        sent = START + b"connection: close\r\n" + b"a:b\r\n" * (count - 2) + b"\r\n"
        assert (await answered(served.url, iter([sent]))).startswith(status)


def call(url: str, *, close: bool = True) -> bytes:
    """A call of the one tool."""
    params = {"name": "up__t", "arguments": {}, "_meta": META}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    return request(url, body, close=close).replace(b"tools/list", b"tools/call\r\nmcp-name: up__t", 1)


async def test_a_call_with_too_large_headers_is_not_executed(tmp_path: Path) -> None:
    upstream = ScriptedServer([tool("t")])
    fill = b"\r\nx-fill: " + b"v" * MAX_HEAD_BYTES
    async with serving(tmp_path, {"up": upstream}) as served:
        sent = call(served.url)
        assert (await answered(served.url, iter([sent.replace(b"\r\n", fill + b"\r\n", 1)]))).startswith(TOO_LARGE)
        assert (await answered(served.url, iter([sent]))).startswith(SERVED)
    assert len(upstream.calls) == 1


@pytest.mark.parametrize("size", [1, 100, 4096, 100_000])
async def test_bodies_in_chunks_of_any_size_are_served(tmp_path: Path, size: int) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}
    body = json.dumps(message).encode() + b" " * 60_000
    chunks = b"".join(
        b"%x\r\n%s\r\n" % (len(part), part) for part in (body[at : at + size] for at in range(0, len(body), size))
    )
    async with serving(tmp_path, up()) as served:
        head, _, _ = request(served.url, b"").partition(b"content-length")
        sent = head + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n" + chunks + b"0\r\nt: u\r\n\r\n"
        assert (await answered(served.url, iter([sent]))).startswith(SERVED)


async def test_trailers_are_not_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "sixteen-characters-at-least")
    message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}).encode()
    async with serving(tmp_path, up(), clients={"a": {"key": "${env:KEY}"}}) as served:
        head, _, _ = request(served.url, b"").partition(b"content-length")
        sent = head + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n%x\r\n%s\r\n0\r\n" % (
            len(message),
            message,
        )
        sent += b"authorization: Bearer sixteen-characters-at-least\r\n\r\n"
        assert (await answered(served.url, iter([sent]))).startswith(b"HTTP/1.1 401")


async def test_requests_sent_ahead_are_answered_in_order_and_wait_unparsed(tmp_path: Path) -> None:
    count = 800
    async with serving(tmp_path, up()) as served:
        netloc = urlsplit(served.url).netloc
        one = health(served.url, close=False)
        other = f"GET /nothing HTTP/1.1\r\nhost: {netloc}\r\n\r\n".encode()
        tracemalloc.start()
        try:
            received = await answered(served.url, iter([(one + other) * count + health(served.url)]))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert received.find(SERVED) < received.find(b"HTTP/1.1 404")
    assert received.count(SERVED) == count + 1
    assert received.count(b"HTTP/1.1 404") == count
    assert peak < 20 * 1024 * 1024


async def test_an_answer_before_a_refused_request_still_arrives(tmp_path: Path) -> None:
    go_on = anyio.Event()

    async def wait(_ctx: object, _call: object) -> dict[str, object]:
        await go_on.wait()
        return {"content": [{"type": "text", "text": "answered first"}]}

    upstream = ScriptedServer([tool("t")], wait)
    async with (
        serving(tmp_path, {"up": upstream}) as served,
        connected(served.url, call(served.url, close=False) + START) as stream,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(sent_whole, stream, repeated(b"", b"x-a: b\r\n" * 1000))
        await until(lambda: upstream.calls)
        go_on.set()
        received = await answer(stream)
        tasks.cancel_scope.cancel()
    assert received.startswith(SERVED)
    assert b"answered first" in received
    assert TOO_LARGE in received.partition(b"answered first")[2]


@pytest.mark.parametrize(
    "sent", [b"\x00\x01\x02\r\n\r\n", b"FOO / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n: x\r\n\r\n", CHUNKED + b"zz\r\n"]
)
async def test_what_is_not_http_is_refused_with_one_line_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    async with serving(tmp_path, up()) as served:
        for _ in range(20):
            received = await answered(served.url, iter([sent]))
            assert b"HTTP/1.1 400 Bad Request" in received
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
