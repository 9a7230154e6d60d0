"""A call through `call_tool` of an `Exposure` is the direct call: results, errors, progress, logs and questions."""

from __future__ import annotations

import logging
from typing import Any

import mcp_types
import pytest
from fastmcp import Context, FastMCP
from fastmcp.client.elicitation import ElicitResult
from fastmcp.exceptions import ToolError
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

from pml_gateway.fastmcp import Exposure
from tests.parity.server import RESULTS, ParityServer
from tests.support.fastmcp_server import ERAS, connected, fastmcp_of
from tests.support.scripted_server import ScriptedServer, tool

pytestmark = pytest.mark.anyio

EITHER_ERA = pytest.mark.parametrize("era", list(ERAS))
OURS = ("io.modelcontextprotocol/", "pml-gateway/")
SETTINGS = {"search": {"ranking": "lexical"}}


def answered(result: dict[str, Any]) -> dict[str, Any]:
    """An answer without the metadata of hops."""
    meta = {key: value for key, value in result.get("_meta", {}).items() if not key.startswith(OURS)}
    return {key: value for key, value in result.items() if key != "_meta"} | ({"_meta": meta} if meta else {})


@EITHER_ERA
async def test_every_kind_of_result_is_the_same(era: str) -> None:
    async def handler(_: Any, call: dict[str, Any]) -> dict[str, Any]:
        return RESULTS[call["name"]]

    definitions = {each["name"]: each for each in ParityServer().scripted.tools}
    server = fastmcp_of(ScriptedServer([definitions[name] for name in RESULTS], handler), "parity")
    server.add_transform(
        Exposure("full_proxy", settings={**SETTINGS, "gateway": {"full_proxy": {"expose_meta_tools": True}}})
    )
    async with connected(server, era) as client:
        for name in RESULTS:
            direct = answered(await client.call(name))
            assert answered(await client.call("call_tool", {"name": name})) == direct, name


def failing() -> FastMCP[Any]:
    server: FastMCP[Any] = FastMCP("failing", mask_error_details=True)

    @server.tool
    def says_why() -> str:
        """Fail and say why."""
        raise ToolError("the printer is on fire")

    @server.tool
    def breaks() -> str:
        """Break."""
        raise RuntimeError("secret details")

    return server


@EITHER_ERA
async def test_what_tools_raise_is_told_as_fastmcp_tells_it(era: str, caplog: pytest.LogCaptureFixture) -> None:
    server = failing()
    server.add_transform(Exposure(settings=SETTINGS))
    with caplog.at_level(logging.CRITICAL):
        async with connected(server, era) as client:
            for name in ("says_why", "breaks"):
                direct = answered(await client.call(name))
                assert direct["isError"]
                assert answered(await client.call("call_tool", {"name": name})) == direct
                assert "secret" not in str(direct)


class Counts(Middleware):
    """Takes note of every tool that is called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        self.called.append(context.message.name)
        return await call_next(context)


async def test_middleware_sees_the_tool_that_is_called() -> None:
    server, counts = fastmcp_of(ScriptedServer([tool("echo")]), "shop"), Counts()
    server.add_middleware(counts)
    server.add_transform(Exposure(settings=SETTINGS))
    async with connected(server) as client:
        await client.call("call_tool", {"name": "echo"})
    assert counts.called == ["call_tool", "echo"]


def talking() -> FastMCP[Any]:
    server: FastMCP[Any] = FastMCP("talking")

    @server.tool
    async def count(ctx: Context) -> str:
        """Count to three."""
        for number in range(1, 4):
            await ctx.report_progress(number, 3, f"at {number}")
        return "done"

    @server.tool
    async def ask(ctx: Context) -> Any:
        """Ask who somebody is."""
        if ctx.request_context is not None and ctx.request_context.protocol_version < "2026":
            answer = await ctx.elicit("Who?", response_type=str)
            return f"hello {getattr(answer, 'data', None)}"
        given = ctx.input_responses
        if given is None:
            schema: dict[str, Any] = {"type": "object", "properties": {"value": {"type": "string"}}}
            params = ElicitRequestFormParams(message="Who?", requested_schema=schema)
            return InputRequiredResult(input_requests={"who": ElicitRequest(params=params)}, request_state="asked")
        found = given["who"]
        assert isinstance(found, mcp_types.ElicitResult)
        return f"hello {found.content}"

    return server


@EITHER_ERA
async def test_progress_and_questions_go_to_the_client_that_calls(era: str) -> None:
    reported: list[Any] = []

    async def progress(done: float, total: float | None = None, message: str | None = None) -> None:
        reported.append((done, total, message))

    async def elicit(message: str, *_: Any) -> Any:
        return ElicitResult(action="accept", content={"value": f"Ada, asked {message}"})

    server = talking()
    server.add_transform(Exposure(settings=SETTINGS))
    async with connected(server, era, elicitation_handler=elicit) as client:
        for name, arguments in (("count", {}), ("call_tool", {"name": "count"})):
            reported.clear()
            await client.client.call_tool(name, arguments, progress_handler=progress)  # type: ignore[arg-type]
            assert reported == [(1, 3, "at 1"), (2, 3, "at 2"), (3, 3, "at 3")]
        for name, arguments in (("ask", {}), ("call_tool", {"name": "ask"})):
            result = await client.client.call_tool(name, arguments)
            assert "Ada, asked Who?" in str(result.content)


async def test_a_question_inside_a_batch_is_refused_where_no_answer_could_reach_it() -> None:
    server = talking()
    server.add_transform(Exposure(meta_tools=["call_batch"], settings=SETTINGS))
    async with connected(server) as client:
        slots = (await client.call("call_batch", {"calls": [{"name": "ask"}, {"name": "count"}]}))["structuredContent"][
            "slots"
        ]
    assert [slot["ok"] for slot in slots] == [False, True]
    assert "asks its user something" in slots[0]["error"]["message"]
