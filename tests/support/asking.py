"""An upstream that asks its caller during calls, in either era, and clients that answer in their own name."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import mcp_types
from mcp.client.client import Client
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from tests.support.memory import FakeUpstream, text_result, tool

FORM = {"type": "object", "properties": {"answer": {"type": "string"}}}
TOOLS = ("ask", "visit", "sample", "sample_tools", "roots", "twice", "log", "plain")
MODERN = "2026-07-28"


def question_of(name: str, text: str) -> dict[str, Any]:
    """The request with which a tool asks."""
    message = {"role": "user", "content": {"type": "text", "text": text}}
    params: dict[str, Any]
    match name:
        case "visit":
            params = {"mode": "url", "message": text, "url": "https://example.com/x", "elicitationId": "e1"}
            return {"method": "elicitation/create", "params": params}
        case "sample":
            return {"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": 5}}
        case "sample_tools":
            tools = [{"name": "t", "inputSchema": {"type": "object"}}]
            params = {"messages": [message], "maxTokens": 5, "tools": tools, "toolChoice": {"mode": "auto"}}
            return {"method": "sampling/createMessage", "params": params}
        case "roots":
            return {"method": "roots/list"}
        case _:
            params = {"mode": "form", "message": text, "requestedSchema": FORM}
            return {"method": "elicitation/create", "params": params}


def answer_in(result: dict[str, Any]) -> str:
    """What a client said."""
    if "roots" in result:
        return str(result["roots"][0]["uri"])
    content = result.get("content")
    if isinstance(content, dict):
        return str(content.get("answer", content.get("text")))
    return str(result.get("action", content))


async def act(ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
    """Serve one call: ask, and answer with the answer."""
    name, text = call["name"], str(call["arguments"].get("text", ""))
    is_modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
    done = {"resultType": "complete"} if is_modern else {}
    if name == "plain":
        return {**text_result(f"plain {text}"), **done}
    if name == "log":
        channel = ctx.session._request_outbound
        for level in ("debug", "error"):
            await channel.notify("notifications/message", {"level": level, "data": f"{level} {text}"})
        return {**text_result("logged"), **done}
    questions = [question_of(name, text)] * (2 if name == "twice" else 1)
    if not is_modern:
        answers = []
        for question in questions:
            try:
                result = await ctx.session._request_outbound.send_raw_request(
                    question["method"], question.get("params"), {"timeout": 30}
                )
            except MCPError as error:
                return {**text_result(f"refused {error.code}: {error.message}"), "isError": True}
            answers.append(answer_in(result))
        return text_result(" and ".join(answers))
    params = ctx.params or {}
    known = [part for part in str(params.get("requestState") or "").split("|") if part]
    known += [answer_in(response) for response in (params.get("inputResponses") or {}).values()]
    if len(known) < len(questions):
        state = "|".join(known)
        return {"resultType": "input_required", "inputRequests": {"k": questions[0]}, "requestState": state}
    return {**text_result(" and ".join(known)), **done}


@dataclass
class AskingUpstream(FakeUpstream):
    """The upstream; its prompt and its resource ask as well. It records the log levels that sessions set."""

    levels: list[tuple[Any, str]] = field(default_factory=list)
    connections: list[Any] = field(default_factory=list)

    def server(self) -> Server[Any]:
        server = super().server()

        async def note_connection(ctx: Any, call_next: Any) -> Any:
            if ctx.method == "notifications/initialized":
                self.connections.append(ctx.session._connection)
            return await call_next(ctx)

        server.middleware.append(note_connection)

        async def prompts(_ctx: Any, _params: Any) -> Any:
            return mcp_types.ListPromptsResult(prompts=[mcp_types.Prompt(name="ask")])

        async def resources(_ctx: Any, _params: Any) -> Any:
            return mcp_types.ListResourcesResult(resources=[mcp_types.Resource(uri="ask://who", name="ask")])

        async def get(ctx: Any, _params: Any) -> Any:
            result = await act(ctx, {"name": "ask", "arguments": {"text": "who"}})
            if "content" not in result:
                return result
            done = {key: value for key, value in result.items() if key == "resultType"}
            return {"messages": [{"role": "user", "content": result["content"][0]}], **done}

        async def read(ctx: Any, params: Any) -> Any:
            result = await act(ctx, {"name": "ask", "arguments": {"text": "who"}})
            if "content" not in result:
                return result
            cached = {"ttlMs": 0, "cacheScope": "private"} if "resultType" in result else {}
            done = {key: value for key, value in result.items() if key == "resultType"}
            return {"contents": [{"uri": params.uri, "text": result["content"][0]["text"]}], **done, **cached}

        async def set_level(ctx: Any, params: Any) -> Any:
            self.levels.append((ctx.session._connection, params.level))
            return mcp_types.EmptyResult()

        server.add_request_handler("logging/setLevel", mcp_types.SetLevelRequestParams, set_level)
        server.add_request_handler("prompts/list", mcp_types.PaginatedRequestParams, prompts)
        server.add_request_handler("prompts/get", mcp_types.GetPromptRequestParams, get)
        server.add_request_handler("resources/list", mcp_types.PaginatedRequestParams, resources)
        server.add_request_handler("resources/read", mcp_types.ReadResourceRequestParams, read)
        return server


def asking(*, modern: bool = False) -> AskingUpstream:
    """The upstream, of one era."""
    return AskingUpstream([tool(name, properties={"text": {"type": "string"}}) for name in TOOLS], act, modern=modern)


@asynccontextmanager
async def http_app(upstream: FakeUpstream) -> AsyncIterator[Any]:
    """The upstream as an ASGI application that speaks its era only."""
    manager = StreamableHTTPSessionManager(upstream.server())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        version = dict(scope["headers"]).get(b"mcp-protocol-version", b"").decode()
        if version in MODERN_PROTOCOL_VERSIONS and not upstream.modern:
            await send({"type": "http.response.start", "status": 400, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await manager.handle_request(scope, receive, send)

    async with manager.run():
        yield app


@dataclass
class Person:
    """A client with somebody behind it who answers in the client's name."""

    name: str
    asked: list[str] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    answers: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        self.answers.set()

    async def elicit(self, context: Any, params: Any) -> mcp_types.ElicitResult:
        self.asked.append(params.message)
        await self.answers.wait()
        if params.mode == "url":
            return mcp_types.ElicitResult(action="accept")
        return mcp_types.ElicitResult(action="accept", content={"answer": f"{self.name}: {params.message}"})

    async def sample(self, context: Any, params: Any) -> mcp_types.CreateMessageResult:
        text = params.messages[0].content.text
        self.asked.append(text)
        content = mcp_types.TextContent(type="text", text=f"{self.name}: {text}")
        return mcp_types.CreateMessageResult(role="assistant", content=content, model="m")

    async def roots(self, context: Any) -> mcp_types.ListRootsResult:
        return mcp_types.ListRootsResult(roots=[mcp_types.Root(uri=f"file:///{self.name}")])  # type: ignore[arg-type]

    async def log(self, params: Any) -> None:
        self.logs.append(params.data)

    def client(self, server: Any, *, modern: bool, **options: Any) -> Client:
        """A client of the official SDK."""
        return Client(
            server,
            mode=MODERN if modern else "legacy",
            elicitation_callback=self.elicit,
            sampling_callback=self.sample,
            sampling_capabilities=mcp_types.SamplingCapability(tools=mcp_types.SamplingToolsCapability()),
            list_roots_callback=self.roots,
            logging_callback=self.log,
            **options,
        )


