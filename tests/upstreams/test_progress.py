"""Progress moves the deadline of a call, up to a limit for the whole call, on every transport."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from pml_gateway.config.settings import Settings
from pml_gateway.mcp.sdk import connection_of, request_channel
from tests.support.listening import listening, sse_app
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import Serving, serving

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.field("B4")]

PAUSE = 0.4
STEPS = 10
CALL_TIMEOUT = 3.0
"""Longer than a pause, shorter than the whole work."""

TRANSPORTS = ("memory", "memory_new", "http", "http_new", "sse")
NAMES = ("work", "to_nobody", "beside", "silent")


async def act(ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
    """Work in steps: with progress, with progress of another request, with progress outside of the request's stream."""
    token = (ctx.meta or {}).get("progress_token") or (ctx.meta or {}).get("progressToken")
    assert token is not None
    for step in range(STEPS):
        await anyio.sleep(PAUSE)
        params = {"progressToken": token, "progress": step + 1, "total": STEPS, "message": f"step {step}"}
        match call["name"]:
            case "work":
                await ctx.session.report_progress(step + 1, STEPS, f"step {step}")
            case "to_nobody":
                params["progressToken"] = f"not-{token}"
                await notify(ctx, params, related=ctx.request_id)
            case "beside":
                await notify(ctx, params, related=None)
    return text_result("done")


async def notify(ctx: Any, params: dict[str, Any], related: Any) -> None:
    channel = request_channel(ctx) if related is not None else connection_of(ctx).outbound
    await channel.notify("notifications/progress", params)


def worker(*, modern: bool) -> ScriptedServer:
    return ScriptedServer([tool(name) for name in NAMES], act, modern=modern)


@asynccontextmanager
async def workers(
    folder: Path, *names: str, **upstreams: Any
) -> AsyncIterator[tuple[Serving, dict[str, ScriptedServer]]]:
    """A gateway in front of one worker for each of these transports."""
    scripted = {name: worker(modern=name.endswith("_new")) for name in names}
    entries: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        for name, server in scripted.items():
            if name.startswith("http"):
                entries[name] = {
                    "url": f"http://127.0.0.1:{await stack.enter_async_context(listening(server.http_app()))}/mcp"
                }
            elif name == "sse":
                port = await stack.enter_async_context(listening(sse_app(server.server())))
                entries[name] = {"url": f"http://127.0.0.1:{port}/sse", "type": "sse"}
            else:
                entries[name] = {"command": f"in-memory-{name}"}
        memory = {name: server for name, server in scripted.items() if name.startswith("memory")}
        settings = Settings.model_validate(
            {
                "servers": entries,
                "upstreams": {"call_timeout": CALL_TIMEOUT, **upstreams},
                "naming": {"prefix": "always"},
            }
        )
        served = await stack.enter_async_context(serving(folder, memory, settings))
        await served.gateway.refresh(30)
        yield served, scripted


async def each(served: Serving, names: Any, method: Any) -> dict[str, dict[str, Any]]:
    """The results of one call for each name, all at a time."""
    results: dict[str, dict[str, Any]] = {}

    async def one(name: str) -> None:
        results[name] = await method(name)

    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(one, name)
    return results


async def test_a_call_that_reports_progress_outlives_its_timeout(tmp_path: Path) -> None:
    async with workers(tmp_path, *TRANSPORTS) as (served, scripted):

        async def direct(name: str) -> dict[str, Any]:
            return await served.call(f"{name}__work")

        async def through(name: str) -> dict[str, Any]:
            return await served.call("call_tool", {"name": f"{name}__work", "arguments": {}})

        for method in (direct, through):
            for name, result in (await each(served, TRANSPORTS, method)).items():
                assert result["content"] == text_result("done")["content"], (name, result)
    assert all("progressToken" in call["meta"] or "progress_token" in call["meta"] for call in scripted["http"].calls)


async def test_progress_on_the_stream_of_the_session_counts_as_well(tmp_path: Path) -> None:
    async with workers(tmp_path, "http", "memory") as (served, _):

        async def beside(name: str) -> dict[str, Any]:
            return await served.call(f"{name}__beside")

        for name, result in (await each(served, ("http", "memory"), beside)).items():
            assert result["content"] == text_result("done")["content"], (name, result)


async def test_silence_and_progress_of_another_request_do_not_count(tmp_path: Path) -> None:
    async with workers(tmp_path, *TRANSPORTS) as (served, _):

        async def call(name: str) -> dict[str, Any]:
            return await served.call(name)

        names = [f"{transport}__{kind}" for transport in TRANSPORTS for kind in ("silent", "to_nobody")]
        for name, result in (await each(served, names, call)).items():
            assert result["isError"] is True, name
            assert result["structuredContent"]["error"]["code"] == "TIMEOUT", (name, result)


async def test_the_limit_for_the_whole_call_ends_all_progress(tmp_path: Path) -> None:
    async with workers(tmp_path, "memory", "http", call_timeout_total=3.5) as (served, _):

        async def work(name: str) -> dict[str, Any]:
            return await served.call(f"{name}__work")

        for name, result in (await each(served, ("memory", "http"), work)).items():
            error = result["structuredContent"]["error"]
            assert error["code"] == "TIMEOUT", name
            assert "within 3.5 s" in error["message"]
            assert f"servers.{name}.call_timeout_total" in error["hint"]


async def test_progress_reaches_the_client_only_where_it_asked(tmp_path: Path) -> None:
    async with workers(tmp_path, "memory", "http") as (served, _), served.handshake() as session:
        for name in ("memory", "http"):
            params = {"name": f"{name}__work", "arguments": {}}

            def answer(meta: dict[str, Any], params: dict[str, Any] = params) -> list[dict[str, Any]]:
                text = session.send("tools/call", {**params, **meta}).text
                lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
                messages = [json.loads(line) for line in lines or [text] if line]
                return [each["params"] for each in messages if each.get("method") == "notifications/progress"]

            told = await anyio.to_thread.run_sync(answer, {"_meta": {"progressToken": "mine"}})
            assert [each["progress"] for each in told] == [float(step + 1) for step in range(STEPS)], name
            assert {each["progressToken"] for each in told} == {"mine"}
            assert await anyio.to_thread.run_sync(answer, {}) == []


async def test_steps_of_runs_outlive_the_timeout_within_the_budget_of_the_run(tmp_path: Path) -> None:
    async with workers(tmp_path, "memory", "http") as (served, _):
        calls = [{"tool": f"{name}__work", "arguments": {}} for name in ("memory", "http")]
        batch = await served.call("call_batch", {"calls": calls})
        assert json.dumps(batch["structuredContent"]).count("done") == 2, batch
        steps = [{"id": "only", "tool": "http__work", "arguments": {}}]
        done = await served.call("execute_workflow", {"steps": steps})
        assert "done" in json.dumps(done["structuredContent"]), done
        cut = await served.call("execute_workflow", {"steps": steps, "budget": {"max_seconds": 1}})
        assert "max_seconds" in json.dumps(cut["structuredContent"]), cut
        late = await served.call("execute_workflow", {"steps": [{**steps[0], "timeout": 0.5}]})
        assert "timeout of 0.5 s" in json.dumps(late["structuredContent"]), late
