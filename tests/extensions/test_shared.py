"""Extensions through the gateway that all clients of a machine share."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.mcp.sdk import request_channel
from tests.support.machine import open_machine
from tests.support.scripted_server import ScriptedServer, text_result, tool

pytestmark = pytest.mark.anyio

X, UI = "org.example/x", "io.modelcontextprotocol/ui"
FULL: dict[str, Any] = {"gateway": {"tools_exposure": "full_proxy"}}


def told_by(**options: Any) -> ScriptedServer:
    """A server that answers with the extensions that its client declared, and asks and tells by one of them."""

    async def handler(ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        given = ctx.session.client_capabilities
        if call["name"] == "ask":
            channel = request_channel(ctx)
            await channel.notify("notifications/x/begun", {"of": call["arguments"].get("text", "")})
            answer = await channel.send_raw_request("x/confirm", {"deep": {"er": [1]}}, {})
            return {**text_result("asked"), "structuredContent": answer}
        return {**text_result("told"), "structuredContent": dict(given.extensions or {}) if given else {}}

    return ScriptedServer([tool("told"), tool("ask")], handler, **options)


async def test_each_client_is_answered_as_one_of_its_extensions(tmp_path: Path) -> None:
    using, plain = told_by(declares={"extensions": {X: {}}}), told_by()
    async with open_machine(tmp_path, {"using": using, "plain": plain}, **FULL) as opened, AsyncExitStack() as stack:
        clients = {}
        for name, extensions in {"none": {}, "x": {X: {"a": 1}}, "other": {X: {"a": 2}}}.items():
            clients[name] = client = await stack.enter_async_context(opened.attached(name, introduced=False))
            await client.notice("attached")
            await client.introduce({"extensions": extensions} if extensions else {}, name)
            await client.tools()
        for _ in range(2):
            for name, extensions in {"none": {}, "x": {X: {"a": 1}}, "other": {X: {"a": 2}}}.items():
                called = await clients[name].request("tools/call", {"name": "using__told", "arguments": {}})
                assert called["structuredContent"] == extensions
                await clients[name].request("tools/call", {"name": "plain__told", "arguments": {}})
        # What has no extensions is shared by all of them.
        assert plain.opened <= 2


async def test_messages_of_an_extension_reach_the_client_of_the_call(tmp_path: Path) -> None:
    up = told_by(declares={"extensions": {X: {}}})
    async with (
        open_machine(tmp_path, {"up": up}, **FULL) as opened,
        opened.attached("plain", introduced=False) as plain,
        opened.attached("x", introduced=False) as client,
    ):
        await plain.notice("attached")
        await plain.introduce({}, "plain")
        await client.notice("attached")
        await client.introduce({"extensions": {X: {}}}, "x")
        call = await client.begin("tools/call", {"name": "up__ask", "arguments": {"text": "one"}})
        notified = await client.next_told("notifications/x/begun")
        asked = await client.next_told("x/confirm")
        await client.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"sure": {"er": 2}}})
        answer = await client.answer(call)
        refused = await plain.request("tools/call", {"name": "up__ask", "arguments": {"text": "two"}})
    assert notified["params"]["of"] == "one"
    assert asked["params"]["deep"] == {"er": [1]}
    assert answer["structuredContent"] == {"sure": {"er": 2}}
    assert "structuredContent" not in refused
    assert not plain.told
