"""The life of a connection: it cannot start, comes up late, crashes, is forgotten, lists anew, and is used again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp.client.client import Client
from starlette.responses import Response

from pml_gateway.config.settings import Settings
from pml_gateway.errors import ErrorCode, UpstreamUnusableError
from pml_gateway.gateway.gateway import open_gateway
from pml_gateway.mcp.sdk import live_sessions
from pml_gateway.upstreams.faults import FIRST_BACKOFF
from tests.gateway.test_calling import call
from tests.mcp.test_transport import ask, gateway_to, region_server
from tests.support.listening import listening
from tests.support.memory import MemoryStreams, paths_in, settings_for
from tests.support.raw_http import RawRequest, raw_server, response, result
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.serving import serving
from tests.support.waiting import swapped
from tests.upstreams.test_breaker import error_of

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"command": "no-such-command-at-all"}, "cannot be started"),
        ({"command": "sh", "cwd": "/no/such/folder"}, "does not exist"),
        ({"command": "sh", "env": {"A": "${env:PML_TEST_MISSING}"}}, "PML_TEST_MISSING is not set"),
        ({"url": "http://127.0.0.1:1/mcp", "headers": {"A": "${env:PML_TEST_MISSING}"}}, "PML_TEST_MISSING is not set"),
    ],
)
async def test_what_only_the_operator_can_put_right_is_not_worth_trying_again(
    tmp_path: Path, entry: dict[str, Any], words: str
) -> None:
    settings = Settings.model_validate({"servers": {"up": entry}})
    async with open_gateway(settings, paths_in(tmp_path), identity="test") as gateway:
        upstream = gateway.pool.upstreams["up"]
        with anyio.fail_after(30):
            await upstream.connector.settled.wait()
        # The second is refused without an attempt, for the same reason.
        for _ in range(2):
            with pytest.raises(UpstreamUnusableError, match=words) as caught:
                await upstream.request("tools/call", {"name": "t"}, timeout=20)
            assert (caught.value.code, caught.value.retryable) == (ErrorCode.UPSTREAM_UNAVAILABLE, False)
            assert caught.value.details["executed"] == "no"
            assert caught.value.hint


async def test_a_hung_upstream_comes_back_without_a_restart(tmp_path: Path) -> None:
    late = ScriptedServer([tool("late")], hang=True)
    upstreams = {"late": late, "ok": ScriptedServer([tool("ok")])}
    settings = settings_for(upstreams, upstreams={"connect_timeout": 0.3})
    async with serving(tmp_path, upstreams, settings) as served:
        late.hang = False
        await swapped(served.gateway, lambda: served.gateway.state.catalog.by_name("late__late") is not None)
        assert "late__late" in await served.names("/full_proxy")
        assert (await served.call("late__late"))["content"][0]["text"].startswith("late")


async def test_a_crash_during_a_call_says_that_its_execution_is_unknown_and_the_next_call_works(tmp_path: Path) -> None:
    started = anyio.Event()

    async def once(_ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        if call["arguments"].get("crash"):
            started.set()
            await anyio.sleep_forever()
        return text_result("alive")

    upstream = ScriptedServer([tool("t")], once)
    async with serving(tmp_path, {"up": upstream}) as served:
        results: list[dict[str, Any]] = []

        async def crash() -> None:
            results.append(await served.call("up__t", {"crash": True}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(crash)
            with anyio.fail_after(30):
                await started.wait()
            upstream.kill()
        error = results[0]["structuredContent"]["error"]
        assert error["code"] == "UPSTREAM_UNAVAILABLE"
        assert error["details"]["executed"] == "unknown"
        assert (await served.call("up__t"))["content"][0]["text"] == "alive"
        assert upstream.opened == 2


async def test_list_changed_upstream_is_coalesced_and_reaches_clients_whose_list_changed(tmp_path: Path) -> None:
    upstream = ScriptedServer([tool("one")])
    async with serving(tmp_path, {"up": upstream}, gateway={"tools_exposure": "full_proxy"}) as served:
        told: list[str] = []
        noticed = anyio.Event()

        async def on_message(message: Any) -> None:
            told.append(type(message).__name__)
            noticed.set()

        async with (
            Client(served.url, mode="legacy", message_handler=on_message) as full,
            Client(f"{served.url}/meta_only", mode="legacy", message_handler=_refuse) as meta,
            Client(served.url) as modern,
            modern.listen(tools_list_changed=True) as subscription,
        ):
            await full.list_tools()
            await meta.list_tools()
            before = upstream.lists
            upstream.tools.append(tool("two"))
            for _ in range(20):
                await upstream.announce_change()
            with anyio.fail_after(30):
                await noticed.wait()
                event = await subscription.__anext__()
            assert type(event).__name__ == "ToolsListChanged"
            assert [each.name for each in (await full.list_tools()).tools] == ["up__one", "up__two"]
            assert told == ["ToolListChangedNotification"]
            assert upstream.lists - before <= 3, "twenty announcements cost at most a few listings"


async def _refuse(message: Any) -> None:
    raise AssertionError(f"this client's list did not change, yet it got {message}")


async def test_pagination_is_followed_and_a_repeated_cursor_ends_the_list(tmp_path: Path) -> None:
    paged = ScriptedServer([tool(f"t{number}") for number in range(25)], page_size=10)
    async with serving(tmp_path / "a", {"up": paged}) as served:
        assert len(await served.names("/full_proxy")) == 25
    looping = ScriptedServer([tool("t")] * 3, page_size=0)
    async with serving(tmp_path / "b", {"up": looping, "ok": ScriptedServer([tool("t")])}) as served:
        assert await served.names("/full_proxy") == ["ok__t"]
        listed = served.gateway.pool.upstreams["up"].last_listed
        assert listed is not None
        assert [fault for fault in listed.faults if "repeats the cursor" in fault]


async def test_a_session_the_server_forgot_is_opened_again_and_the_call_made_once(tmp_path: Path) -> None:
    seen: list[dict[str, str]] = []
    server = region_server(seen).server()

    class HandshakeOnly:
        """Answers as servers before 2026 do: an unknown protocol version is a bad request."""

        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            versions = [value for name, value in scope.get("headers", ()) if name == b"mcp-protocol-version"]
            if versions == [b"2026-07-28"]:
                await Response("unsupported", 400)(scope, receive, send)
                return
            await self.app(scope, receive, send)

    app = server.streamable_http_app()
    async with (
        listening(HandshakeOnly(app)) as port,
        gateway_to(tmp_path, {"url": f"http://127.0.0.1:{port}/mcp"}) as (gateway, caller),
    ):
        await ask(caller)
        listed = gateway.pool.upstreams["remote"].last_listed
        assert listed is not None
        assert listed.era == "handshake"
        sessions = live_sessions(server.session_manager)
        for transport in list(sessions.values()):
            await transport.terminate()
        sessions.clear()
        assert (await ask(caller))["content"][0]["text"] == "eu"
    assert len(seen) == 2


async def test_a_listing_that_fails_leaves_the_running_call_and_the_tools_alone(tmp_path: Path) -> None:
    started, release = anyio.Event(), anyio.Event()

    async def wait(_ctx: Any, _call: dict[str, Any]) -> dict[str, Any]:
        started.set()
        await release.wait()
        return text_result("done")

    upstream = ScriptedServer([tool("t")], wait)
    results: list[dict[str, Any]] = []
    streams = MemoryStreams({"up": upstream})
    settings = settings_for({"up": upstream})
    async with open_gateway(settings, paths_in(tmp_path), identity="t", open_streams=streams) as gateway:
        await gateway.refresh(30)
        lists = upstream.lists
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, gateway, "up__t", {}, results)
            with anyio.fail_after(30):
                await started.wait()
            upstream.page_size = 0  # every page leads to itself
            gateway.pool.request_all()
            with anyio.fail_after(30):
                while upstream.lists < lists + 2:
                    await anyio.lowlevel.checkpoint()
            release.set()
        assert results[0]["content"][0]["text"] == "done"
        assert gateway.state.catalog.by_name("up__t") is not None
    assert upstream.opened == 1


async def test_an_unreachable_upstream_says_when_to_try_again(tmp_path: Path) -> None:
    upstreams = {"up": ScriptedServer([tool("t")])}
    async with serving(tmp_path, upstreams):
        pass
    async with serving(tmp_path, {"up": ScriptedServer(refuse=True)}) as served:
        await served.call("up__t")
        details = error_of(await served.call("up__t"))["details"]
        assert details["executed"] == "no"
        assert 0 < details["retry_after_seconds"] < 100


@pytest.mark.parametrize("at", ["initialize", "tools/list"])
@pytest.mark.parametrize(
    "body",
    [b"\xff\xfe{", b"<html>starting</html>", b"", b'{"jsonrpc":"2.0"}', b"[]", b'{"result":{}}'],
    ids=["no-characters", "page", "nothing", "no-result", "no-message", "no-list"],
)
async def test_answers_that_cannot_be_read_while_connecting_keep_a_server_away_for_seconds(
    tmp_path: Path, at: str, body: bytes
) -> None:
    """As from a server or proxy that is just starting: the second attempt comes soon, and the third not much later."""
    is_starting = True

    async def misbehave(request: RawRequest) -> None:
        message = request.message
        if is_starting:
            await request.send(response(body))
        elif at == "initialize":
            info = {"name": "raw", "version": "1"}
            version = message["params"]["protocolVersion"]
            value = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
            await request.send(response(result(message, value)))
        else:
            await request.send(response(result(message, {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})))

    async with raw_server(misbehave, at) as server:
        settings = Settings.model_validate({"servers": {"up": {"url": server.url}}})
        async with open_gateway(settings, paths_in(tmp_path), identity="t") as gateway:
            upstream = gateway.pool.upstreams["up"]
            for seconds in (FIRST_BACKOFF, FIRST_BACKOFF * 2):
                with anyio.fail_after(30):
                    await gateway.refresh(30)
                assert upstream.connector.last_error is not None
                assert upstream.breaker.retry_after <= seconds * 1.2
            is_starting = False
            with anyio.fail_after(30):
                await gateway.refresh(30)
            assert gateway.state.catalog.by_name("up__t") is not None
