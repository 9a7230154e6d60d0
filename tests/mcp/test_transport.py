"""Real transports to real servers: streamable HTTP of both eras, SSE, lost sessions, refused credentials."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.responses import Response

from pml_gateway.config.settings import Settings
from pml_gateway.errors import UpstreamAuthError, UpstreamUnavailableError
from pml_gateway.gateway.calling import Caller
from pml_gateway.gateway.gateway import Gateway, open_gateway
from pml_gateway.gateway.request import CallOptions, RequestScope
from pml_gateway.upstreams.connector import UpstreamState
from pml_gateway.working_directory import WorkingDirectory
from tests.support.listening import listening, sse_app
from tests.support.memory import paths_in
from tests.support.scripted_server import ScriptedServer, text_result, tool

pytestmark = pytest.mark.anyio


def region_server(headers_seen: list[dict[str, str]] | None = None) -> ScriptedServer:
    """One tool with a parameter that travels in a header as well; it answers with that parameter."""

    async def on_call(ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        if headers_seen is not None and ctx.request is not None:
            headers_seen.append(dict(ctx.request.headers))
        return text_result(str(call["arguments"].get("region")))

    region = {"region": {"type": "string", "x-mcp-header": "Region"}}
    return ScriptedServer([tool("where", properties=region)], on_call, modern=None)


@asynccontextmanager
async def gateway_to(
    folder: Path, entry: dict[str, Any], working_directory: WorkingDirectory | None = None
) -> AsyncIterator[tuple[Gateway, Caller]]:
    settings = Settings.model_validate({"servers": {"remote": entry}})
    async with open_gateway(
        settings, paths_in(folder), identity="test", working_directory=working_directory
    ) as gateway:
        with anyio.fail_after(30):
            await gateway.pool.upstreams["remote"].connector.settled.wait()
            await gateway.refresh(30)
        yield gateway, Caller(gateway)


def ask(caller: Caller) -> Awaitable[dict[str, Any]]:
    return caller.call(RequestScope(), "remote__where", {"region": "eu"}, CallOptions())


@pytest.mark.parametrize(
    ("build", "path", "era"),
    [
        (lambda: region_server().http_app(), "/mcp", "modern"),
        (lambda: sse_app(region_server().server()), "/sse", "handshake"),
    ],
)
async def test_each_remote_transport_lists_and_calls(
    tmp_path: Path, build: Callable[[], Any], path: str, era: str
) -> None:
    async with (
        listening(build()) as port,
        gateway_to(tmp_path, {"url": f"http://127.0.0.1:{port}{path}"}) as (gateway, caller),
    ):
        assert [tool.qualified_name for tool in gateway.state.catalog.tools] == ["remote__where"]
        assert (await ask(caller))["content"][0]["text"] == "eu"
        listed = gateway.pool.upstreams["remote"].last_listed
        assert listed is not None
        assert listed.era == era


async def test_annotated_arguments_travel_as_headers_even_when_the_tool_is_known_from_the_manifest_only(
    tmp_path: Path,
) -> None:
    seen: list[dict[str, str]] = []
    async with listening(region_server(seen).http_app()) as port:
        entry = {"url": f"http://127.0.0.1:{port}/mcp", "headers": {"X-Team": "a"}}
        for _ in ("first start", "manifest start"):
            async with gateway_to(tmp_path, entry) as (_, caller):
                await ask(caller)
    assert [headers["mcp-param-region"] for headers in seen] == ["eu", "eu"]
    assert {headers["x-team"] for headers in seen} == {"a"}


async def test_refused_credentials_are_the_upstreams_matter_and_say_what_to_check(tmp_path: Path) -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await Response("no", 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)

    async with (
        listening(refuse) as port,
        gateway_to(
            tmp_path, {"url": f"http://127.0.0.1:{port}/mcp", "headers": {"Authorization": "Bearer s3cret"}}
        ) as (
            gateway,
            _,
        ),
    ):
        error = gateway.pool.upstreams["remote"].connector.last_error
    assert isinstance(error, UpstreamAuthError)
    assert "servers.remote.headers" in error.hint
    assert "s3cret" not in str(error)


async def test_nobody_listening_is_unavailable_and_names_the_server(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        entry = {"url": f"http://127.0.0.1:{unused.getsockname()[1]}/mcp"}
        async with gateway_to(tmp_path, entry) as (gateway, _):
            upstream = gateway.pool.upstreams["remote"]
            assert upstream.connector.state is UpstreamState.FAILED
            assert isinstance(upstream.connector.last_error, UpstreamUnavailableError)
            assert "remote" in str(upstream.connector.last_error)
