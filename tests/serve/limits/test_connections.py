"""Connections over HTTP: how many there are, how long a request may take to arrive, and what a broken one leaves."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import anyio
import pytest

from tests.support.attacks import (
    LIMIT,
    answer,
    connected,
    flood,
    half_sent,
    health,
    is_served,
    request,
    trickle,
    until_served,
)
from tests.support.raw import META, post_modern
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import serving
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

SERVED = b"HTTP/1.1 200 OK"
BUSY = b"HTTP/1.1 503 Service Unavailable"
TOO_MANY = b"HTTP/1.1 429 Too Many Requests"
LATE = b"HTTP/1.1 408 Request Timeout"


def up() -> dict[str, ScriptedServer]:
    return {"up": ScriptedServer([tool("t")])}


@pytest.mark.parametrize("sent", [b"", b"POST /mcp HT", b"POST /mcp HTTP/1.1\r\nhost: x\r\nx-half: "])
async def test_headers_that_never_end_close_their_connection(tmp_path: Path, sent: bytes) -> None:
    async with (
        serving(tmp_path, up(), http={"header_seconds": 0.5}) as served,
        connected(served.url, sent) as stream,
    ):
        received = await answer(stream)
        assert received.startswith(LATE if sent else b"")
        assert await is_served(served.url) == SERVED


async def test_headers_that_trickle_have_no_more_time_than_others(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, up(), http={"header_seconds": 0.5}) as served,
        connected(served.url, b"GET /healthz HTTP/1.1\r\n") as stream,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(trickle, stream, b"x-a: b\r\n")
        assert (await answer(stream)).startswith(LATE)
        tasks.cancel_scope.cancel()


async def test_a_second_request_that_never_ends_is_not_waited_for_either(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, up(), http={"header_seconds": 0.5}) as served,
        connected(served.url, health(served.url, close=False)) as stream,
    ):
        assert (await stream.receive()).startswith(SERVED)
        await stream.send(b"GET /healthz HT")
        assert LATE in await answer(stream)


@pytest.mark.parametrize("trickles", [False, True])
async def test_a_body_that_stops_or_trickles_closes_its_connection(tmp_path: Path, trickles: bool) -> None:
    async with (
        serving(tmp_path, up(), http={"body_seconds": 0.6}) as served,
        connected(served.url, request(served.url, b"{", length=5000)) as stream,
        anyio.create_task_group() as tasks,
    ):
        if trickles:
            tasks.start_soon(trickle, stream, b" ")
        assert (await answer(stream)).startswith(LATE)
        tasks.cancel_scope.cancel()
        assert await is_served(served.url) == SERVED


async def test_streams_and_slow_calls_outlive_every_limit_on_requests(tmp_path: Path) -> None:
    go_on = anyio.Event()

    async def wait(_ctx: object, _call: object) -> dict[str, object]:
        await go_on.wait()
        return {"content": [{"type": "text", "text": "late but whole"}]}

    upstream = ScriptedServer([tool("t")], wait)
    limits = {"header_seconds": 0.5, "body_seconds": 0.5}
    async with serving(tmp_path, {"up": upstream}, http=limits) as served, served.handshake() as session:
        headers = {**session.headers, "accept": "text/event-stream"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if name != "content-type")
        stream_request = f"GET /mcp HTTP/1.1\r\nhost: {served.url.split('/')[2]}\r\n{lines}\r\n".encode()
        async with connected(served.url, stream_request) as stream, anyio.create_task_group() as tasks:
            assert (await stream.receive()).startswith(SERVED)
            texts: list[str] = []

            async def call() -> None:
                texts.append((await served.call("up__t"))["content"][0]["text"])

            tasks.start_soon(call)
            await until(lambda: upstream.calls)
            # Others are late meanwhile, many times over.
            for _ in range(3):
                async with connected(served.url, b"GET ") as late:
                    await answer(late)
            go_on.set()
            await until(lambda: texts)
            assert texts == ["late but whole"]
            with anyio.move_on_after(0.2), pytest.raises(TimeoutError):
                await stream.receive()


async def test_one_address_has_a_limit_and_others_are_served(tmp_path: Path) -> None:
    limits = {"max_connections": 20, "max_connections_per_address": 4, "body_seconds": 60}
    async with serving(tmp_path, up(), http=limits) as served:
        async with half_sent(served.url, 4):
            async with connected(served.url, health(served.url)) as refused:
                received = await answer(refused)
            assert received.startswith(TOO_MANY)
            assert b"retry-after: " in received
            assert b"max_connections_per_address" in received
            assert await is_served(served.url, local="127.0.0.2") == SERVED
        await until_served(served.url)


async def test_connections_that_wait_give_way_to_new_ones(tmp_path: Path) -> None:
    limits = {"max_connections": 6, "max_connections_per_address": 6}
    # The oldest of whoever has most of them: half-sent requests of one, and connections kept alive of another.
    async with (
        serving(tmp_path, up(), http=limits) as served,
        flood(served.url, 2, health(served.url, close=False), local="127.0.0.2") as idle,
        flood(served.url, 4, b"GET /he") as half,
    ):
        for stream in idle:
            assert (await stream.receive()).startswith(SERVED)
        assert await is_served(served.url, local="127.0.0.3") == SERVED
        assert await answer(half[0]) == b""
        await idle[0].send(health(served.url))
        assert (await answer(idle[0])).startswith(SERVED)


async def test_where_every_connection_is_in_use_a_new_one_is_told_to_come_back(tmp_path: Path) -> None:
    limits = {"max_connections": 4, "max_connections_per_address": 4, "body_seconds": 60}
    async with (
        serving(tmp_path, up(), http=limits) as served,
        half_sent(served.url, 4),
        connected(served.url, health(served.url), local="127.0.0.2") as refused,
    ):
        received = await answer(refused)
    assert received.startswith(BUSY)
    assert b"retry-after: " in received


@pytest.mark.parametrize(("method", "modern"), [(b"POST", True), (b"POST", False), (b"GET", True), (b"GET", False)])
async def test_uploads_that_break_off_leave_one_quiet_line_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, method: bytes, modern: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving(tmp_path, up()) as served:
        async with half_sent(served.url, 5, modern=modern, method=method):
            pass
        await until(lambda: sum("broke off" in record.getMessage() for record in caplog.records) == 5)
    loud = [record for record in caplog.records if record.exc_info or record.levelno >= logging.WARNING]
    assert not loud, [record.getMessage() for record in loud]
    lines = [record for record in caplog.records if "broke off" in record.getMessage()]
    assert [record.levelno for record in lines] == [logging.DEBUG] * 5


async def test_a_flood_of_refusals_is_one_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limits = {"max_connections": 10, "max_connections_per_address": 2, "body_seconds": 60}
    async with serving(tmp_path, up(), http={**limits, "metrics": True}) as served:
        async with half_sent(served.url, 2):
            for _ in range(10):
                assert await is_served(served.url) == TOO_MANY
        await until_served(served.url)
        async with connected(served.url, health(served.url).replace(b"/healthz", b"/metrics")) as stream:
            page = (await answer(stream)).decode()
    assert 'pml_http_refused_total{reason="address"} 10.0' in page
    lines = [record for record in caplog.records if "max_connections_per_address" in record.getMessage()]
    assert [record.levelno for record in lines] == [logging.WARNING]


async def test_an_ordinary_request_is_served_within_small_limits(tmp_path: Path) -> None:
    limits = {"max_connections": 2, "max_connections_per_address": 1}
    async with serving(tmp_path, up(), http=limits) as served:
        for _ in range(5):
            response = await anyio.to_thread.run_sync(lambda: post_modern(served.url, "tools/list"))
            assert response.status_code == 200


async def test_an_upgrade_is_a_plain_request_within_the_limits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = {"max_connections": 1, "max_connections_per_address": 1}
    async with serving(tmp_path, up(), http=limits) as served:
        upgrade = health(served.url).replace(b"connection: close", b"connection: close, upgrade\r\nupgrade: websocket")
        for _ in range(3):
            async with connected(served.url, upgrade) as stream:
                with anyio.fail_after(LIMIT):
                    assert (await stream.receive()).startswith(SERVED)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_connection_whose_answers_nobody_reads_gives_way_and_is_gone(tmp_path: Path) -> None:
    # More than the system takes of an answer that is not read.
    upstream = ScriptedServer([tool(f"t{number}", description="x" * 20_000) for number in range(500)])
    limits = {"max_connections": 8, "max_connections_per_address": 2}
    asked = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}).encode()
    async with serving(tmp_path, {"up": upstream}, http=limits) as served:
        url = f"{served.url}/full_proxy"
        async with connected(url, request(url, asked, close=False)) as unread:
            with anyio.fail_after(LIMIT):
                begun = await unread.receive()
            assert begun.startswith(SERVED)
            async with flood(url, 2, health(url, close=False)) as others:
                for other in others:
                    assert (await other.receive()).startswith(SERVED)
                # Where it only were to be closed, all of it would still arrive.
                assert len(begun + await answer(unread)) < 500 * 20_000