async def _serve_stdio(*, modern: bool, notes: Path | None) -> None:
    server = asking(modern=modern).server()
    if notes is not None:
        await anyio.Path(notes / "pids").mkdir(exist_ok=True)
        await anyio.Path(notes / "pids" / str(os.getpid())).touch()
        server.middleware.insert(0, partial(_by_capabilities, notes))
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def _by_capabilities(notes: Path, ctx: Any, call_next: Any) -> Any:
    """As servers do that look at their client: tools for what it can do, and its roots as soon as it is there."""
    result = await call_next(ctx)
    able = ctx.session.client_capabilities or mcp_types.ClientCapabilities()
    if ctx.method == "notifications/initialized" and able.roots is not None:
        answer = await ctx.session._connection.outbound.send_raw_request("roots/list", None, {"timeout": 30})
        await anyio.Path(notes / "roots").write_text(answer_in(answer))
    if ctx.method == "tools/list" and able.sampling is None:
        result["tools"] = [tool for tool in result["tools"] if not tool["name"].startswith("sample")]
    return result


if __name__ == "__main__":
    # A real process: `asking.py [--modern] [--notes FOLDER]`.
    folder = Path(sys.argv[sys.argv.index("--notes") + 1]) if "--notes" in sys.argv else None
    anyio.run(partial(_serve_stdio, modern="--modern" in sys.argv, notes=folder))
