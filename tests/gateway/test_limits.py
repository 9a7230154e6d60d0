"""Limits on calls: what is refused, what it is told, and that nothing else is touched."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from pml_gateway.gateway import limits
from pml_gateway.gateway.request import CallOptions, RequestScope
from pml_gateway.policy.principal import OWNER
from tests.support.local import machine
from tests.support.memory import settings_for
from tests.support.raw import HandshakeSession, decoded
from tests.support.scripted_server import PROMPTS, RESOURCES, ScriptedServer, prompt, resource, text_result, tool
from tests.support.serving import Serving, serving
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("_keys")]

ADA, BOB = "key-of-ada-0123456789", "key-of-bob-0123456789"
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
META_TOOLS = ["search_tools", "call_tool", "call_batch", "execute_workflow"]
WORKFLOWS = {"twice": {"description": "Look twice.", "steps": [{"tool": "up:look"}, {"tool": "up:look"}]}}


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADA", ADA)
    monkeypatch.setenv("BOB", BOB)
    # Tests are refused more often than people are.
    monkeypatch.setattr(limits, "HELD_SECONDS", 0.0)


def upstream(**options: Any) -> ScriptedServer:
    return ScriptedServer(
        [tool("look", annotations={"readOnlyHint": True}), tool("touch")],
        prompts=[prompt("hello")],
        resources=[resource("file:///srv/readme")],
        methods=PROMPTS | RESOURCES,
        **options,
    )


def clients(ada: Mapping[str, Any], **bob: Any) -> dict[str, Any]:
    return {"ada": {"key": "${env:ADA}", "limits": ada}, "bob": {"key": "${env:BOB}", "limits": bob}}


@asynccontextmanager
async def limited(folder: Path, server: ScriptedServer | None = None, **sections: Any) -> AsyncIterator[Serving]:
    given = {"clients": clients({}), "gateway": {"meta_tools": META_TOOLS}, "workflows": WORKFLOWS, **sections}
    async with serving(folder, {"up": server or upstream()}, **given) as served:
        await served.gateway.refresh(30)
        yield served


def entry(**sections: Any) -> dict[str, Any]:
    return {"up": {"command": "in-memory-up", **sections}}


def code(result: Mapping[str, Any]) -> str:
    content = result.get("structuredContent")
    error = content.get("error") if isinstance(content, dict) else None
    return "OK" if error is None else str(error["code"])


async def test_of_the_limits_of_a_client_and_its_roles_the_strictest_holds_for_each_client(tmp_path: Path) -> None:
    given = {
        "ada": {"key": "${env:ADA}", "roles": ["calm", "calmer"], "limits": {"calls_per_minute": 3}},
        "bob": {"key": "${env:BOB}", "roles": ["calm"]},
    }
    roles = {
        "calm": {"sets": ["all"], "limits": {"calls_per_minute": 2}},
        "calmer": {"sets": ["all"], "limits": {"calls_per_minute": 1}},
    }
    async with limited(tmp_path, clients=given, sets={"all": {}}, roles=roles) as served:
        of_ada = [await served.call("up__look", key=ADA) for _ in range(2)]
        of_bob = [await served.call("up__look", key=BOB) for _ in range(3)]
    assert [code(each) for each in (*of_ada, *of_bob)] == ["OK", "RATE_LIMITED", "OK", "OK", "RATE_LIMITED"]
    assert "roles.calmer.limits.calls_per_minute" in of_ada[1]["structuredContent"]["error"]["hint"]


async def test_a_client_over_its_limit_is_told_which_and_when_and_others_go_on(tmp_path: Path) -> None:
    server = upstream()
    async with limited(tmp_path, server, clients=clients({"calls_per_minute": 2})) as served:
        got = [await served.call("up__look", {"at": at}, key=ADA) for at in range(4)]
        assert code(await served.call("up__look", key=BOB)) == "OK"
    assert [code(each) for each in got] == ["OK", "OK", "RATE_LIMITED", "RATE_LIMITED"]
    error = got[2]["structuredContent"]["error"]
    wait = error["details"].pop("retry_after")
    assert 1 <= wait <= 61 and f"try again in {wait} second" in error["hint"]
    assert error["retryable"] and "limit of 2 calls a minute" in error["message"]
    assert error["details"].items() >= {"limit": "calls_per_minute", "value": 2, "executed": "no"}.items()
    assert "clients.ada.limits.calls_per_minute" in error["hint"]
    assert len(server.calls) == 3


async def test_a_client_that_is_refused_again_at_once_is_held_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HELD_SECONDS", 3600.0)
    monkeypatch.setattr(limits, "REFUSALS_APART", 3600.0)
    slots = [{"tool": "up:look"}] * 3
    # The gateway ends the held call with itself.
    given: Any = {"limits": {"calls_per_day": 1}, "http": {"shutdown_seconds": 1}}
    async with anyio.create_task_group() as tasks, limited(tmp_path, **given) as served:
        for key in (ADA, BOB):
            assert code(await served.call("up__look", key=key)) == "OK"
        # All slots of one batch are refused at once.
        batch = await served.call("call_batch", {"calls": slots}, key=ADA)
        got: list[str] = []

        async def call_again() -> None:
            with suppress(Exception):
                got.append(code(await served.call("up__look", key=ADA)))

        tasks.start_soon(call_again)
        assert code(await served.call("up__look", key=BOB)) == "RATE_LIMITED"
        # What is no call goes on, also that of the same client.
        for _ in range(10):
            assert code(await served.call("search_tools", {"query": "look"}, key=ADA)) == "OK"
        assert got == []
    assert [each["error"]["code"] for each in batch["structuredContent"]["slots"]] == ["RATE_LIMITED"] * 3


async def test_a_session_of_the_handshake_era_has_the_same_limit(tmp_path: Path) -> None:
    async with limited(tmp_path, clients=clients({"calls_per_day": 1})) as served:
        await served.call("up__look", key=ADA)
        async with served.handshake(key=ADA) as session:
            call = partial(session.result, "tools/call", {"name": "up__look", "arguments": {}})
            assert code(await anyio.to_thread.run_sync(call)) == "RATE_LIMITED"


async def test_clients_without_a_key_and_local_ones_are_limited_too(tmp_path: Path) -> None:
    async with limited(tmp_path, clients={}, limits={"calls_per_minute": 1}) as served:
        assert [code(await served.call("up__look")) for _ in range(2)] == ["OK", "RATE_LIMITED"]
    local = machine(tmp_path / "machine", {"up": upstream()}, limits={"calls_per_minute": 1})
    async with local as here, here.unable("one") as one, here.unable("two") as two:
        got = [await client.call_tool("up__look", {}) for client in (one, one, two)]
    assert [code({"structuredContent": each.structured_content}) for each in got] == ["OK", "RATE_LIMITED", "OK"]


async def test_each_call_of_a_batch_and_each_step_counts_and_what_calls_them_does_not(tmp_path: Path) -> None:
    server = upstream()
    async with limited(tmp_path, server, clients=clients({"calls_per_minute": 3}, calls_per_minute=3)) as served:
        calls = [{"name": "up:look", "arguments": {"at": at}} for at in range(5)]
        batch = await served.call("call_batch", {"calls": calls}, key=ADA)
        assert str(batch["structuredContent"]).count("RATE_LIMITED") == 2
        assert len(server.calls) == 3
        steps = [{"id": f"s{number}", "tool": "up:look", "args": {"at": number}} for number in range(3)]
        assert code(await served.call("execute_workflow", {"steps": steps}, key=BOB)) == "OK"
        refused = await served.call("workflows__twice", key=BOB)
    assert "RATE_LIMITED" in str(refused) and len(server.calls) == 6


async def test_what_the_gateway_itself_answers_does_not_count(tmp_path: Path) -> None:
    async with limited(tmp_path, clients=clients({"calls_per_minute": 1})) as served:
        for _ in range(3):
            assert code(await served.call("search_tools", {"query": "look"}, key=ADA)) == "OK"
            assert code(await served.call("up__nothing", key=ADA)) == "NOT_FOUND"
        assert code(await served.call("call_tool", {"name": "up:look"}, key=ADA)) == "OK"
        assert code(await served.call("call_tool", {"name": "up:look"}, key=ADA)) == "RATE_LIMITED"


async def test_commands_of_the_owner_have_no_limits(tmp_path: Path) -> None:
    async with limited(tmp_path, limits={"calls_per_minute": 1}, servers=entry(limits={"calls_per_day": 1})) as served:
        assert code(await served.call("up__look", key=ADA)) == "OK"
        for _ in range(2):
            arguments = {"name": "up:look"}
            called = await served.runtime.caller.as_owner(RequestScope(OWNER), "call_tool", arguments, CallOptions())
            assert code(called) == "OK"
        assert code(await served.call("up__look", key=BOB)) == "RATE_LIMITED"


async def test_prompts_and_resources_count(tmp_path: Path) -> None:
    async with limited(tmp_path, clients=clients({"calls_per_minute": 2})) as served:
        assert "result" in await served.message("prompts/get", {"name": "hello"}, key=ADA)
        assert "result" in await served.message("resources/read", {"uri": "file:///srv/readme"}, key=ADA)
        refused = await served.message("prompts/get", {"name": "hello"}, key=ADA)
        assert refused["error"]["data"]["code"] == "RATE_LIMITED"
        assert code(await served.call("up__look", key=ADA)) == "RATE_LIMITED"


async def test_a_loop_of_equal_calls_is_stopped_and_other_calls_are_not(tmp_path: Path) -> None:
    guard = {"same_call": {"times": 2, "seconds": 60}}
    server = upstream()
    async with limited(tmp_path, server, limits=guard) as served:
        got = [code(await served.call("up__look", {"a": 1, "b": 2}, key=ADA)) for _ in range(2)]
        looped = await served.call("call_tool", {"name": "up:look", "arguments": {"b": 2, "a": 1}}, key=ADA)
        assert [*got, code(looped)] == ["OK", "OK", "RATE_LIMITED"]
        error = looped["structuredContent"]["error"]
        assert "made 2 times within 60 seconds" in error["message"] and "change the arguments" in error["hint"]
        assert code(await served.call("up__look", {"a": 1, "b": 3}, key=ADA)) == "OK"
        assert code(await served.call("up__touch", {"a": 1, "b": 2}, key=ADA)) == "OK"
        assert code(await served.call("up__look", {"a": 1, "b": 2}, key=BOB)) == "OK"
        batch = await served.call("call_batch", {"calls": [{"name": "up:touch"}] * 5}, key=BOB)
    assert str(batch["structuredContent"]).count("RATE_LIMITED") == 3


async def test_limits_of_a_server_and_of_a_tool_are_of_all_clients_together(tmp_path: Path) -> None:
    servers = entry(limits={"calls_per_minute": 3}, tools={"touch": {"limits": {"calls_per_day": 1}}})
    async with limited(tmp_path, servers=servers) as served:
        assert code(await served.call("up__touch", key=ADA)) == "OK"
        refused = await served.call("up__touch", key=BOB)
        assert "servers.up.tools.touch.limits.calls_per_day" in refused["structuredContent"]["error"]["hint"]
        got = [code(await served.call("up__look", key=key)) for key in (ADA, BOB, ADA)]
    assert got == ["OK", "OK", "RATE_LIMITED"]


async def test_of_several_limits_the_strictest_wins(tmp_path: Path) -> None:
    own, of_all = clients({"calls_per_minute": 100}), {"calls_per_minute": 1}
    async with limited(tmp_path, clients=own, limits=of_all) as served:
        got = [await served.call("up__look", key=ADA) for _ in range(2)]
    assert [code(each) for each in got] == ["OK", "RATE_LIMITED"]
    assert "sets limits.calls_per_minute" in got[1]["structuredContent"]["error"]["hint"]


async def test_an_edit_of_a_limit_takes_effect_at_once_and_forgets_no_call(tmp_path: Path) -> None:
    async with limited(tmp_path, limits={"calls_per_minute": 1}) as served:

        async def serve_with(limit: int) -> None:
            sections = {"clients": clients({}), "limits": {"calls_per_minute": limit}}
            await served.gateway.reload(settings_for({"up": upstream()}, **sections))

        connections = served.gateway.pool.upstreams["up"]
        assert [code(await served.call("up__look", key=ADA)) for _ in range(2)] == ["OK", "RATE_LIMITED"]
        await serve_with(3)
        got = [code(await served.call("up__look", key=ADA)) for _ in range(3)]
        assert got == ["OK", "OK", "RATE_LIMITED"]
        assert served.gateway.pool.upstreams["up"] is connections


async def test_answers_are_counted_as_clients_get_them_and_the_one_that_crosses_is_given(tmp_path: Path) -> None:
    async def answer(*_: Any) -> dict[str, Any]:
        return text_result("one two three four five six " * 20)

    server = upstream(handler=answer)
    async with limited(tmp_path, server, clients=clients({"answer_tokens_per_hour": 150})) as served:
        got = [await served.call("up__look", key=ADA) for _ in range(3)]
        searched = await served.call("search_tools", {"query": "look"}, key=ADA)
        assert code(await served.call("up__look", key=BOB)) == "OK"
    assert [code(each) for each in got] == ["OK", "OK", "RATE_LIMITED"]
    assert code(searched) == "RATE_LIMITED"
    assert "150 tokens of answers an hour" in got[2]["structuredContent"]["error"]["message"]


async def test_what_steps_return_is_no_answer_of_their_client(tmp_path: Path) -> None:
    async def answer(*_: Any) -> dict[str, Any]:
        return text_result("one two three four five six " * 20)

    steps = [{"id": "a", "tool": "up:look"}, {"id": "b", "tool": "up:touch"}, {"id": "c", "transform": "length(a)"}]
    plan = {"steps": steps, "return": ["c"]}
    async with limited(tmp_path, upstream(handler=answer), limits={"answer_tokens_per_hour": 250}) as served:
        for _ in range(2):
            assert code(await served.call("execute_workflow", plan, key=ADA)) == "OK"


class Busy:
    """A server's handler whose calls run until the test ends them; `most` ran at once."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.end = anyio.Event()

    async def __call__(self, *_: Any) -> dict[str, Any]:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.end.wait()
        finally:
            self.running -= 1
        return text_result("done")


