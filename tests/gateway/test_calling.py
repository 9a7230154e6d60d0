"""Calls: what reaches the upstream, what comes back, and what every failure is told as."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import mcp_types
import pytest
from mcp.client.client import Client

from pml_gateway.config.settings import Settings
from pml_gateway.exposure.meta_tool import MetaTool, MetaTools
from pml_gateway.gateway.calling import Caller
from pml_gateway.gateway.gateway import Gateway, open_gateway
from pml_gateway.gateway.request import CallOptions, RequestScope
from pml_gateway.meta.meta_tools import ALL_META_TOOLS
from tests.support.memory import MemoryStreams, paths_in, settings_for
from tests.support.raw import post_modern
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import serving

pytestmark = pytest.mark.anyio

SERVER = Path(__file__).parents[1] / "support" / "scripted_server.py"
NUMBER = {"count": {"type": "integer", "minimum": 1}, "label": {"type": "string"}}


def counting(**extra: Any) -> ScriptedServer:
    schema = {"type": "object", "properties": NUMBER, "required": ["count"], **extra}
    return ScriptedServer([{"name": "count", "description": "Count things.", "inputSchema": schema}])


async def test_arguments_reach_the_upstream_unchanged_on_every_path(tmp_path: Path) -> None:
    upstream = counting(additionalProperties=True)
    given = {"count": 3, "label": "ü ", "extra": {"deep": [None, 1.0, True, {}]}}
    async with serving(tmp_path, {"up": upstream}) as served:
        await served.call("up__count", given)
        await served.call("call_tool", {"name": "up:count", "arguments": given})
        await served.call("call", {"operation": "count", "input": json.dumps(given)})
        async with served.handshake() as session:
            await anyio.to_thread.run_sync(
                lambda: session.result("tools/call", {"name": "mcp__up__count", "arguments": given})
            )
    assert [call["arguments"] for call in upstream.calls] == [given] * 4
    assert {call["name"] for call in upstream.calls} == {"count"}


async def test_metadata_travels_but_what_belongs_to_one_hop_does_not(tmp_path: Path) -> None:
    upstream = counting()
    async with serving(tmp_path, {"up": upstream}) as served:
        meta = {"com.example/trace": "abc", "pml-gateway/query": "secret intent"}
        await served.result("tools/call", {"name": "up__count", "arguments": {"count": 1}, "_meta": meta})
    [call] = upstream.calls
    assert call["meta"].get("com.example/trace") == "abc"
    assert "pml-gateway/query" not in call["meta"]
    assert not any(key.startswith("io.modelcontextprotocol/clientInfo") for key in call["meta"])


@pytest.mark.parametrize(
    ("arguments", "path"),
    [({}, "/"), ({"count": "three"}, "/count"), ({"count": 0}, "/count"), ({"count": 1, "label": 5}, "/label")],
)
async def test_call_tool_names_each_wrong_argument_and_sends_nothing(
    tmp_path: Path, arguments: dict[str, Any], path: str
) -> None:
    upstream = counting()
    async with serving(tmp_path, {"up": upstream}) as served:
        result = await served.call("call_tool", {"name": "up__count", "arguments": arguments})
    error = result["structuredContent"]["error"]
    assert result["isError"] is True
    assert (error["code"], error["retryable"]) == ("INVALID_INPUT", False)
    assert path in error["message"]
    assert "up__count(count: int, label?: str)" in error["hint"]
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    assert upstream.calls == []


async def test_a_results_every_content_kind_passes_unchanged(tmp_path: Path) -> None:
    result = {
        "content": [
            {"type": "text", "text": "t", "annotations": {"audience": ["user"], "priority": 0.5}},
            {"type": "image", "data": "aGk=", "mimeType": "image/png"},
            {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
            {"type": "resource", "resource": {"uri": "file:///x", "text": "x", "mimeType": "text/plain"}},
            {"type": "resource_link", "uri": "file:///y", "name": "y"},
        ],
        "structuredContent": {"n": None, "list": [1, 2.5]},
        "isError": True,
        "_meta": {"com.example/k": "v"},
    }

    async def answer(_ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        return result

    async with serving(tmp_path, {"up": ScriptedServer([tool("t")], answer)}) as served:
        for name, arguments in (("up__t", {}), ("call_tool", {"name": "up__t"})):
            received = await served.call(name, arguments)
            assert {key: received[key] for key in ("content", "structuredContent", "isError")} == {
                key: result[key] for key in ("content", "structuredContent", "isError")
            }
            assert received["_meta"]["com.example/k"] == "v"


async def test_progress_of_the_upstream_reaches_the_caller_direct_and_through_call_tool(tmp_path: Path) -> None:
    async def report(ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        await ctx.session.report_progress(1, 2, "half")
        return text_result("done")

    async with serving(tmp_path, {"up": ScriptedServer([tool("slow")], report)}) as served:
        for mode in ("legacy", "auto"):
            async with Client(served.url, mode=mode) as client:
                for name, arguments in (("up__slow", {}), ("call_tool", {"name": "up__slow"})):
                    seen: list[tuple[float, float | None, str | None]] = []

                    async def note(progress: float, total: float | None, message: str | None) -> None:
                        seen.append((progress, total, message))  # noqa: B023

                    await client.call_tool(name, arguments, progress_callback=note)
                    assert seen == [(1, 2, "half")], (mode, name)


async def test_cancelling_a_request_cancels_it_upstream(tmp_path: Path) -> None:
    cancelled, started = anyio.Event(), anyio.Event()

    async def wait(_ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()
        raise AssertionError

    async with serving(tmp_path, {"up": ScriptedServer([tool("wait")], wait)}) as served:
        for mode in ("legacy", "auto"):
            async with Client(served.url, mode=mode) as client, anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "up__wait", {})
                with anyio.fail_after(30):
                    await started.wait()
                tasks.cancel_scope.cancel()
            with anyio.fail_after(30):
                await cancelled.wait()
            cancelled, started = anyio.Event(), anyio.Event()


@pytest.mark.parametrize("hints", [{}, {"idempotentHint": True}, {"readOnlyHint": True}])
async def test_a_call_ends_at_its_deadline_and_says_which_setting_it_was(
    tmp_path: Path, hints: dict[str, bool]
) -> None:
    async def hang(_ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        await anyio.sleep_forever()
        raise AssertionError

    upstreams = {"up": ScriptedServer([tool("hang", annotations=hints)], hang)}
    settings = settings_for(upstreams, servers={"up": {"command": "x", "call_timeout": 1}})
    async with serving(tmp_path, upstreams, settings) as served:
        error = (await served.call("up__hang"))["structuredContent"]["error"]
    details = error["details"]
    assert (error["code"], details["timeout_seconds"], details["executed"]) == ("TIMEOUT", 1, "unknown")
    # What may have been done must not be done twice.
    assert error["retryable"] is bool(hints)
    assert "servers.up.call_timeout" in error["hint"]


async def test_a_full_queue_answers_busy_and_sends_nothing(tmp_path: Path) -> None:
    release, started = anyio.Event(), anyio.Event()

    async def wait(_ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        started.set()
        await release.wait()
        return text_result("done")

    upstream = ScriptedServer([tool("wait")], wait)
    entry = {"command": "x", "max_concurrent": 1, "max_queue": 0}
    settings = settings_for({"up": upstream}, servers={"up": entry})
    async with serving(tmp_path, {"up": upstream}, settings) as served, anyio.create_task_group() as tasks:
        tasks.start_soon(served.call, "up__wait")
        with anyio.fail_after(30):
            await started.wait()
        error = (await served.call("up__wait"))["structuredContent"]["error"]
        release.set()
    assert (error["code"], error["retryable"]) == ("BUSY", True)
    assert len(upstream.calls) == 1


async def test_a_jsonrpc_error_of_the_upstream_is_passed_on_as_it_was_and_call_tool_wraps_it(tmp_path: Path) -> None:
    async def fail(_ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        raise mcp_types_error("quota used up: 100 of 100", {"limit": 100})

    async with serving(tmp_path, {"up": ScriptedServer([tool("t")], fail)}) as served:
        direct = (await served.message("tools/call", {"name": "up__t"}))["error"]
        error = (await served.call("call_tool", {"name": "up__t"}))["structuredContent"]["error"]
    assert direct == {
        "code": mcp_types.INVALID_REQUEST,
        "message": "quota used up: 100 of 100",
        "data": {"limit": 100},
    }
    assert error["code"] == "UPSTREAM_ERROR"
    assert "quota used up: 100 of 100" in error["message"]
    assert error["details"]["data"] == {"limit": 100}
    assert error["details"]["jsonrpc_code"] == mcp_types.INVALID_REQUEST


def mcp_types_error(message: str, data: Any) -> Exception:
    from mcp.shared.exceptions import MCPError

    return MCPError(code=mcp_types.INVALID_REQUEST, message=message, data=data)


async def test_a_result_outside_the_protocol_is_the_upstreams_error_not_an_internal_one(tmp_path: Path) -> None:
    upstream = ScriptedServer([tool("t")])

    async def raw_call(ctx: Any, call_next: Any) -> Any:
        return {"resultType": "postponed"} if ctx.method == "tools/call" else await call_next(ctx)

    original = upstream.server

    def broken() -> Any:
        server = original()
        server.middleware.append(raw_call)
        return server

    upstream.server = broken  # type: ignore[method-assign]
    async with serving(tmp_path, {"up": upstream}) as served:
        error = (await served.call("up__t"))["structuredContent"]["error"]
    assert error["code"] == "UPSTREAM_ERROR"
    assert "postponed" in error["message"]


async def test_a_task_only_tool_is_called_like_any_other(tmp_path: Path) -> None:
    upstream = ScriptedServer([tool("report", "Write a long report.", execution={"taskSupport": "required"})])
    async with serving(tmp_path, {"up": upstream}) as served:
        await served.call("up__report")
    # A server that declares no tasks gets no other request than for any tool.
    assert [each["name"] for each in upstream.calls] == ["report"]


async def test_array_results_reach_2026_clients_and_older_ones_get_the_text(tmp_path: Path) -> None:
    upstream = ScriptedServer([tool("t")])

    async def raw_call(ctx: Any, call_next: Any) -> Any:
        if ctx.method != "tools/call":
            return await call_next(ctx)
        return {"content": [{"type": "text", "text": "[1]"}], "structuredContent": [1]}

    original = upstream.server

    def with_array() -> Any:
        server = original()
        server.middleware.append(raw_call)
        return server

    upstream.server = with_array  # type: ignore[method-assign]
    async with serving(tmp_path, {"up": upstream}) as served, served.handshake() as session:
        assert (await served.call("up__t"))["structuredContent"] == [1]
        old = await anyio.to_thread.run_sync(lambda: session.result("tools/call", {"name": "up__t", "arguments": {}}))
    assert old["content"] == [{"type": "text", "text": "[1]"}]
    assert "structuredContent" not in old


async def test_header_parameters_are_checked_against_the_visible_tools_schema(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    upstream = ScriptedServer([{"name": "t", "inputSchema": schema}])
    async with serving(tmp_path, {"up": upstream}) as served:

        def status(header: str) -> int:
            return post_modern(
                served.url,
                "tools/call",
                {"name": "up__t", "arguments": {"region": "eu"}},
                headers={"mcp-param-region": header},
            ).status_code

        assert await anyio.to_thread.run_sync(status, "eu") == 200
        assert await anyio.to_thread.run_sync(status, "us") == 400


async def test_a_name_no_longer_there_gets_the_closest_visible_ones(tmp_path: Path) -> None:
    async with serving(tmp_path, {"up": ScriptedServer([tool("read_file"), tool("write_file")])}) as served:
        error = (await served.call("up__raed_file"))["structuredContent"]["error"]
    assert error["code"] == "NOT_FOUND"
    assert error["details"]["closest"][0] == "up__read_file"


async def test_a_fault_of_the_gateway_ends_one_call_and_quotes_nothing(tmp_path: Path) -> None:
    async def broken(*_: object) -> dict[str, Any]:
        raise IndexError("s3cret of another server")

    settings = settings_for({"up": counting()})
    meta_tools = MetaTools(MetaTool("search_tools", lambda _: {}, broken))
    async with open_gateway(
        settings, paths_in(tmp_path), identity="x", meta_tools=meta_tools, connect=False
    ) as gateway:
        caller = Caller(gateway)
        result = await caller.call(RequestScope(), "search_tools", {"query": "x"}, CallOptions())
    error = result["structuredContent"]["error"]
    assert (error["code"], error["details"]["executed"]) == ("INTERNAL", "unknown")
    assert "s3cret" not in json.dumps(result)


async def call(gateway: Gateway, name: str, arguments: dict[str, Any], results: list[dict[str, Any]]) -> None:
    results.append(await Caller(gateway).call(RequestScope(), name, arguments, CallOptions()))


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "up__echo", "arguments": '{"message": "\\ud83d"}'},
        {"name": "up__echo", "arguments": {"message": "\ud83d"}},
        {"name": "up__echo", "arguments": "[" * 100_000},
    ],
)
@pytest.mark.slow
async def test_text_that_no_message_can_carry_is_refused_and_ends_nobody_elses_call(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    settings = Settings.model_validate({"servers": {"up": {"command": sys.executable, "args": [str(SERVER)]}}})
    started = tmp_path / "started"
    slow: list[dict[str, Any]] = []
    bad: list[dict[str, Any]] = []
    async with open_gateway(settings, paths_in(tmp_path), identity="t", meta_tools=ALL_META_TOOLS) as gateway:
        await gateway.refresh(20)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, gateway, "up__slow", {"seconds": 1, "started": str(started)}, slow)
            await call(gateway, "call_tool", arguments, bad)
    assert bad[0]["structuredContent"]["error"]["code"] == "INVALID_INPUT"
    assert slow[0]["content"][0]["text"] == "slept"


async def test_queued_calls_of_a_server_that_is_configured_anew_are_made_and_a_waiting_one_fails_at_once(
    tmp_path: Path,
) -> None:
    started, release = anyio.Event(), anyio.Event()

    async def wait(_ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        started.set()
        await release.wait()
        return text_result("done")

    upstream = ScriptedServer([tool("t")], wait)
    settings = settings_for({"up": upstream}, upstreams={"max_concurrent": 1})
    edited = settings_for({"up": upstream}, upstreams={"max_concurrent": 1, "refresh_interval": 30})
    results: list[dict[str, Any]] = []
    streams = MemoryStreams({"up": upstream})
    async with open_gateway(settings, paths_in(tmp_path), identity="t", open_streams=streams) as gateway:
        await gateway.refresh(30)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(call, gateway, "up__t", {}, results)
            with anyio.fail_after(30):
                await started.wait()
            await gateway.updates.apply_settings(edited)
            release.set()
    assert [result["content"][0]["text"] for result in results] == ["done"] * 3
    upstream.hang = True
    async with open_gateway(edited, paths_in(tmp_path), identity="t", open_streams=streams, connect=False) as gateway:
        waiting: list[dict[str, Any]] = []
        opened = upstream.opened
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call, gateway, "up__t", {}, waiting)
                while upstream.opened == opened:
                    await anyio.lowlevel.checkpoint()
                await gateway.updates.apply_settings(edited.model_copy(update={"servers": {}}))
    assert waiting[0]["structuredContent"]["error"]["code"] == "UPSTREAM_UNAVAILABLE"


async def test_a_tool_of_a_server_that_has_not_answered_yet_is_unavailable_rather_than_unknown(tmp_path: Path) -> None:
    upstreams = {"ok": ScriptedServer([tool("t")]), "late": ScriptedServer(hang=True)}
    async with serving(tmp_path, upstreams) as served:
        late = (await served.call("late__anything"))["structuredContent"]["error"]
        assert (late["code"], late["retryable"]) == ("UPSTREAM_UNAVAILABLE", True)
        unknown = (await served.call("nobody__anything"))["structuredContent"]["error"]
        assert unknown["code"] == "NOT_FOUND"
