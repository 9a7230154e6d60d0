"""Results with faults of form: what they carry reaches every client, in every era, however the tool is called."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from mcp_types.methods import SERVER_RESULTS, validate_server_result

from pml_gateway.config.settings import Settings
from pml_gateway.mcp.transport import open_streams
from pml_gateway.results.repair import repaired
from tests.support import parrot
from tests.support.listening import listening
from tests.support.serving import Serving, serving

pytestmark = [pytest.mark.anyio, pytest.mark.field("B3")]

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SAID = {"type": "text", "text": "done"}
SHIP = {"ship": "x"}
OF_SHIP = {"type": "text", "text": '{"ship":"x"}'}
OF_LIST = {"type": "text", "text": "[1,2]"}
IMAGE = {"type": "image", "data": PIXEL, "mimeType": "image/png"}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def link(**more: Any) -> dict[str, Any]:
    return {"type": "resource_link", "uri": "file:///a.txt", "name": "a", **more}


CASES: dict[str, tuple[Any, list[Any], Any]] = {
    "structured content alone": ({"structuredContent": SHIP}, [OF_SHIP], SHIP),
    "nothing": ({}, [], None),
    "the shape before blocks": ({"toolResult": "done"}, [SAID], None),
    "an object before blocks": ({"toolResult": SHIP}, [OF_SHIP], None),
    "null content": ({"content": None, "structuredContent": SHIP}, [OF_SHIP], SHIP),
    "null content alone": ({"content": None}, [], None),
    "content as a string": ({"content": "done"}, [SAID], None),
    "content as one block": ({"content": SAID}, [SAID], None),
    "content as plain data": ({"content": SHIP}, [OF_SHIP], None),
    "content as a number": ({"content": 7}, [text("7")], None),
    "strings for blocks": ({"content": ["done", 7, None]}, [SAID, text("7"), text("null")], None),
    "a number for text": ({"content": [{"type": "text", "text": 7}]}, [text("7")], None),
    "an object for text": ({"content": [{"type": "text", "text": SHIP}]}, [OF_SHIP], None),
    "null for text": ({"content": [{"type": "text", "text": None}, SAID]}, [text(""), SAID], None),
    "text elsewhere": ({"content": [{"type": "text", "value": "v"}]}, [text('{"type":"text","value":"v"}')], None),
    "a block without a type": ({"content": [{"text": "done"}]}, [SAID], None),
    "an unknown block": (
        {"content": [SAID, {"type": "chart", "points": [1]}, IMAGE]},
        [SAID, text('{"type":"chart","points":[1]}'), IMAGE],
        None,
    ),
    "an unknown block of bytes": (
        {"content": [{"type": "video", "data": "A" * 4000}]},
        [text('{"type":"video","data":"<4,000 characters of base64>"}')],
        None,
    ),
    "an image without its type": ({"content": [{"type": "image", "data": PIXEL}]}, [IMAGE], None),
    "an image with a null type": ({"content": [{**IMAGE, "mimeType": None}]}, [IMAGE], None),
    "an image as a data URL": (
        {"content": [{"type": "image", "data": f"data:image/png;base64,{PIXEL}"}]},
        [IMAGE],
        None,
    ),
    "an image that is none": (
        {"content": [{"type": "image", "data": "not an image!", "mimeType": "image/png"}, SAID]},
        [text('{"type":"image","data":"not an image!","mimeType":"image/png"}'), SAID],
        None,
    ),
    "an image without data": ({"content": [{"type": "image"}, SAID]}, [text('{"type":"image"}'), SAID], None),
    "null annotations": ({"content": [{**SAID, "annotations": None}]}, [SAID], None),
    "a faulty annotation": (
        {"content": [{**SAID, "annotations": {"priority": 7, "audience": ["user"], "lastModified": "today"}}]},
        [{**SAID, "annotations": {"audience": ["user"]}}],
        None,
    ),
    "null metadata of a block": ({"content": [{**SAID, "_meta": None}]}, [SAID], None),
    "a link without a name": (
        {"content": [{"type": "resource_link", "uri": "file:///a.txt"}]},
        [{"type": "resource_link", "uri": "file:///a.txt", "name": "file:///a.txt"}],
        None,
    ),
    "nulls in a link": (
        {"content": [link(title=None, description=None, mimeType=None, size=None, icons=None)]},
        [link()],
        None,
    ),
    "a resource without its URI": ({"content": [{"type": "resource", "resource": {"text": "done"}}]}, [SAID], None),
    "a resource of bytes without its URI": (
        {"content": [{"type": "resource", "resource": {"blob": PIXEL, "mimeType": "image/png"}}]},
        [IMAGE],
        None,
    ),
    "a resource one level too high": (
        {"content": [{"type": "resource", "uri": "file:///a", "text": "done"}]},
        [{"type": "resource", "resource": {"uri": "file:///a", "text": "done"}}],
        None,
    ),
    "a resource with nulls": (
        {"content": [{"type": "resource", "resource": {"uri": "a:b", "text": "", "blob": None, "mimeType": None}}]},
        [{"type": "resource", "resource": {"uri": "a:b", "text": ""}}],
        None,
    ),
    "null metadata": ({"_meta": None, "content": [SAID]}, [SAID], None),
    "a list for metadata": ({"_meta": [], "content": [SAID]}, [SAID], None),
    "null structured content": ({"content": [SAID], "structuredContent": None}, [SAID], None),
    "null for isError": ({"content": [SAID], "isError": None}, [SAID], None),
    "null for the result type": ({"content": [SAID], "resultType": None}, [SAID], None),
}
"""By their fault: the result that a server sends, and the blocks and structured content that clients get."""

UNSTRUCTURED: dict[str, tuple[Any, list[Any]]] = {
    "a list and no blocks": ({"content": [], "structuredContent": [1, 2]}, [OF_LIST]),
    "a list alone": ({"structuredContent": [1, 2]}, [OF_LIST]),
    "a list beside its text": ({"content": [text("[1, 2]")], "structuredContent": [1, 2]}, [text("[1, 2]")]),
    "a list beside its items": (
        {"content": [text("1"), text("2")], "structuredContent": [1, 2]},
        [text("1"), text("2")],
    ),
    "a list beside other text": ({"content": [text("two")], "structuredContent": [1, 2]}, [text("two"), OF_LIST]),
    "a string": ({"content": [], "structuredContent": "done"}, [SAID]),
    "a string beside itself": ({"content": [SAID], "structuredContent": "done"}, [SAID]),
    "a number": ({"structuredContent": 0}, [text("0")]),
    "false": ({"content": [], "structuredContent": False}, [text("false")]),
}
"""Structured content that versions before 2026-07-28 have no place for."""


@asynccontextmanager
async def parrots(folder: Path, names: list[str], **sections: Any) -> AsyncIterator[Serving]:
    """A gateway in front of parrots: `sse`; `stdio`, `http` and `events`, with `_new` in the stateless era."""
    async with AsyncExitStack() as stack:
        servers: dict[str, Any] = {}
        for name in names:
            over, _, new = name.partition("_")
            if over == "stdio":
                arguments = [parrot.__file__, *(["--modern"] if new else [])]
                servers[name] = {"command": sys.executable, "args": arguments}
            elif over == "sse":
                port = await stack.enter_async_context(listening(parrot.sse_app()))
                servers[name] = {"url": f"http://127.0.0.1:{port}/sse", "type": "sse"}
            else:
                app = parrot.http_app(modern=bool(new), events=over == "events")
                servers[name] = {"url": f"http://127.0.0.1:{await stack.enter_async_context(listening(app))}/mcp"}
        settings = Settings.model_validate({"servers": servers, "naming": {"prefix": "always"}, **sections})
        served = await stack.enter_async_context(serving(folder, {}, settings, open_streams=open_streams))
        await served.gateway.refresh(30)
        yield served


def told(result: dict[str, Any]) -> tuple[Any, Any]:
    return result["content"], result.get("structuredContent")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stdio", "stdio_new", "http", "http_new", "events", "events_new"])
async def test_no_fault_of_form_costs_what_a_call_brought(tmp_path: Path, name: str) -> None:
    async with parrots(tmp_path, [name]) as served, served.handshake() as session:
        for fault, (said, blocks, structured) in CASES.items():
            arguments = {"result": said}
            assert told(await served.call(f"{name}__say", arguments)) == (blocks, structured), fault
            called = {"name": f"{name}__say", "arguments": arguments}
            assert told(await served.call("call_tool", called)) == (blocks, structured), fault
            old = await anyio.to_thread.run_sync(session.result, "tools/call", called)
            assert told(old) == (blocks, structured), fault
        for fault, (said, blocks) in UNSTRUCTURED.items():
            called = {"name": f"{name}__say", "arguments": {"result": said}}
            old = await anyio.to_thread.run_sync(session.result, "tools/call", called)
            assert told(old) == (blocks, None), fault
            new = await served.call(f"{name}__say", {"result": said})
            assert new["structuredContent"] == said["structuredContent"], fault
            assert new["content"] == said.get("content", new["content"]), fault


async def test_runs_of_several_calls_get_what_each_call_brought(tmp_path: Path) -> None:
    async with parrots(tmp_path, ["http"]) as served:
        said = [{"structuredContent": SHIP}, {"content": "done"}, {"toolResult": SHIP}, {"content": [IMAGE, {"x": 1}]}]
        calls = [{"tool": "http__say", "arguments": {"result": each}} for each in said]
        batch = await served.call("call_batch", {"calls": calls})
        steps = [
            {"id": "first", "tool": "http__say", "arguments": {"result": {"structuredContent": SHIP}}},
            {"id": "second", "tool": "http__say", "arguments": {"result": {"content": "$first.ship"}}},
        ]
        workflow = await served.call("execute_workflow", {"steps": steps})
    assert not batch["isError"], batch
    assert not workflow["isError"], workflow
    shown = json.dumps(batch["structuredContent"])
    for part in ('{"ship": "x"}', '"done"', "image/png"):
        assert part in shown
    assert '"x"' in json.dumps(workflow["structuredContent"])


@pytest.mark.parametrize(
    ("said", "failed"),
    [("true", True), ("false", False), ("False", False), (1, True), (0, False), ("boom", True), ([], False)],
)
async def test_an_error_mark_of_another_type_is_understood(said: Any, failed: bool) -> None:
    result = repaired({"content": [SAID], "isError": said}, "tools/call")
    assert result == {"content": [SAID], "isError": failed}


async def test_json_text_is_the_declared_output_that_a_server_forgot(tmp_path: Path) -> None:
    async with parrots(tmp_path, ["http"]) as served:
        result = await served.call("http__say_declared", {"result": {"content": [OF_SHIP]}})
        plain = await served.call("http__say_declared", {"result": {"content": [SAID]}})
    assert told(result) == ([OF_SHIP], SHIP)
    assert told(plain) == ([SAID], None)


PROMPTS: dict[str, tuple[Any, list[Any]]] = {
    "nothing": ({}, []),
    "null": ({"messages": None, "description": None, "_meta": None}, []),
    "a string": ({"messages": "done"}, [{"role": "user", "content": SAID}]),
    "one message": ({"messages": {"role": "assistant", "content": SAID}}, [{"role": "assistant", "content": SAID}]),
    "strings": ({"messages": ["done"]}, [{"role": "user", "content": SAID}]),
    "content as a string": ({"messages": [{"role": "user", "content": "done"}]}, [{"role": "user", "content": SAID}]),
    "several blocks": (
        {"messages": [{"role": "assistant", "content": [SAID, IMAGE]}]},
        [{"role": "assistant", "content": SAID}, {"role": "assistant", "content": IMAGE}],
    ),
    "another role": ({"messages": [{"role": "system", "content": SAID}]}, [{"role": "user", "content": SAID}]),
    "a role of a model": ({"messages": [{"role": "model", "content": SAID}]}, [{"role": "assistant", "content": SAID}]),
    "no role": ({"messages": [{"content": SAID}]}, [{"role": "user", "content": SAID}]),
    "an unknown block": (
        {"messages": [{"role": "user", "content": {"type": "chart"}}, {"role": "user", "content": SAID}]},
        [{"role": "user", "content": text('{"type":"chart"}')}, {"role": "user", "content": SAID}],
    ),
    "null annotations": (
        {"messages": [{"role": "user", "content": {**SAID, "annotations": None}}]},
        [{"role": "user", "content": SAID}],
    ),
}

RESOURCES: dict[str, tuple[Any, list[Any]]] = {
    "nothing": ({}, []),
    "null": ({"contents": None, "ttlMs": None, "cacheScope": "me"}, []),
    "a string": ({"contents": "done"}, [{"text": "done"}]),
    "one item": ({"contents": {"uri": "a:b", "text": "done"}}, [{"uri": "a:b", "text": "done"}]),
    "no URI": ({"contents": [{"text": "done", "mimeType": None}]}, [{"text": "done"}]),
    "text as an object": ({"contents": [{"uri": "a:b", "text": SHIP}]}, [{"uri": "a:b", "text": '{"ship":"x"}'}]),
    "neither text nor bytes": ({"contents": [{"uri": "a:b"}]}, [{"uri": "a:b", "text": ""}]),
    "something else": ({"contents": [{"uri": "a:b", "data": 1}]}, [{"uri": "a:b", "data": 1, "text": '{"data":1}'}]),
    "bytes that are none": (
        {"contents": [{"uri": "a:b", "blob": "not base64!"}]},
        [{"uri": "a:b", "text": "not base64!"}],
    ),
    "text beside null bytes": (
        {"contents": [{"uri": "a:b", "text": "t", "blob": None}]},
        [{"uri": "a:b", "text": "t"}],
    ),
    "bytes beside null text": (
        {"contents": [{"uri": "a:b", "text": None, "blob": PIXEL}]},
        [{"uri": "a:b", "blob": PIXEL}],
    ),
    "the key of tools": ({"content": [{"uri": "a:b", "text": "done"}]}, [{"uri": "a:b", "text": "done"}]),
}

COMPLETIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "nothing": ({}, {"values": []}),
    "null": ({"completion": None}, {"values": []}),
    "a list": ({"completion": ["a", 1]}, {"values": ["a", "1"]}),
    "one level too high": ({"values": ["a"]}, {"values": ["a"]}),
    "nulls": ({"completion": {"values": ["a"], "total": None, "hasMore": None}}, {"values": ["a"]}),
    "null values": ({"completion": {"values": None}}, {"values": []}),
    "too many": (
        {"completion": {"values": [str(number) for number in range(150)]}},
        {"values": [str(number) for number in range(100)], "total": 150, "hasMore": True},
    ),
}


@pytest.mark.parametrize("name", ["http", pytest.param("stdio_new", marks=pytest.mark.slow)])
async def test_prompts_resources_and_completions_keep_what_they_brought(tmp_path: Path, name: str) -> None:
    async with parrots(tmp_path, [name]) as served, served.handshake() as session:

        async def both(method: str, params: dict[str, Any]) -> list[dict[str, Any]]:
            old = await anyio.to_thread.run_sync(session.result, method, params)
            return [await served.result(method, params), old]

        for fault, (said, messages) in PROMPTS.items():
            for result in await both("prompts/get", {"name": "said", "arguments": {"result": json.dumps(said)}}):
                assert result["messages"] == messages, fault
        for fault, (said, contents) in RESOURCES.items():
            uri = parrot.resource_saying(said)
            for result in await both("resources/read", {"uri": uri}):
                assert result["contents"] == [{"uri": uri, **item} for item in contents], fault
        for fault, (said, completion) in COMPLETIONS.items():
            asked = {
                "ref": {"type": "ref/prompt", "name": "said"},
                "argument": {"name": "result", "value": json.dumps(said)},
            }
            for result in await both("completion/complete", asked):
                assert result["completion"] == completion, fault


_METHODS: dict[str, dict[str, Any]] = {
    "tools/call": CASES,
    "prompts/get": PROMPTS,
    "resources/read": RESOURCES,
    "completion/complete": COMPLETIONS,
}


@pytest.mark.parametrize("method", _METHODS)
def test_what_is_repaired_is_valid_and_stays_as_it_is(method: str) -> None:
    for fault, (said, *_) in _METHODS[method].items():
        result = repaired(said, method, "a:b")
        assert repaired(result, method, "a:b") is result, fault
        assert (method, "2025-11-25") in SERVER_RESULTS
        validate_server_result(method, "2025-11-25", result)