async def test_calls_over_the_number_at_once_wait_and_all_of_them_are_answered(tmp_path: Path) -> None:
    busy, got = Busy(), list[str]()
    async with limited(tmp_path, upstream(handler=busy), clients=clients({"calls_at_once": 2})) as served:

        async def call(key: str) -> None:
            got.append(code(await served.call("up__look", key=key)))

        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(call, ADA)
            await until(lambda: busy.running == 2)
            tasks.start_soon(call, BOB)
            await until(lambda: busy.running == 3)
            busy.end.set()
    assert got == ["OK"] * 7 and busy.most == 3


async def test_a_call_that_waited_too_long_is_refused_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WAIT_SECONDS", 0.05)
    busy = Busy()
    given = clients({"calls_at_once": 1, "calls_per_minute": 2})
    async with limited(tmp_path, upstream(handler=busy), clients=given) as served, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(served.call, "up__look", key=ADA))
        await until(lambda: busy.running == 1)
        refused = [await served.call("up__look", key=ADA) for _ in range(3)]
        busy.end.set()
        await until(lambda: busy.running == 0)
        assert code(await served.call("up__look", key=ADA)) == "OK"
    error = refused[0]["structuredContent"]["error"]
    assert {code(each) for each in refused} == {"RATE_LIMITED"} and error["details"]["limit"] == "calls_at_once"


