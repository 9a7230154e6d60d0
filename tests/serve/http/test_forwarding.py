"""Requests about what another replica holds: forwarded to it, whole and once, and only by replicas."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import httpx2
import pytest

from pml_gateway.serve.http import forwarding
from tests.support.asking import act, asking
from tests.support.attacks import half_sent, is_served
from tests.support.raw import HandshakeSession, decoded, modern
from tests.support.replicas import KEYS, bearer, replicas, replicas_of, shared_sections
from tests.support.serving import Serving
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

__all__ = ["shared_sections"]

CAN_ASK: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
ASK: dict[str, Any] = {"name": "call_tool", "arguments": {"name": "up__ask", "arguments": {}}, "_meta": CAN_ASK}


async def sent(session: HandshakeSession, url: str, method: str, **params: Any) -> httpx2.Response:
    return await anyio.to_thread.run_sync(partial(session.send, method, params, url))


async def request(
    method: str, url: str, headers: Mapping[str, str], content: str = "", target: bytes = b"/mcp"
) -> httpx2.Response:
    def send() -> httpx2.Response:
        with httpx2.Client(timeout=30) as client:
            # As it is: in a URL, some characters would be written otherwise.
            extensions = {"target": target}
            return client.request(method, url, headers=headers, content=content or None, extensions=extensions)

    return await anyio.to_thread.run_sync(send)


async def opened(at: Serving, who: str = "anna") -> HandshakeSession:
    return await anyio.to_thread.run_sync(partial(HandshakeSession, at.url, key=KEYS[who]))


def answers_to(asked: dict[str, Any]) -> dict[str, Any]:
    answer = {"action": "accept", "content": {"answer": "green"}}
    return {"requestState": asked["requestState"], "inputResponses": dict.fromkeys(asked["inputRequests"], answer)}


async def test_a_session_is_used_at_any_replica_by_its_client_alone(
    tmp_path: Path, shared_sections: dict[str, Any]
) -> None:
    async with replicas(tmp_path, {"up": asking()}, 3, **shared_sections) as served:
        one, two, three = served
        session = await opened(one)
        listed = decoded(await sent(session, two.url, "tools/list"))["result"]["tools"]
        plain = {"name": "up__plain", "arguments": {"text": "words"}}
        called = decoded(await sent(session, three.url, "tools/call", name="call_tool", arguments=plain))
        of_ben = {**session.headers, **{name.lower(): value for name, value in bearer("ben").items()}}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
        foreign = [(await request("POST", each.url, of_ben, body)).status_code for each in served]
        ended = await request("DELETE", two.url, session.headers)
        after = [(await sent(session, each.url, "tools/list")).status_code for each in served]
        session.close()
    assert "call_tool" in {each["name"] for each in listed}
    assert called["result"]["content"][0]["text"] == "plain words"
    assert foreign == [404, 404, 404]
    assert ended.status_code == 200
    assert after == [404, 404, 404]


async def test_the_session_of_a_replica_that_has_ended_is_not_found(
    tmp_path: Path, shared_sections: dict[str, Any]
) -> None:
    async with replicas(tmp_path / "two", {"up": asking()}, 1, **shared_sections) as (two,):
        async with replicas(tmp_path / "one", {"up": asking()}, 2, **shared_sections) as (one, _):
            session = await opened(one)
            used = await sent(session, two.url, "tools/list")
        gone = await sent(session, two.url, "tools/list")
        session.close()
        anew = await opened(two)
        served = await sent(anew, two.url, "tools/list")
        anew.close()
    assert "result" in decoded(used)
    assert gone.status_code == 404
    assert "result" in decoded(served)


async def test_a_call_that_waits_in_one_replica_is_answered_at_another_by_its_client_alone(
    tmp_path: Path, shared_sections: dict[str, Any]
) -> None:
    async with replicas(tmp_path, {"up": asking()}, 3, **shared_sections) as (one, two, three):
        asked = await one.result("tools/call", ASK, headers=bearer("anna"))
        again = {**ASK, **answers_to(asked)}
        foreign = await two.message("tools/call", again, headers=bearer("ben"))
        answered = await three.result("tools/call", again, headers=bearer("anna"))
        once_more = await two.result("tools/call", again, headers=bearer("anna"))
        assert asked["requestState"].startswith(f"{replicas_of(one).own.id}~")
    assert foreign["error"]["data"] == {"reason": "invalid_request_state"}
    assert answered["content"][0]["text"] == "green"
    assert once_more["structuredContent"]["error"]["code"] == "NOT_FOUND"


@pytest.mark.parametrize("named", ["nobody", "one", "three"])
async def test_a_state_inside_of_a_call_does_not_say_where_a_call_waits(
    tmp_path: Path, shared_sections: dict[str, Any], named: str
) -> None:
    async with replicas(tmp_path, {"up": asking()}, 3, **shared_sections) as (one, two, three):
        ids = {"nobody": "0" * 12, "one": replicas_of(one).own.id, "three": replicas_of(three).own.id}
        call = {**ASK, "_meta": {**CAN_ASK, "example.com/x": {"requestState": f"{ids[named]}~x"}}}
        answered = []
        for at in (one, two):
            asked = await one.result("tools/call", call, headers=bearer("anna"))
            assert asked["requestState"].startswith(f"{replicas_of(one).own.id}~")
            answered.append(await at.result("tools/call", {**call, **answers_to(asked)}, headers=bearer("anna")))
    assert [each["content"][0]["text"] for each in answered] == ["green", "green"]


async def test_blanks_after_a_header_value_keep_no_request_from_another_replica(
    tmp_path: Path, shared_sections: dict[str, Any]
) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})

    def send(url: str, headers: Mapping[str, str]) -> str:
        # The HTTP client of the other tests sends none.
        address = urlsplit(url)
        connection = HTTPConnection(address.hostname or "", address.port, timeout=30)
        try:
            connection.request("POST", address.path, body, {name: f"{value} \t" for name, value in headers.items()})
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    async with replicas(tmp_path, {"up": asking()}, **shared_sections) as (one, two):
        session = await opened(one)
        answers = [await anyio.to_thread.run_sync(partial(send, at.url, session.headers)) for at in (one, two)]
        session.close()
    assert all("call_tool" in each for each in answers)


async def test_nobody_but_a_replica_passes_requests_on(tmp_path: Path, shared_sections: dict[str, Any]) -> None:
    async with replicas(tmp_path, {"up": asking()}, **shared_sections) as (one, two):
        session = await opened(one)
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
        claimed = {**session.headers, "pml-forwarded": "W10=.AAAA"}
        # It is as if the header were not there: the session is found at the other replica.
        ignored = await request("POST", two.url, claimed, body)
        by_another_name = await request("POST", two.url, {**claimed, "host": "evil.example.com"}, body)
        session.close()
    assert "result" in decoded(ignored)
    assert by_another_name.status_code == 421


async def test_a_client_that_leaves_cancels_its_call_at_the_other_replica(
    tmp_path: Path, shared_sections: dict[str, Any]
) -> None:
    began, ended = anyio.Event(), anyio.Event()

    async def ask_and_wait(ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        await act(ctx, call)
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        raise AssertionError("it sleeps")

    up = asking()
    up.handler = ask_and_wait
    async with replicas(tmp_path, {"up": up}, **shared_sections) as (one, two):
        asked = await one.result("tools/call", ASK, headers=bearer("anna"))
        content, headers = modern("tools/call", {**ASK, **answers_to(asked)}, KEYS["anna"])
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks, httpx2.AsyncClient(timeout=30) as client:
                tasks.start_soon(partial(client.post, two.url, content=content, headers=headers))
                await began.wait()
                tasks.cancel_scope.cancel()
            await ended.wait()


async def test_connections_of_a_replica_are_not_limited_by_their_address_and_those_of_clients_there_are(
    tmp_path: Path, shared_sections: dict[str, Any]
) -> None:
    go, waiting, served = anyio.Event(), list[None](), list[int]()

    async def ask_and_wait(ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        done = await act(ctx, call)
        waiting.append(None)
        await go.wait()
        return done

    async def answer(question: dict[str, Any], address: str) -> None:
        content, headers = modern("tools/call", {**ASK, **answers_to(question)}, None)
        transport = httpx2.AsyncHTTPTransport(local_address=address)
        async with httpx2.AsyncClient(transport=transport, timeout=30) as client:
            served.append((await client.post(two.url, content=content, headers=headers)).status_code)

    up = asking()
    up.handler = ask_and_wait
    sections = {"storage": shared_sections["storage"], "http": {"max_connections_per_address": 4}}
    async with replicas(tmp_path, {"up": up}, **sections) as (one, two), anyio.create_task_group() as tasks:
        for number in range(1, 7):
            asked = await one.result("tools/call", ASK)
            tasks.start_soon(answer, asked, f"127.0.0.{number + 1}")
            await until(lambda number=number: len(waiting) == number)
        async with half_sent(one.url, 4):
            assert (await is_served(one.url)).startswith(b"HTTP/1.1 429")
        go.set()
    assert served == [200] * 6


@pytest.mark.parametrize("query", [b"", b'?query="a%20word"'])
async def test_a_session_is_not_found_if_another_process_has_the_address_of_its_replica(
    tmp_path: Path, shared_sections: dict[str, Any], query: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with replicas(tmp_path, {"up": asking()}, 3, **shared_sections) as (one, two, three):
        session = await opened(one)
        moved, known = replicas_of(one), replicas_of(two)
        await moved.serve_at(three.url.removesuffix("/mcp"))
        await until(lambda: sum(each.url == moved.own.url for each in known.known) == 2)
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
        elsewhere = await request("POST", two.url, session.headers, body, b"/mcp" + query)
        session.close()
    assert elsewhere.status_code == 404
    assert f"replica {moved.own.id} is not at {moved.own.url}: it has ended, or its http.advertise" in caplog.text


@pytest.mark.parametrize("listens", [None, "hang up", "say nothing"])
async def test_a_replica_that_does_not_answer_is_an_error_that_says_what_was_executed(
    tmp_path: Path, shared_sections: dict[str, Any], monkeypatch: pytest.MonkeyPatch, listens: str | None
) -> None:
    monkeypatch.setattr(forwarding, "SILENT_SECONDS", 0.5)
    async with replicas(tmp_path, {"up": asking()}, **shared_sections) as (one, two):
        asked = await one.result("tools/call", ASK, headers=bearer("anna"))
        session = await opened(one)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            if listens is None:
                listener.close()
            await replicas_of(one).serve_at(url)
            await until(lambda: any(each.url == url for each in replicas_of(two).known))
            async with anyio.create_task_group() as tasks:
                if listens == "hang up":
                    tasks.start_soon(partial(anyio.to_thread.run_sync, partial(hang_up, listener, 2)))
                failed = await two.message("tools/call", {**ASK, **answers_to(asked)}, headers=bearer("anna"))
                in_session = await sent(session, two.url, "tools/list")
        session.close()
    data = failed["error"]["data"]
    assert (data["retryable"], data["details"]["executed"]) == ((False, "unknown") if listens else (True, "no"))
    if listens:
        assert decoded(in_session)["error"]["data"]["details"]["executed"] == "unknown"
    else:
        assert in_session.status_code == 404


def hang_up(listener: socket.socket, count: int) -> None:
    """Read a request and close its connection, so many times."""
    for _ in range(count):
        connection, _address = listener.accept()
        with connection:
            connection.recv(1)
