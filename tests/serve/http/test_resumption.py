"""A client that loses the stream of a call comes back for the answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import httpx2
import pytest
from mcp.server.streamable_http import EventMessage
from mcp_types import JSONRPCResponse

from pml_gateway.gateway.request import CURRENT, RequestScope
from pml_gateway.quotas import Holdings
from pml_gateway.serve.http import resumption
from pml_gateway.serve.http.resumption import SessionEvents
from tests.support.raw import META, MODERN
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import LIMIT, serving

pytestmark = pytest.mark.anyio


class Session:
    """A handshake session whose streams a test reads line by line."""

    def __init__(self, client: httpx2.AsyncClient, url: str, version: str) -> None:
        self._client, self._url = client, url
        self.headers = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            "mcp-protocol-version": version,
        }

    @asynccontextmanager
    async def post(self, request_id: int, method: str, params: dict[str, Any]) -> AsyncIterator[httpx2.Response]:
        body = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        async with self._client.stream("POST", self._url, content=json.dumps(body), headers=self.headers) as response:
            yield response

    @asynccontextmanager
    async def resumed(self, event_id: str) -> AsyncIterator[httpx2.Response]:
        headers = {**self.headers, "accept": "text/event-stream", "last-event-id": event_id}
        async with self._client.stream("GET", self._url, headers=headers) as response:
            yield response


@asynccontextmanager
async def session(url: str, version: str = "2025-11-25") -> AsyncIterator[Session]:
    async with httpx2.AsyncClient(timeout=LIMIT) as client:
        opened = Session(client, url, version)
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
        async with opened.post(0, "initialize", params) as response:
            opened.headers["mcp-session-id"] = response.headers["mcp-session-id"]
            await response.aread()
        yield opened


async def events(response: httpx2.Response) -> list[dict[str, str]]:
    """All events of a stream that ends."""
    await response.aread()
    blocks = response.text.replace("\r\n", "\n").strip().split("\n\n")
    return [dict(line.split(": ", 1) for line in block.split("\n") if ": " in line) for block in blocks if block]


async def first_id(response: httpx2.Response) -> str:
    async for line in response.aiter_lines():
        if line.startswith("id: "):
            return line.removeprefix("id: ")
    raise AssertionError("no event id")


def slow_upstream() -> tuple[ScriptedServer, anyio.Event]:
    """One tool that answers when it is told to."""
    go_on = anyio.Event()

    async def handler(_: Any, _call: dict[str, Any]) -> dict[str, Any]:
        await go_on.wait()
        return text_result("the answer")

    return ScriptedServer(tools=[tool("wait")], handler=handler), go_on


async def _set(event: anyio.Event) -> None:
    event.set()


CALL = {"name": "one__wait", "arguments": {}}


async def test_a_call_begins_with_an_event_to_come_back_to_and_says_when(tmp_path: Path) -> None:
    upstream, go_on = slow_upstream()
    go_on.set()
    async with (
        serving(tmp_path, {"one": upstream}) as served,
        session(served.url) as client,
        client.post(1, "tools/call", CALL) as response,
    ):
        first, last = await events(response)
    assert first["retry"] == "500"
    assert first["id"] != last["id"]
    assert "the answer" in last["data"]


async def test_the_answer_waits_for_a_client_that_left_before_it(tmp_path: Path) -> None:
    upstream, go_on = slow_upstream()
    async with serving(tmp_path, {"one": upstream}) as served, session(served.url) as client:
        async with client.post(1, "tools/call", CALL) as response:
            last_seen = await first_id(response)
        go_on.set()
        async with client.resumed(last_seen) as response:
            (answer,) = await events(response)
        assert "the answer" in answer["data"]
        async with client.resumed(last_seen) as response:
            assert await events(response) == []


async def test_a_client_that_comes_back_early_gets_the_answer_when_it_is_there(tmp_path: Path) -> None:
    upstream, go_on = slow_upstream()
    async with serving(tmp_path, {"one": upstream}) as served, session(served.url) as client:
        async with client.post(1, "tools/call", CALL) as response:
            last_seen = await first_id(response)
        async with client.resumed(last_seen) as response, anyio.create_task_group() as tasks:
            tasks.start_soon(_set, go_on)
            (answer,) = await events(response)
    assert "the answer" in answer["data"]


async def test_another_session_cannot_ask_for_it_under_the_same_request_id(tmp_path: Path) -> None:
    upstream, go_on = slow_upstream()
    async with (
        serving(tmp_path, {"one": upstream}) as served,
        session(served.url) as client,
        session(served.url) as other,
    ):
        async with client.post(1, "tools/call", CALL) as response:
            last_seen = await first_id(response)
        go_on.set()
        async with other.resumed(last_seen) as response:
            assert await events(response) == []
        async with client.resumed(last_seen) as response:
            assert len(await events(response)) == 1


async def test_a_list_is_sent_again_as_any_answer_is(tmp_path: Path) -> None:
    upstream = ScriptedServer([tool("listed")])
    async with serving(tmp_path, {"one": upstream}) as served, session(f"{served.url}/full_proxy") as client:
        async with client.post(1, "tools/list", {}) as response:
            # Its first event has no answer; here the client leaves.
            last_seen = await first_id(response)
        async with client.resumed(last_seen) as response:
            (answer,) = await events(response)
    assert "one__listed" in [each["name"] for each in json.loads(answer["data"])["result"]["tools"]]


async def test_clients_of_older_versions_are_given_no_event_ids(tmp_path: Path) -> None:
    upstream, go_on = slow_upstream()
    go_on.set()
    async with (
        serving(tmp_path, {"one": upstream}) as served,
        session(served.url, "2025-06-18") as client,
        client.post(1, "tools/call", CALL) as response,
    ):
        (answer,) = await events(response)
    assert "id" not in answer


async def test_blanks_around_a_header_value_are_no_part_of_it(tmp_path: Path) -> None:
    upstream, go_on = slow_upstream()
    go_on.set()
    params = {**CALL, "_meta": META}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    headers = {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "mcp-protocol-version": MODERN,
        "mcp-method": "tools/call \t",
        "mcp-name": "  one__wait \t",
    }

    def call(url: str) -> str:
        address = urlsplit(url)
        connection = HTTPConnection(address.hostname or "", address.port, timeout=LIMIT)
        try:
            connection.request("POST", address.path, body, headers)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    async with serving(tmp_path, {"one": upstream}) as served:
        url = served.url
        answer = await anyio.to_thread.run_sync(lambda: call(url))
    assert "the answer" in answer


async def stream_left(events: SessionEvents, stream: str) -> str:
    """Open a stream whose client leaves at once; the id of its first event."""
    scope = RequestScope()
    CURRENT.set(scope)
    opened = await events.store_event(stream, None)
    assert scope.on_sent is not None
    scope.on_sent(False)
    return opened


async def test_what_waits_for_one_clients_sessions_makes_room_for_that_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resumption, "MAX_ALL_BYTES", 5000)
    waiting: Holdings[SessionEvents] = Holdings()

    async def left(quota_key: str) -> tuple[SessionEvents, str]:
        events = SessionEvents(waiting, quota_key)
        opened = await stream_left(events, "1")
        await events.store_event("1", JSONRPCResponse(jsonrpc="2.0", id=1, result={"x": "." * 1000}))
        return events, opened

    async def is_kept(events: SessionEvents, opened: str) -> bool:
        sent: list[EventMessage] = []

        async def send(event: EventMessage) -> None:
            sent.append(event)

        await events.replay_events_after(opened, send)
        return bool(sent)

    mine = await left("client:b")
    flood = [await left("client:a") for _ in range(10)]
    assert await is_kept(*mine)
    assert [await is_kept(*each) for each in flood] == [False] * 7 + [True] * 3


async def test_what_is_answered_after_its_session_has_ended_is_kept_and_counted_no_more() -> None:
    waiting: Holdings[SessionEvents] = Holdings()
    events = SessionEvents(waiting, "a")
    first_event = await stream_left(events, "1")
    assert events in waiting
    events.end()
    await stream_left(events, "2")
    await events.store_event("2", JSONRPCResponse(jsonrpc="2.0", id=2, result={"content": []}))
    assert (len(waiting), waiting.total) == (0, 0)
    for event_id in (first_event, "2-2"):
        assert await events.replay_events_after(event_id, _never) is None


async def _never(_: EventMessage) -> None:
    raise AssertionError
