"""Questions over real transports: of two clients at once, none reaches the other."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from starlette.responses import Response

from pml_gateway.config.settings import Settings
from pml_gateway.mcp.negotiation import HANDSHAKE, MODERN
from pml_gateway.mcp.sdk import request_channel
from pml_gateway.mcp.session import MAX_OPEN_REQUESTS
from pml_gateway.mcp.transport import open_streams
from tests.conformance import server as conformance_server
from tests.support import asking as asking_module
from tests.support.asking import Person, asking, question_of
from tests.support.listening import listening, sse_app
from tests.support.raw_http import RawRequest, raw_server, result
from tests.support.scripted_server import text_result
from tests.support.serving import Serving, serving
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

LIMIT = 120
CALLS = 200
AT_ONCE = 3
"""Calls of each client side by side."""

PAIRS = [
    ("stdio-handshake", (False, False)),
    ("stdio-handshake", (True, True)),
    ("stdio-2026", (False, True)),
    ("http-handshake", (False, False)),
    ("http-handshake", (True, True)),
    ("http-2026", (False, True)),
    ("sse-handshake", (False, True)),
]
"""Upstreams, and whether each of the two clients speaks the stateless protocol."""


@asynccontextmanager
async def definition_of(kind: str) -> AsyncIterator[dict[str, Any]]:
    """The configuration of a real upstream that asks, which runs meanwhile."""
    transport, _, era = kind.partition("-")
    async with AsyncExitStack() as stack:
        if transport == "stdio":
            modern = ["--modern"] if era == "2026" else []
            environment = {"PYTHONPATH": str(Path(asking_module.__file__).parents[2])}
            yield {"command": sys.executable, "args": ["-m", asking_module.__name__, *modern], "env": environment}
        elif transport == "sse":
            port = await stack.enter_async_context(listening(sse_app(asking().server())))
            yield {"url": f"http://127.0.0.1:{port}/sse"}
        else:
            port = await stack.enter_async_context(listening(asking(modern=era == "2026").http_app()))
            yield {"url": f"http://127.0.0.1:{port}/mcp"}


@asynccontextmanager
async def gateway_to(tmp_path: Path, definition: dict[str, Any], **sections: Any) -> AsyncIterator[Serving]:
    settings = Settings.model_validate({"servers": {"up": definition}, **sections})
    async with serving(tmp_path, {}, settings, open_streams=open_streams) as served:
        assert await served.gateway.refresh(LIMIT)
        yield served


async def ask_often(person: Person, client: Client, tools: tuple[str, ...], calls: int) -> None:
    """Make calls side by side, each of which asks, and check every answer."""
    numbers = iter(range(calls))

    async def work() -> None:
        for number in numbers:
            text = f"{person.name} {number}"
            result = await client.call_tool(f"up__{tools[number % len(tools)]}", {"text": text})
            assert result.content[0].text == f"{person.name}: {text}"  # type: ignore[union-attr]

    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE):
            tasks.start_soon(work)
    assert sorted(person.asked) == sorted(f"{person.name} {number}" for number in range(calls))


@pytest.mark.parametrize(
    ("kind", "eras", "calls"),
    [("http-2026", (False, True), 40), *(pytest.param(*pair, CALLS, marks=pytest.mark.slow) for pair in PAIRS)],
)
async def test_two_clients_at_once_are_asked_their_own_questions_only(
    tmp_path: Path, kind: str, eras: tuple[bool, bool], calls: int
) -> None:
    ada, bob = Person("ada"), Person("bob")
    async with (
        definition_of(kind) as definition,
        gateway_to(tmp_path, definition) as served,
        ada.client(served.url, modern=eras[0]) as first,
        bob.client(served.url, modern=eras[1]) as second,
    ):
        with anyio.fail_after(LIMIT):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask_often, ada, first, ("ask", "sample"), calls // 2)
                tasks.start_soon(ask_often, bob, second, ("ask", "sample"), calls // 2)


@pytest.mark.slow
async def test_a_slow_server_is_asked_for_its_era_once_though_clients_give_up(tmp_path: Path) -> None:
    starts, may_start = tmp_path / "starts", tmp_path / "may start"
    may_start.touch()
    script = 'echo >> "$0"; until test -e "$1"; do sleep 0.01; done; shift; exec "$@"'
    server = {
        "command": "/bin/sh",
        "args": ["-c", script, str(starts), str(may_start), sys.executable, "-m", conformance_server.__name__],
        "env": {"PYTHONPATH": str(Path(conformance_server.__file__).parents[2])},
    }
    ada, tool = Person("ada"), "up__test_input_required_result_elicitation"
    async with gateway_to(tmp_path, server) as served, ada.client(served.url, modern=True) as client:
        # What it lists for a client that can be asked takes a start as well.
        await client.list_tools()
        may_start.unlink()
        before = starts.stat().st_size
        for _ in range(3):
            with anyio.move_on_after(0.3):
                await client.call_tool(tool)
        may_start.touch()
        with anyio.fail_after(LIMIT):
            result = await client.call_tool(tool)
    assert "ada" in result.content[0].text  # type: ignore[union-attr]
    # One for the trial, and one that is used from now on.
    assert starts.stat().st_size - before == 2


async def test_a_server_that_did_not_say_its_era_when_it_was_listed_is_asked_again(tmp_path: Path) -> None:
    app, refused = asking(modern=None).http_app(), list[bytes]()

    async def starting(scope: Any, receive: Any, send: Any) -> None:
        method = dict(scope.get("headers", ())).get(b"mcp-method")
        if method == b"server/discover" and not refused:
            refused.append(method)
            await Response("starting", 503)(scope, receive, send)
        else:
            await app(scope, receive, send)

    ada = Person("ada")
    async with (
        listening(starting) as port,
        gateway_to(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as served,
        ada.client(served.url, modern=True) as client,
    ):
        connector = served.gateway.pool.upstreams["up"].connector
        assert connector.era == HANDSHAKE
        with anyio.fail_after(LIMIT):
            result = await client.call_tool("up__ask", {"text": "who"})
        assert result.content[0].text == "ada: who"  # type: ignore[union-attr]
        assert connector.era == MODERN


@pytest.mark.parametrize("transport", ["memory", "http", "sse"])
@pytest.mark.slow
async def test_what_a_server_asks_beside_all_that_may_be_open_is_refused_at_once(
    tmp_path: Path, transport: str
) -> None:
    ada, fake, refused = Person("ada"), asking(), list[str]()
    ada.answers, excess = anyio.Event(), 50

    async def ask_much(ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        question, answered = question_of("ask", "who"), list[Any]()

        async def ask() -> None:
            try:
                answered.append(await request_channel(ctx).send_raw_request(*question.values()))
            except MCPError as error:
                refused.append(error.message)

        async with anyio.create_task_group() as tasks:
            for _ in range(MAX_OPEN_REQUESTS + excess):
                tasks.start_soon(ask)
        return text_result(str(len(answered)))

    fake.handler = ask_much
    async with AsyncExitStack() as stack:
        if transport == "memory":
            served = await stack.enter_async_context(serving(tmp_path, {"up": fake}))
        else:
            app, path = (fake.http_app(), "mcp") if transport == "http" else (sse_app(fake.server()), "sse")
            url = f"http://127.0.0.1:{await stack.enter_async_context(listening(app))}/{path}"
            served = await stack.enter_async_context(gateway_to(tmp_path, {"url": url}))
        client = await stack.enter_async_context(ada.client(served.url, modern=False))
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                result = await client.call_tool("up__ask", {"text": "who"})
                assert result.content[0].text == str(MAX_OPEN_REQUESTS)  # type: ignore[union-attr]

            tasks.start_soon(call)
            await until(lambda: len(refused) == excess and len(ada.asked) == MAX_OPEN_REQUESTS)
            ada.answers.set()
    assert set(refused) == {f"{MAX_OPEN_REQUESTS} of your requests wait for their answers already"}


async def test_questions_that_arrive_together_are_no_more_than_may_be_open(tmp_path: Path) -> None:
    ada, excess, done = Person("ada"), 50, anyio.Event()
    ada.answers = anyio.Event()
    question = json.dumps({"jsonrpc": "2.0", "id": "ID", **question_of("ask", "who")})

    async def ask_at_once(request: RawRequest) -> None:
        asked = b"".join(event(question.replace("ID", f"q{at}").encode()) for at in range(MAX_OPEN_REQUESTS + excess))
        await request.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + asked)
        await done.wait()
        await request.send(event(result(request.message, text_result("done"))))

    async with (
        raw_server(ask_at_once, "tools/call") as server,
        gateway_to(tmp_path, {"url": server.url}) as served,
        ada.client(served.url, modern=False) as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(client.call_tool, "up__t")

        def refused() -> list[str]:
            errors = [each.message["error"]["message"] for each in server.seen if "error" in each.message]
            return [each for each in errors if "wait for their answers" in each]

        await until(lambda: len(refused()) + len(ada.asked) == MAX_OPEN_REQUESTS + excess)
        assert (len(refused()), len(ada.asked)) == (excess, MAX_OPEN_REQUESTS)
        ada.answers.set()
        done.set()


def event(message: bytes) -> bytes:
    """A message on a stream."""
    return b"data: " + message + b"\n\n"
