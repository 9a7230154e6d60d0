"""How questions end: withdrawn, refused, too late, unanswered; and what time limits do meanwhile."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import mcp_types
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from pml_gateway.mcp.sdk import connection_of
from tests.support.asking import MODERN, Person, question_of
from tests.support.memory import settings_for
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

ERAS = pytest.mark.parametrize("modern", [False, True], ids=["handshake", "2026"])


class Upstream:
    """A handshake upstream whose one tool asks, and that knows how its questions and calls ended."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []
        self.withdraw = anyio.Event()
        self.late = anyio.Event()
        self.waiting = anyio.Event()
        self.fake = ScriptedServer([tool(name) for name in ("ask", "withdraw", "leave", "wait", "plain")], self.act)

    async def ask(self, ctx: Any, text: str = "who") -> None:
        question = question_of("ask", text)
        try:
            answer = await connection_of(ctx).send_raw_request(question["method"], question["params"])
        except MCPError as error:
            self.outcomes.append(f"{error.code} {error.message}")
        except anyio.get_cancelled_exc_class():
            self.outcomes.append("cancelled")
            raise
        else:
            self.outcomes.append(answer["content"]["answer"])

    async def act(self, ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        match call["name"]:
            case "ask":
                await self.ask(ctx)
            case "withdraw":
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self.ask, ctx)
                    await self.withdraw.wait()
                    tasks.cancel_scope.cancel()
            case "wait":
                self.waiting.set()
                try:
                    await anyio.sleep_forever()
                finally:
                    self.outcomes.append("cancelled")
            case "leave":
                # Answers while its question is open.
                connection = connection_of(ctx)
                question = question_of("ask", "who")

                async def abandoned() -> None:
                    try:
                        await connection.send_raw_request(question["method"], question["params"])
                    except MCPError as error:
                        self.outcomes.append(f"{error.code} {error.message}")
                        self.late.set()

                self.tasks.start_soon(abandoned)
                await self.withdraw.wait()
        return text_result(self.outcomes[-1] if self.outcomes else "nothing asked")

    async def serve_tasks(self, task_status: Any = anyio.TASK_STATUS_IGNORED) -> None:
        async with anyio.create_task_group() as self.tasks:
            task_status.started()
            await anyio.sleep_forever()


