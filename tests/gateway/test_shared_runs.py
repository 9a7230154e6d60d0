"""Runs that wait for their users, at gateways that share a Redis server: each goes on at any of them, once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import anyio
import httpx2
import pytest

from pml_gateway.storage.redis import PREFIX
from tests.support.asking import asking
from tests.support.memory import settings_for
from tests.support.raw import modern
from tests.support.replicas import KEYS, bearer, replicas, replicas_of, shared_sections, written
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving
from tests.support.waiting import eventually, until
from tests.workflow.test_questions import ANSWER, QUESTION

pytestmark = pytest.mark.anyio

__all__ = ["shared_sections"]

PIXEL = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}


def server(*, modern: bool = True) -> ScriptedServer:
    async def act(ctx: Any, call: dict[str, Any]) -> Any:
        match call["name"]:
            case "picture":
                return {"content": [PIXEL], "resultType": "complete"}
            case "rows":
                rows = [{"number": number, "text": f"row {number}"} for number in range(2000)]
                return {"content": [], "structuredContent": {"rows": rows}, "resultType": "complete"}
            case "plain":
                return {**text_result(f"plain {call['arguments'].get('text', '')}"), "resultType": "complete"}
        params = ctx.params or {}
        state, responses = int(params.get("requestState") or 0), params.get("inputResponses")
        if not responses or state < call["arguments"].get("times", 1) - 1:
            state += bool(responses)
            return {"resultType": "input_required", "inputRequests": {"who": QUESTION}, "requestState": str(state)}
        return {**text_result(f"hello {responses['who']['content']['name']}"), "resultType": "complete"}

    names = ("picture", "rows", "plain", "ask")
    properties = {"times": {"type": "integer"}, "text": {"type": "string"}}
    return ScriptedServer([tool(name, properties=properties) for name in names], act, modern=modern)


def steps(times: int = 1) -> dict[str, Any]:
    return {
        "steps": [
            {"id": "picture", "tool": "up__picture"},
            {"id": "rows", "tool": "up__rows"},
            {"id": "loop", "tool": "up__plain", "for_each": "$rows.rows[0:3]", "arguments": {"text": "$item.text"}},
            {"id": "ask", "tool": "up__ask", "arguments": {"times": times}, "depends_on": ["loop"]},
            {"id": "last", "tool": "up__plain", "arguments": {"text": "$ask"}},
        ]
    }


async def answered(
    at: Serving, name: str, arguments: dict[str, Any], first: dict[str, Any], who: str = "anna"
) -> dict[str, Any]:
    """The message that answers the same request with answers."""
    params = {
        "name": name,
        "arguments": arguments,
        "inputResponses": dict.fromkeys(first["inputRequests"], ANSWER),
        "requestState": first["requestState"],
    }
    return await at.message("tools/call", params, headers=bearer(who))


def shown(result: dict[str, Any]) -> Any:
    """An answer without what differs from run to run: handles and times."""
    rows = result["structuredContent"]["steps"]
    kept = [{key: each for key, each in row.items() if key not in ("reference", "trace")} for row in rows]
    sizes = [(row.get("reference") or {}).get("tokens") for row in rows]
    return kept, sizes, result["content"][1:], result.get("_meta", {}).get("pml-gateway/ignored_keys")


@pytest.mark.parametrize("times", [1, 3])
async def test_a_workflow_goes_on_at_another_gateway_with_the_result_of_one_that_stays(
    tmp_path: Path, shared_sections: dict[str, Any], times: int
) -> None:
    up, arguments = server(), steps(times)
    alone = {key: each for key, each in shared_sections.items() if key != "storage"}
    async with (
        replicas(tmp_path, {"up": up}, 3, **shared_sections) as shared,
        serving(tmp_path / "alone", {"up": up}, **alone) as single,
    ):
        served = (*shared, single)

        async def run(place: Callable[[int], int]) -> dict[str, Any]:
            up.calls.clear()
            found = await served[place(0)].call("execute_workflow", arguments, headers=bearer("anna"))
            for number in range(1, times + 1):
                assert found["resultType"] == "input_required", found
                message = await answered(served[place(number)], "execute_workflow", arguments, found)
                found = message["result"]
            names = [call["name"] for call in up.calls]
            assert sorted(names) == sorted(
                ["picture", "rows", "plain", "plain", "plain", *["ask"] * (times + 1), "plain"]
            )
            return found

        stays, moves = await run(lambda _: 3), await run(lambda number: number % 3)
        assert shown(stays) == shown(moves)
        assert moves["content"][1] == PIXEL
        ref = next(row["reference"]["ref"] for row in moves["structuredContent"]["steps"] if "reference" in row)
        read = await served[2].call("read_result", {"ref": ref, "path": "rows[3].text"}, headers=bearer("anna"))
    assert "row 3" in json.dumps(read)


async def test_a_run_is_continued_once_by_its_client_with_its_request_and_not_after_redis_was_emptied(
    tmp_path: Path, shared_sections: dict[str, Any]
) -> None:
    arguments = {"calls": [{"name": "up__ask", "id": "x"}, {"name": "up__plain"}]}
    async with replicas(tmp_path, {"up": server()}, **shared_sections) as (one, two):

        async def asked() -> dict[str, Any]:
            return await one.call("call_batch", arguments, headers=bearer("anna"))

        first = await asked()
        foreign = await answered(two, "call_batch", arguments, first, "ben")
        other = await answered(two, "call_batch", {"calls": [*arguments["calls"], {"name": "up__plain"}]}, first)
        for refused in (foreign, other):
            assert refused["error"]["data"] == {"reason": "invalid_request_state"}
        results: list[dict[str, Any]] = []

        async def take(at: Serving) -> None:
            results.append((await answered(at, "call_batch", arguments, first))["result"])

        async with anyio.create_task_group() as tasks:
            for at in (one, two, one, two):
                tasks.start_soon(take, at)
        slots = [each["structuredContent"].get("slots") for each in results]
        assert [[slot["result"] for slot in each] for each in slots if each] == [["hello Ada", "plain "]]
        errors = [each["structuredContent"]["error"] for each in results if "error" in each["structuredContent"]]
        assert len(errors) == 3
        # While it goes on at the other one, that may yet be lost.
        assert all(error["code"] == "NOT_FOUND" or error["retryable"] for error in errors)
        late = await answered(two, "call_batch", arguments, first)
        assert late["result"]["structuredContent"]["error"]["code"] == "NOT_FOUND"
        second = await asked()
        redis = replicas_of(one).server
        await redis.run(lambda client: client.flushall())
        gone = await answered(two, "call_batch", arguments, second)
        assert gone["result"]["structuredContent"]["error"]["code"] == "NOT_FOUND"


@dataclass
class Stuck:
    """A server with a tool that asks and may be called again, and tools that may not; one of them does not answer."""

    at: str
    go: anyio.Event = field(default_factory=anyio.Event)
    calls: list[str] = field(default_factory=list)

    def server(self) -> ScriptedServer:
        async def act(ctx: Any, call: dict[str, Any]) -> Any:
            if call["name"] == "ask" and not (ctx.params or {}).get("inputResponses"):
                return {"resultType": "input_required", "inputRequests": {"who": QUESTION}}
            self.calls.append(call["name"])
            if call["name"] == self.at:
                await self.go.wait()
            return {**text_result(call["name"]), "resultType": "complete"}

        ask = tool("ask", annotations={"idempotentHint": True})
        return ScriptedServer([ask, tool("write"), tool("last")], act, modern=True)

    steps: ClassVar[dict[str, Any]] = {
        "steps": [
            {"id": "ask", "tool": "up__ask"},
            {"id": "write", "tool": "up__write", "depends_on": ["ask"]},
            {"id": "last", "tool": "up__last", "depends_on": ["write"]},
        ]
    }


@pytest.mark.parametrize("at", ["ask", "write"])
async def test_a_run_of_a_gateway_that_is_gone_goes_on_at_another_and_repeats_only_what_may_be_repeated(
    tmp_path: Path, shared_sections: dict[str, Any], at: str
) -> None:
    stuck, results, name = Stuck(at), list[dict[str, Any]](), "execute_workflow"
    async with replicas(tmp_path, {"up": stuck.server()}, **shared_sections) as (one, two):
        first = await one.call(name, stuck.steps, headers=bearer("anna"))
        replica, redis = replicas_of(one), replicas_of(two).server

        async def go_on() -> None:
            results.append((await answered(one, name, stuck.steps, first))["result"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(go_on)
            await until(lambda: at in stuck.calls)
            lives = (await answered(two, name, stuck.steps, first))["result"]["structuredContent"]["error"]
            assert lives["retryable"]
            # Only the call that is under way at the other one does not answer.
            stuck.at = ""

            async def is_continued() -> bool:
                await redis.run(lambda client: client.delete(f"{PREFIX}:replica:{replica.own.id}"))
                # Its next heartbeat may come just before the other one reads entries by itself.
                await replicas_of(two).all()
                results[:] = [(await answered(two, name, stuck.steps, first))["result"]]
                return "steps" in results[0]["structuredContent"]

            await eventually(is_continued)
            stuck.go.set()
    shown = [[(row["id"], row["status"]) for row in each["structuredContent"]["steps"]] for each in results]
    if at == "ask":
        assert shown[0] == [("ask", "ok"), ("write", "ok"), ("last", "ok")]
        assert shown[1] == [("ask", "ok"), ("write", "error"), ("last", "skipped")]
        assert sorted(stuck.calls) == ["ask", "ask", "last", "write"]
    else:
        assert shown[0] == [("ask", "ok"), ("write", "error"), ("last", "skipped")]
        error = results[0]["structuredContent"]["steps"][1]["error"]
        assert error["details"]["executed"] == "unknown"
        assert not error["retryable"]
        assert shown[1] == [("ask", "ok"), ("write", "ok"), ("last", "error")]
        assert sorted(stuck.calls) == ["ask", "ask", "write"]


async def test_a_run_whose_request_is_cut_off_goes_on_at_any_gateway(
    tmp_path: Path, shared_sections: dict[str, Any]
) -> None:
    stuck, name = Stuck("ask"), "execute_workflow"
    async with replicas(tmp_path, {"up": stuck.server()}, **shared_sections) as (one, two):
        first = await one.call(name, stuck.steps, headers=bearer("anna"))
        params = {"name": name, "arguments": stuck.steps, "requestState": first["requestState"]}
        given = {**params, "inputResponses": dict.fromkeys(first["inputRequests"], ANSWER)}
        body, headers = modern("tools/call", given, KEYS["anna"])
        async with anyio.create_task_group() as tasks, httpx2.AsyncClient(timeout=30) as client:
            tasks.start_soon(partial(client.post, one.url, content=body, headers=headers))
            await until(lambda: "ask" in stuck.calls)
            tasks.cancel_scope.cancel()
        stuck.at, results = "", list[dict[str, Any]]()

        async def is_continued() -> bool:
            results[:] = [(await answered(two, name, stuck.steps, first))["result"]["structuredContent"]]
            return "steps" in results[0]

        await eventually(is_continued)
    assert [row["status"] for row in results[0]["steps"]] == ["ok", "ok", "ok"]
    assert sorted(stuck.calls) == ["ask", "ask", "last", "write"]


@asynccontextmanager
async def composite(
    folder: Path, sections: dict[str, Any], *descriptions: str
) -> AsyncIterator[tuple[Serving, Serving]]:
    """Two gateways, each with a composite tool of its own description, and one that calls it."""
    workflows = [
        {
            "greet": {"description": text, "steps": [{"tool": "up:plain"}, {"tool": "up:ask"}]},
            "twice": {"description": "Greet twice.", "steps": [{"tool": "up:plain"}, {"tool": "workflows:greet"}]},
        }
        for text in descriptions
    ]
    up = server()
    async with (
        serving(folder / "one", {"up": up}, workflows=workflows[0], **sections) as one,
        serving(folder / "two", {"up": up}, workflows=workflows[-1], **sections) as two,
    ):
        yield one, two


@pytest.mark.parametrize("name", ["workflows__greet", "workflows__twice"])
async def test_a_composite_tool_goes_on_at_another_gateway_also_inside_another_one(
    tmp_path: Path, shared_sections: dict[str, Any], name: str
) -> None:
    async with composite(tmp_path, shared_sections, "Greet somebody.") as (one, two):
        first = await one.call(name, {}, headers=bearer("anna"))
        message = await answered(two, name, {}, first)
    assert message["result"]["content"][0]["text"] == "hello Ada"


async def test_a_composite_tool_that_was_edited_does_not_go_on(tmp_path: Path, shared_sections: dict[str, Any]) -> None:
    async with composite(tmp_path, shared_sections, "Greet somebody.", "Greet nobody.") as (one, two):
        first = await one.call("workflows__greet", {}, headers=bearer("anna"))
        message = await answered(two, "workflows__greet", {}, first)
        assert message["result"]["structuredContent"]["error"]["code"] == "NOT_FOUND"
        again = await answered(one, "workflows__greet", {}, first)
    assert again["result"]["content"][0]["text"] == "hello Ada"


async def test_nothing_of_a_run_can_be_read_in_redis_and_all_of_it_expires(
    tmp_path: Path, shared_sections: dict[str, Any]
) -> None:
    async with replicas(tmp_path, {"up": server()}, **shared_sections) as (one, _):
        redis = replicas_of(one).server
        await one.call("execute_workflow", steps(), headers=bearer("anna"))
        found = await written(redis, "runs*")
    assert len(found) == 2
    for name, (value, milliseconds) in found.items():
        assert 800_000 < milliseconds <= 900_000
        assert not any(text in name + value for text in (b"anna", b"row 1", b"plain"))


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "up__ask", "arguments": {"text": "Who?"}}),
        ("prompts/get", {"name": "ask"}),
        ("resources/read", {"uri": "ask://who"}),
    ],
)
async def test_a_question_of_a_server_of_2026_is_answered_anywhere_by_its_client_with_its_request(
    tmp_path: Path, shared_sections: dict[str, Any], method: str, params: dict[str, Any]
) -> None:
    answer = {"action": "accept", "content": {"answer": "Ada"}}
    async with replicas(tmp_path, {"up": asking(modern=True)}, **shared_sections) as (one, two):
        first = await one.result(method, params, headers=bearer("anna"))
        given = {**params, "inputResponses": {"k": answer}, "requestState": first["requestState"]}
        foreign = await two.message(method, given, headers=bearer("ben"))
        assert foreign["error"]["data"] == {"reason": "invalid_request_state"}
        assert "Ada" in str(await two.result(method, given, headers=bearer("anna")))


async def test_a_run_with_a_question_of_a_handshake_server_is_answered_where_it_waits_as_long_as_that_lives(
    tmp_path: Path, shared_sections: dict[str, Any]
) -> None:
    arguments = {"calls": [{"name": "old__ask", "id": "o"}, {"name": "up__ask", "id": "n"}]}
    meta: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
    servers = {"up": server(), "old": asking(modern=False)}
    eve = {"action": "accept", "content": {"answer": "Eve"}}

    async def begin(at: Serving, name: str, **given: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        asked = {"name": name, **given, "_meta": meta}
        first = await at.result("tools/call", asked, headers=bearer("anna"))
        keys = {key: eve if key.endswith("q1") else ANSWER for key in first["inputRequests"]}
        return first, {**asked, "inputResponses": keys, "requestState": first["requestState"]}

    settings = settings_for(servers, **shared_sections)
    async with serving(tmp_path / "two", servers, settings) as two:
        async with serving(tmp_path / "one", servers, settings) as one:
            await until(lambda: len(replicas_of(two).known) > 1)
            first, given = await begin(one, "call_batch", arguments=arguments)
            assert sorted(first["inputRequests"]) == ["n.who", "o.q1"]
            redis = replicas_of(one).server
            assert await written(redis, "runs*") == {}
            result = await two.result("tools/call", given, headers=bearer("anna"))
            assert [slot["result"] for slot in result["structuredContent"]["slots"]] == ["Eve", "hello Ada"]
            _, single = await begin(one, "old__ask", arguments={"text": "Who?"})
            assert "Eve" in str(await two.result("tools/call", single, headers=bearer("anna")))
            lost = [await begin(one, "call_batch", arguments=arguments), await begin(one, "old__ask", arguments={})]
        for _, given in lost:
            answer = await two.result("tools/call", given, headers=bearer("anna"))
            assert answer["structuredContent"]["error"]["code"] == "NOT_FOUND"
