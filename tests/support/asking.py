"""An upstream that asks its caller during calls, in either era, and clients that answer in their own name."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import mcp_types
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pml_gateway.mcp.capabilities import ClientCapabilities
from pml_gateway.mcp.sdk import connection_of, request_channel
from tests.support.scripted_server import (
    CACHEABLE,
    NOTHING,
    PROMPTS,
    RESOURCES,
    ScriptedServer,
    resource,
    text_result,
    tool,
)

TEXT = {"text": {"type": "string"}}
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
    if name == "plain":
        return text_result(f"plain {text}")
    if name == "log":
        channel = request_channel(ctx)
        for level in ("debug", "error"):
            await channel.notify("notifications/message", {"level": level, "data": f"{level} {text}"})
        return text_result("logged")
    questions = [question_of(name, text)] * (2 if name == "twice" else 1)
    if not is_modern:
        answers = []
        for question in questions:
            try:
                result = await request_channel(ctx).send_raw_request(
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
    return text_result(" and ".join(known))


async def answer_beside_tools(ctx: Any, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """Its prompts and its resources ask as well."""
    if method not in ("prompts/get", "resources/read"):
        return None
    if method == "resources/read" and params["uri"] not in ("ask://who", *_read_by_those_who_can(ctx)):
        raise MCPError(-32002, f"Resource not found: {params['uri']}")
    result = await act(ctx, {"name": "ask", "arguments": {"text": "who"}})
    if "content" not in result:
        return result
    if method == "prompts/get":
        return {"messages": [{"role": "user", "content": result["content"][0]}]}
    return {"contents": [{"uri": params["uri"], "text": result["content"][0]["text"]}], **CACHEABLE}


def _read_by_those_who_can(ctx: Any) -> list[str]:
    able = ctx.session.client_capabilities
    return ["ask://sampled"] if able is not None and able.model_dump(exclude_none=True) else []


def asking(*, modern: bool | None = False, **needs: str) -> ScriptedServer:
    """Return the server, of one era, or of both if `modern` is None.

    Tools that are named in `needs` are listed for clients of these capabilities only.
    """
    tools = {**dict.fromkeys(TOOLS, ""), **needs}
    return ScriptedServer(
        [tool(name, properties=TEXT, needs=wanted) for name, wanted in tools.items()],
        act,
        methods=PROMPTS | RESOURCES | {"logging/setLevel"},
        prompts=[{"name": "ask"}],
        resources=[resource("ask://who", name="ask")],
        answer=answer_beside_tools,
        modern=modern,
    )


def asking_after(event: anyio.Event, *, modern: bool | None = False) -> ScriptedServer:
    """The same server, whose tools ask once an event is set."""

    async def late(ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        await event.wait()
        return await act(ctx, call)

    server = asking(modern=modern)
    server.handler = late
    return server


def gated(**needs: str) -> ScriptedServer:
    """A handshake server that looks at what its client announced, and lists by that; `needs` are of more tools."""
    gates = {"ask": "elicitation", "sample": "sampling", "roots": "roots", "both": "elicitation sampling", "plain": ""}
    server = asking()
    wanted = {**gates, "lonely": NOTHING, **needs}
    server.tools = [tool(name, properties=TEXT, needs=gate) for name, gate in wanted.items()]
    server.prompts.append({"name": "sampled", "needs": "sampling"})
    server.resources.append(resource("ask://sampled", name="sampled", needs="sampling"))
    return server


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


class Asked:
    """A client as upstreams know it, who can be asked what it is `able` to, but is not."""

    is_one_client = True
    log_level = None

    def __init__(self, client_id: str, able: str = "", *, answers_later: bool = False) -> None:
        self.client_id = self.quota_key = client_id
        self.client_capabilities = ClientCapabilities({name: {} for name in able.split()})
        self.answers_later = answers_later

    async def ask(self, method: str, params: dict[str, Any], on_progress: object) -> dict[str, Any]:
        raise AssertionError(f"{method} is never asked")

    async def tell(self, method: str, params: dict[str, Any]) -> None:
        return

    async def let_go(self) -> None:
        return


async def _serve_stdio(*, modern: bool, notes: Path | None) -> None:
    if notes is None:
        await asking(modern=modern).serve_stdio()
        return
    await anyio.Path(notes / "pids").mkdir(exist_ok=True)
    await anyio.Path(notes / "pids" / str(os.getpid())).touch()
    server = asking(modern=modern, sample="sampling", sample_tools="sampling")
    server.on_initialized = partial(_note_roots, notes)
    await server.serve_stdio()


async def _note_roots(notes: Path, ctx: Any) -> None:
    """As servers do that look at their client: they want its roots as soon as it is there."""
    able = ctx.session.client_capabilities
    if able is not None and able.roots is not None:
        answer = await connection_of(ctx).outbound.send_raw_request("roots/list", None, {"timeout": 30})
        await anyio.Path(notes / "roots").write_text(answer_in(answer))


if __name__ == "__main__":
    # A real process: `asking.py [--modern] [--notes FOLDER]`.
    folder = Path(sys.argv[sys.argv.index("--notes") + 1]) if "--notes" in sys.argv else None
    anyio.run(partial(_serve_stdio, modern="--modern" in sys.argv, notes=folder))