class Thinking(Person):
    """Somebody who takes time, and is told when the question is withdrawn."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.answers = anyio.Event()
        self.withdrawn = 0

    async def elicit(self, context: Any, params: Any) -> mcp_types.ElicitResult:
        try:
            return await super().elicit(context, params)
        except anyio.get_cancelled_exc_class():
            self.withdrawn += 1
            raise


def serving_with(folder: Path, upstream: Upstream, **limits: float) -> AbstractAsyncContextManager[Serving]:
    """A gateway with these limits for its upstreams."""
    fakes = {"up": upstream.fake}
    return serving(folder, fakes, settings_for(fakes, upstreams=limits))


def pool_of(served: Serving) -> Any:
    return served.gateway.pool.upstreams["up"].sessions.own


@ERAS
async def test_a_client_that_leaves_cancels_its_call_and_what_it_was_asked(tmp_path: Path, modern: bool) -> None:
    upstream, ada = Upstream(), Thinking("ada")
    async with serving_with(tmp_path, upstream, question_timeout=1) as served:
        async with ada.client(served.url, modern=modern) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "up__ask", {})
            await until(lambda: ada.asked)
            tasks.cancel_scope.cancel()
        # A stateless client was asked by a result; its call is given up once the time to answer is over.
        await until(lambda: upstream.outcomes)
        assert upstream.outcomes == ["cancelled"]
        await until(lambda: all(not session.users for session in pool_of(served)))


@ERAS
async def test_a_call_that_is_cancelled_while_its_upstream_works_is_cancelled_there(
    tmp_path: Path, modern: bool
) -> None:
    upstream, ada = Upstream(), Person("ada")
    async with serving(tmp_path, {"up": upstream.fake}) as served, ada.client(served.url, modern=modern) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "up__wait", {})
            await upstream.waiting.wait()
            tasks.cancel_scope.cancel()
        await until(lambda: upstream.outcomes == ["cancelled"])
        await until(lambda: all(not session.users for session in pool_of(served)))
        await client.call_tool("up__plain", {})


async def test_a_question_that_the_upstream_withdraws_is_withdrawn_from_the_client(tmp_path: Path) -> None:
    upstream, ada = Upstream(), Thinking("ada")
    async with serving(tmp_path, {"up": upstream.fake}) as served:
        async with ada.client(served.url, modern=False) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "up__withdraw", {})
            await until(lambda: ada.asked)
            upstream.withdraw.set()
            await until(lambda: ada.withdrawn == 1)
        assert upstream.outcomes == ["cancelled"]


async def test_a_question_ends_with_its_call_and_a_later_one_is_refused(tmp_path: Path) -> None:
    upstream, ada, bob = Upstream(), Thinking("ada"), Person("bob")
    async with serving(tmp_path, {"up": upstream.fake}) as served, anyio.create_task_group() as tasks:
        await tasks.start(upstream.serve_tasks)
        async with ada.client(served.url, modern=False) as client, bob.client(served.url, modern=False) as other:
            async with anyio.create_task_group() as calls:
                calls.start_soon(client.call_tool, "up__leave", {})
                await until(lambda: ada.asked)
                upstream.withdraw.set()
            await until(lambda: ada.withdrawn == 1)
            await until(upstream.late.is_set)
            assert "is over" in upstream.outcomes[0]
            session = next(each for each in upstream.fake.sessions if each is not None)
            assert session is not None
            await other.call_tool("up__plain", {})
        assert bob.asked == []
        tasks.cancel_scope.cancel()


@pytest.mark.slow
@ERAS
async def test_time_limits_stand_still_while_a_person_is_asked(tmp_path: Path, modern: bool) -> None:
    upstream, ada = Upstream(), Thinking("ada")
    steps = [{"id": "a", "tool": "up__ask", "timeout": 3}]
    async with (
        serving_with(tmp_path, upstream, call_timeout=3) as served,
        ada.client(served.url, modern=modern) as client,
    ):
        # The session is open from here on.
        await client.call_tool("up__plain", {})
        for name, arguments in [
            ("up__ask", {}),
            ("execute_workflow", {"steps": steps, "budget": {"max_seconds": 4}}),
        ]:
            ada.answers, asked = anyio.Event(), len(ada.asked)
            async with anyio.create_task_group() as tasks:
                results: list[Any] = []

                async def call(name: str = name, arguments: Any = arguments, results: list[Any] = results) -> None:
                    results.append(await client.call_tool(name, arguments))

                tasks.start_soon(call)
                await until(lambda asked=asked: len(ada.asked) > asked)
                # Longer than every limit.
                await anyio.sleep(4.5)
                ada.answers.set()
            assert not results[0].is_error, results[0]
    assert upstream.outcomes == ["ada: who"] * 2


async def test_a_question_nobody_answers_ends_at_its_own_limit(tmp_path: Path) -> None:
    upstream, ada = Upstream(), Thinking("ada")
    async with (
        serving_with(tmp_path, upstream, question_timeout=1) as served,
        ada.client(served.url, modern=False) as client,
    ):
        await client.call_tool("up__ask", {})
    assert upstream.outcomes == ["-32001 no answer within 1 s"]
    assert ada.withdrawn == 1


async def test_a_stateless_client_that_does_not_come_back_frees_the_call_and_its_session(tmp_path: Path) -> None:
    upstream = Upstream()
    meta: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
    async with serving_with(tmp_path, upstream, question_timeout=5, max_sessions=1) as served:
        params = {"name": "up__ask", "arguments": {}, "_meta": meta}
        first = await served.result("tools/call", params)
        assert first["resultType"] == "input_required"
        await until(lambda: upstream.outcomes)
        assert upstream.outcomes == ["cancelled"]
        (key,) = first["inputRequests"]
        answers = {key: {"action": "accept", "content": {"answer": "late"}}}
        late = {**params, "inputResponses": answers, "requestState": first["requestState"]}
        refused = await served.result("tools/call", late)
        assert refused["structuredContent"]["error"]["code"] == "NOT_FOUND"
        again = await served.result("tools/call", params)
        (key,) = again["inputRequests"]
        answers = {key: {"action": "accept", "content": {"answer": "now"}}}
        result = await served.result(
            "tools/call", {**params, "inputResponses": answers, "requestState": again["requestState"]}
        )
        assert result["content"][0]["text"] == "now"


@ERAS
async def test_an_upstream_learns_what_a_client_cannot_be_asked(tmp_path: Path, modern: bool) -> None:
    upstream = Upstream()
    async with serving(tmp_path, {"up": upstream.fake}) as served:
        mode = MODERN if modern else "legacy"
        async with Client(served.url, mode=mode) as client:
            await client.call_tool("up__ask", {})
            assert upstream.outcomes == ["-32601 elicitation/create is not supported"]
            # Without anybody to ask, every call takes the shared session.
            assert upstream.fake.opened == 1

        async def roots(context: Any) -> mcp_types.ListRootsResult:
            return mcp_types.ListRootsResult(roots=[])

        async with Client(served.url, mode=mode, list_roots_callback=roots) as client:
            await client.call_tool("up__ask", {})
        assert upstream.outcomes[1] == "-32601 elicitation/create is not supported by the client of this call"
        # Its own session, one that lists for clients that can be asked something, and for a client of 2026 one attempt
        # to speak its era to the upstream.
        assert upstream.fake.opened == (4 if modern else 3)