async def test_a_race_for_the_last_call_has_one_winner(tmp_path: Path) -> None:
    server, got = upstream(), list[str]()
    async with limited(tmp_path, server, limits={"calls_per_minute": 5}) as served:

        async def call() -> None:
            got.append(code(await served.call("up__look", key=ADA)))

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(call)
    assert sorted(got) == ["OK"] * 5 + ["RATE_LIMITED"] * 15 and len(server.calls) == 5


LOOK = {"name": "up__look", "arguments": {}}
WAYS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("up__look", "up:look", "UP__LOOK", "look", "mcp__pml__up__look", "workflows__twice")),
    ("call_tool", LOOK),
    ("call", {"operation": "up__look", "input": {}}),
    ("call_batch", {"calls": [LOOK, LOOK]}),
    ("execute_workflow", {"steps": [{"tool": "up__look"}]}),
]


@pytest.mark.slow
@pytest.mark.parametrize("style", ["tools", "namespaces"])
async def test_no_way_to_a_tool_gets_around_a_limit(style: str, tmp_path: Path) -> None:
    server = upstream()
    ways = [*WAYS, ("up", {"action": "look"}), ("up", {"action": "touch"})] if style == "namespaces" else WAYS
    sections = {"gateway": {"meta_tools": META_TOOLS, "style": style, "legacy_tools": True}}
    async with limited(tmp_path, server, clients=clients({"calls_per_minute": 1}), **sections) as served:
        assert code(await served.call("up__look", key=ADA)) == "OK"
        for name, given in ways:
            assert "RATE_LIMITED" in str(
                await served.message("tools/call", {"name": name, "arguments": given}, key=ADA)
            )

        def in_sessions() -> list[str]:
            got = []
            for version in ("2025-06-18", "2025-11-25"):
                with HandshakeSession(served.url, version, key=ADA) as session:
                    got.append(str(decoded(session.send("tools/call", LOOK))))
            with HandshakeSession(served.url, key=ADA) as session:
                task = decoded(session.send("tools/call", {**LOOK, "task": {"ttl": 60_000}}))["result"]["task"]
                got.append(str(decoded(session.send("tasks/result", {"taskId": task["taskId"]}))))
            return got

        assert all("RATE_LIMITED" in each for each in await anyio.to_thread.run_sync(in_sessions))
    assert len(server.calls) == 1


