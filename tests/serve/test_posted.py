"""Ids of requests that clients POST: free again once they are answered, and not before."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from starlette.types import Message, Receive, Scope, Send

from pml_gateway.gateway.request import SCOPE_KEY, RequestScope
from pml_gateway.serve.messages import posted
from pml_gateway.serve.messages.posted import PostedMessages

pytestmark = pytest.mark.anyio


class Exchanges:
    """An application whose work and whose exchanges end when a test says so."""

    def __init__(self) -> None:
        self.served = 0
        self.may_answer = anyio.Event()
        self.is_sent = anyio.Event()
        self.may_end = anyio.Event()
        self.messages = PostedMessages(self._app)

    async def _app(self, scope: Scope, _: Receive, send: Send) -> None:
        self.served += 1
        with scope[SCOPE_KEY].open_request:
            await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})
        self.is_sent.set()
        await self.may_end.wait()

    async def post(self, request_id: str | int = 31, session: bytes = b"s1") -> Any:
        """The answer to a request."""
        body = json.dumps({"jsonrpc": "2.0", "id": request_id, "method": "tools/list"}).encode()
        bodies = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body}

        async def send(message: Message) -> None:
            bodies.append(message.get("body", b""))

        headers = [(b"mcp-session-id", session)]
        scope = {"type": "http", "method": "POST", "headers": headers, SCOPE_KEY: RequestScope()}
        await self.messages(scope, receive, send)
        return json.loads(b"".join(bodies))


async def test_an_id_can_be_used_as_soon_as_its_answer_has_arrived() -> None:
    exchanges = Exchanges()
    exchanges.may_answer.set()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(exchanges.post)
        await exchanges.is_sent.wait()
        again: list[Any] = []

        async def post_again() -> None:
            again.append(await exchanges.post())

        tasks.start_soon(post_again)
        await anyio.wait_all_tasks_blocked()
        assert (exchanges.served, again) == (1, [])
        exchanges.may_end.set()
    assert (exchanges.served, again) == (2, [{}])
    assert not exchanges.messages.open_requests


async def test_of_several_with_the_id_of_an_answered_request_one_is_served() -> None:
    exchanges, answers = Exchanges(), list[Any]()
    exchanges.may_answer.set()

    async def post() -> None:
        answers.append(await exchanges.post())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(exchanges.post)
        await exchanges.is_sent.wait()
        exchanges.may_answer = anyio.Event()
        for _ in range(3):
            tasks.start_soon(post)
        await anyio.wait_all_tasks_blocked()
        exchanges.may_end.set()
        await anyio.wait_all_tasks_blocked()
        assert [each["error"]["code"] for each in answers] == [-32600, -32600]
        exchanges.may_answer.set()
    assert exchanges.served == 2


async def test_an_id_whose_request_has_no_answer_is_refused_at_once() -> None:
    exchanges = Exchanges()
    exchanges.may_end.set()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(exchanges.post)
        await anyio.wait_all_tasks_blocked()
        refused = await exchanges.post()
        assert (refused["id"], refused["error"]["code"]) == (31, -32600)
        tasks.start_soon(exchanges.post, "31")
        tasks.start_soon(exchanges.post, 31, b"s2")
        await anyio.wait_all_tasks_blocked()
        assert exchanges.served == 3
        exchanges.may_answer.set()


async def test_an_answer_that_its_client_does_not_read_holds_the_id_up_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(posted, "ANSWERED_SECONDS", 0.01)
    exchanges = Exchanges()
    exchanges.may_answer.set()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(exchanges.post)
        await exchanges.is_sent.wait()
        assert (await exchanges.post())["error"]["code"] == -32600
        exchanges.may_end.set()
