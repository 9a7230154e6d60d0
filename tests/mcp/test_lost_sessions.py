"""Servers over HTTP that forget a session: the next request opens another one, whatever words the server has for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError

from pml_gateway.config.settings import Settings
from pml_gateway.gateway.calling import Caller
from pml_gateway.gateway.gateway import Gateway, open_gateway
from pml_gateway.gateway.request import CallOptions, RequestScope
from pml_gateway.working_directory import WorkingDirectory
from tests.support.forgetful_server import OURS, REFUSALS, ForgetfulServer, Refusal, error, forgetful
from tests.support.memory import paths_in
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.field("B2")]

PLAIN = REFUSALS["ts_example_400"]


@asynccontextmanager
async def gateway_to(
    folder: Path, server: ForgetfulServer, *, proxied: bool = False, **more: Any
) -> AsyncIterator[tuple[Gateway, Caller]]:
    """A gateway that has listed the server; `proxied`, calls take the SDK's way."""
    url = "http://forgetful.invalid/mcp" if proxied else server.url
    settings = Settings.model_validate({"servers": {"up": {"url": url, **more}}})
    working_directory = WorkingDirectory(folder, {"HTTP_PROXY": server.url.removesuffix("/mcp")} if proxied else {})
    async with open_gateway(settings, paths_in(folder), identity="t", working_directory=working_directory) as gateway:
        with anyio.fail_after(30):
            await gateway.refresh(30)
        assert gateway.state.catalog.by_name("up__t") is not None
        yield gateway, Caller(gateway)


async def call(caller: Caller) -> dict[str, Any]:
    with anyio.fail_after(30):
        return await caller.call(RequestScope(), "up__t", {}, CallOptions())


def text_of(result: dict[str, Any]) -> str:
    text: str = result["content"][0]["text"]
    return text


@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "proxied"])
@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.slow
async def test_a_call_in_a_forgotten_session_is_made_in_a_new_one(tmp_path: Path, name: str, proxied: bool) -> None:
    with forgetful(REFUSALS[name]) as server:
        async with gateway_to(tmp_path, server, proxied=proxied) as (gateway, caller):
            for round_number in (1, 2):
                server.forget()
                opened = server.opened
                if REFUSALS[name].status == 500:
                    # Whether such a call was executed is not known for certain.
                    failed = (await call(caller))["structuredContent"]["error"]
                    assert failed["details"]["executed"] == "unknown"
                assert text_of(await call(caller)) == "fine"
                assert server.opened == opened + 1
                assert server.executed.count("tools/call") == round_number
            assert gateway.pool.upstreams["up"].authorization is None or (
                gateway.pool.upstreams["up"].authorization.status()["state"] == "not_needed"
            )


@pytest.mark.parametrize("name", ["ts_example_400", "rust_401", "conflict", "gone", "json_200", "event_200_null"])
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("prompts/get", {"name": "p"}),
        ("resources/read", {"uri": "x://r"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": ""}}),
    ],
)
async def test_prompts_and_resources_are_asked_for_in_a_new_session(
    tmp_path: Path, name: str, method: str, params: dict[str, Any]
) -> None:
    with forgetful(REFUSALS[name]) as server:
        async with gateway_to(tmp_path, server) as (gateway, _):
            server.forget()
            opened = server.opened
            with anyio.fail_after(30):
                result = await gateway.pool.upstreams["up"].request(method, params)
            assert result == server.result({"method": method})["result"]
            assert server.opened == opened + 1


@pytest.mark.parametrize("name", ["ts_example_400", "rust_401", "conflict", "json_200", "event_200"])
async def test_a_list_in_a_forgotten_session_is_fetched_in_a_new_one(tmp_path: Path, name: str) -> None:
    with forgetful(REFUSALS[name]) as server:
        async with gateway_to(tmp_path, server) as (gateway, _):
            server.forget()
            server.lists_of.append("new")
            with anyio.fail_after(30):
                await gateway.refresh(30)
                await until(lambda: gateway.state.catalog.by_name("up__new") is not None)
            assert server.opened == 2