async def test_a_loop_is_one_also_with_answers_that_no_call_asked_for(tmp_path: Path) -> None:
    guard = {"same_call": {"times": 2, "seconds": 60}}
    answers = {"who": {"action": "accept", "content": {}}}
    for given in ({}, answers):
        async with limited(tmp_path, limits=guard) as served:
            params = {"name": "up__look", "arguments": {}, "inputResponses": given}
            got = [code(await served.result("tools/call", params, key=ADA)) for _ in range(3)]
            assert got == ["OK", "OK", "RATE_LIMITED"]


async def test_an_answer_to_a_question_of_a_call_is_no_loop(tmp_path: Path) -> None:
    question = {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": "Who?", "requestedSchema": SCHEMA},
    }
    waiting = {"resultType": "input_required", "inputRequests": {"who": question}, "requestState": "mine"}

    async def ask(context: Any, _: dict[str, Any]) -> dict[str, Any]:
        is_answered = (context.params or {}).get("inputResponses")
        return {**text_result("done"), "resultType": "complete"} if is_answered else waiting

    guard = {"same_call": {"times": 1, "seconds": 60}}
    server = ScriptedServer([tool("look")], ask, modern=True)
    async with serving(tmp_path, {"up": server}, limits=guard) as served:
        first = await served.call("up__look")
        answers = {"who": {"action": "accept", "content": {"name": "Ada"}}}
        params = {"name": "up__look", "arguments": {}, "inputResponses": answers, "requestState": first["requestState"]}
        assert code(await served.result("tools/call", params)) == "OK"
        assert code(await served.call("up__look")) == "RATE_LIMITED"