@pytest.mark.parametrize("name", ["ts_example_400", "ts_404", "rust_401", "json_200", "silent_400"])
@pytest.mark.slow
async def test_twenty_calls_at_once_renew_a_session_once(tmp_path: Path, name: str) -> None:
    with forgetful(REFUSALS[name]) as server:
        async with gateway_to(tmp_path, server, max_concurrent=20) as (_, caller):
            server.forget()
            results: list[dict[str, Any]] = []

            async def one() -> None:
                results.append(await call(caller))

            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(one)
            assert [text_of(result) for result in results] == ["fine"] * 20
            assert server.opened == 2
            assert server.executed.count("tools/call") == 20


TOOLS_OWN = {
    "result": {"result": {"isError": True, "content": [{"type": "text", "text": "browser session 7 not found"}]}},
    "error": {"error": {"code": -32000, "message": "browser session 7 not found"}},
    "invalid_request": {"error": {"code": -32600, "message": "Session not found: 7"}},
    "same_words": {"error": {"code": -32001, "message": "Session not found"}},
    "not_initialized": {"error": {"code": -32002, "message": "browser not initialized"}},
    "database": {"error": {"code": -32603, "message": "the database session expired"}},
}


@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "proxied"])
@pytest.mark.parametrize("name", TOOLS_OWN)
async def test_a_tool_that_speaks_of_a_session_of_its_own_is_called_once(
    tmp_path: Path, name: str, proxied: bool
) -> None:
    def prepare(server: ForgetfulServer) -> None:
        server.answers["tools/call"] = TOOLS_OWN[name]

    with forgetful(PLAIN, prepare) as server:
        async with gateway_to(tmp_path, server, proxied=proxied) as (_, caller):
            if name == "result":
                assert (await call(caller))["isError"] is True
            else:
                with pytest.raises(MCPError) as raised:
                    await call(caller)
                assert raised.value.error.message == TOOLS_OWN[name]["error"]["message"]
            assert server.executed.count("tools/call") == 1
            assert server.opened == 1


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (Refusal(400, error(-32602, "Invalid params", OURS)), None),
        (Refusal(400, "the query is too long", "text/plain"), "UPSTREAM_UNAVAILABLE"),
        (Refusal(404, error(-32601, "no such tool", OURS)), None),
        (Refusal(403, "not your file", "text/plain"), "UPSTREAM_AUTH"),
        (Refusal(429, "slow down", "text/plain"), "UPSTREAM_UNAVAILABLE"),
        (Refusal(400, "browser session 7 not found", "text/plain"), "UPSTREAM_UNAVAILABLE"),
        (Refusal(409, "the document was changed by another user", "text/plain"), "UPSTREAM_UNAVAILABLE"),
    ],
    ids=lambda value: str(value.status) if isinstance(value, Refusal) else None,
)
async def test_a_refusal_of_one_call_leaves_the_session_alone(
    tmp_path: Path, refusal: Refusal, code: str | None
) -> None:
    """The server knows the session: other requests in it are answered."""
    with forgetful(PLAIN) as server:
        server.refused["tools/call"] = refusal
        async with gateway_to(tmp_path, server) as (_, caller):
            if code is None:
                with pytest.raises(MCPError):
                    await call(caller)
            else:
                assert (await call(caller))["structuredContent"]["error"]["code"] == code
            assert server.executed.count("tools/call") == 1
            assert server.opened == 1


async def test_a_server_that_keeps_no_session_is_named_with_its_own_words(tmp_path: Path) -> None:
    with forgetful(PLAIN) as server:
        async with gateway_to(tmp_path, server) as (_, caller):
            server.keeps_none = True
            server.forget()
            error_told = (await call(caller))["structuredContent"]["error"]
            assert "No valid session ID provided" in error_told["message"]
            assert server.opened <= 3
            assert "tools/call" not in server.executed
