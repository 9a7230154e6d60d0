"""The server whose answers must not differ, however a client reaches it: all that a tool can answer, tell and ask."""

from __future__ import annotations

import json
from typing import Any

import anyio
import mcp_types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

Context = ServerRequestContext[Any, Any]

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
_NOTE = {"uri": "note://1", "mimeType": "text/plain", "text": "embedded"}
_BLOB = {"uri": "note://2", "mimeType": "image/png", "blob": PNG}
_TEXT: dict[str, Any] = {"type": "text", "text": "a text"}
_IMAGE = {"type": "image", "data": PNG, "mimeType": "image/png"}
_LINK = {"type": "resource_link", "uri": "note://3", "name": "note", "title": "Note", "size": 7}
_ANNOTATIONS = {"audience": ["user"], "priority": 0.5, "lastModified": "2026-01-01T00:00:00Z"}

RESULTS: dict[str, dict[str, Any]] = {
    "text": {"content": [_TEXT]},
    "image": {"content": [_IMAGE]},
    "audio": {"content": [{"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"}]},
    "embedded": {"content": [{"type": "resource", "resource": _NOTE}, {"type": "resource", "resource": _BLOB}]},
    "link": {"content": [_LINK]},
    "mixed": {"content": [_TEXT, _IMAGE, _LINK, _TEXT]},
    "annotated": {"content": [{**_TEXT, "annotations": _ANNOTATIONS, "_meta": {"example.org/a": [1, None]}}]},
    "empty": {"content": []},
    "structured": {"content": [_TEXT], "structuredContent": {"value": 1.5, "nested": {"list": [1, "2", None, True]}}},
    "failure": {"content": [_TEXT], "isError": True},
    "failure_structured": {"content": [_TEXT], "structuredContent": {"value": 0}, "isError": True},
    "meta": {"content": [_TEXT], "_meta": {"example.org/trace": {"id": "7", "tags": ["ä", "🎈"]}}},
    "unicode": {"content": [{"type": "text", "text": 'Zürich 東京 🎈 \u2028 \x00 \\ " </script>'}]},
    "large": {"content": [{"type": "text", "text": "0123456789abcdef" * 57344}]},
}
ERRORS: dict[str, tuple[int, str, Any]] = {
    "error_plain": (-32099, "it broke", None),
    "error_data": (INVALID_PARAMS, "wrong: ü", {"field": "x", "allowed": [1, 2]}),
    "error_closed": (-32000, "closed for today", {"until": "tomorrow"}),
    "error_own_code": (4711, "no such drawer", ["a", {"b": None}]),
}
QUESTIONS: dict[str, dict[str, Any]] = {
    "elicit": {
        "method": "elicitation/create",
        "params": {
            "mode": "form",
            "message": "Who are you?",
            "requestedSchema": {"type": "object", "properties": {"name": {"type": "string", "default": "Ada"}}},
        },
    },
    "sample": {
        "method": "sampling/createMessage",
        "params": {
            "messages": [{"role": "user", "content": {"type": "text", "text": "Say something"}}],
            "maxTokens": 5,
            "systemPrompt": "Be brief.",
        },
    },
    "roots": {"method": "roots/list", "params": {}},
}
LOGS: list[tuple[str, Any]] = [("info", "a line: ü"), ("error", {"nested": [1, None]})]
WORKING = ("echo", "progress", "log", "wait")
_VALUE = {"type": "object", "properties": {"value": {"type": "number"}}, "required": ["value"]}


def tools() -> list[mcp_types.Tool]:
    """Every tool, one with every ornament."""
    names = [*RESULTS, *ERRORS, *QUESTIONS, *WORKING]
    plain = [
        mcp_types.Tool(
            name=name,
            description=f"Answers: {name}.",
            input_schema={"type": "object"},
            output_schema=_VALUE if "structured" in name else None,
        )
        for name in names
    ]
    ornate = mcp_types.Tool(
        name="ornate",
        title="Ornate ✨",
        description="Has everything a definition can have.",
        input_schema={
            "type": "object",
            "properties": {"a": {"type": "string", "title": "A", "default": "é", "examples": ["x"]}, "b": {}},
            "required": ["a"],
            "additionalProperties": False,
            "x-vendor": {"any": [1]},
        },
        annotations=mcp_types.ToolAnnotations(title="Ornate", read_only_hint=True, open_world_hint=False),
        icons=[mcp_types.Icon(src="https://example.org/i.svg", mime_type="image/svg+xml", sizes=["any"])],
        _meta={"example.org/group": {"n": 1}},
    )
    return [*plain, ornate]


class ParityServer:
    """The server, and what became of the calls that wait."""

    def __init__(self) -> None:
        self.waiting = anyio.Event()
        self.cancelled = anyio.Event()

    def build(self) -> Server[Any]:
        """The server of the official SDK."""

        async def on_list(_ctx: Context, _params: Any) -> mcp_types.ListToolsResult:
            return mcp_types.ListToolsResult(tools=tools())

        async def on_list_prompts(_ctx: Context, _params: Any) -> Any:
            greet = {"name": "greet", "title": "Greet", "arguments": [{"name": "who"}]}
            return mcp_types.ListPromptsResult.model_validate({"prompts": [greet]})

        async def on_get_prompt(_ctx: Context, params: mcp_types.GetPromptRequestParams) -> Any:
            if params.name != "greet":
                raise MCPError(INVALID_PARAMS, f"unknown prompt {params.name}", {"known": ["greet"]})
            contents = [_TEXT, _IMAGE, {"type": "resource", "resource": _NOTE}, _LINK]
            messages = [{"role": "assistant", "content": content} for content in contents]
            result = {"messages": messages, "description": str(params.arguments), "_meta": {"example.org/p": 1}}
            return mcp_types.GetPromptResult.model_validate(result)

        async def on_list_resources(_ctx: Context, _params: Any) -> Any:
            one = {"uri": "note://1", "name": "one", "title": "One", "annotations": _ANNOTATIONS, "size": 8}
            return mcp_types.ListResourcesResult.model_validate({"resources": [one]})

        async def on_list_templates(_ctx: Context, _params: Any) -> Any:
            template = {"uriTemplate": "note://{number}", "name": "any", "mimeType": "text/plain"}
            return mcp_types.ListResourceTemplatesResult.model_validate({"resourceTemplates": [template]})

        async def on_read(_ctx: Context, params: mcp_types.ReadResourceRequestParams) -> Any:
            known: dict[str, dict[str, Any]] = {"note://1": _NOTE, "note://2": _BLOB}
            if params.uri not in known:
                raise MCPError(INVALID_PARAMS, "no such note", {"uri": params.uri})
            result = {"contents": [known[params.uri]], "_meta": {"example.org/r": True}}
            return mcp_types.ReadResourceResult.model_validate(result)

        async def on_complete(_ctx: Context, params: mcp_types.CompleteRequestParams) -> Any:
            context = params.context.arguments if params.context else None
            values = [f"{params.argument.value}-{number}" for number in range(3)]
            completion = {"values": [*values, str(context)], "total": 9, "hasMore": True}
            return mcp_types.CompleteResult.model_validate({"completion": completion})

        async def on_set_level(_ctx: Context, _params: Any) -> mcp_types.EmptyResult:
            return mcp_types.EmptyResult()

        server: Server[Any] = Server(
            "parity",
            version="1",
            on_list_tools=on_list,
            on_call_tool=self._call,
            on_list_prompts=on_list_prompts,
            on_get_prompt=on_get_prompt,
            on_list_resources=on_list_resources,
            on_list_resource_templates=on_list_templates,
            on_read_resource=on_read,
            on_completion=on_complete,
        )
        server.add_request_handler("logging/setLevel", mcp_types.SetLevelRequestParams, on_set_level)
        return server

    async def _call(self, ctx: Context, params: mcp_types.CallToolRequestParams) -> Any:
        result = await self._answer(ctx, params)
        return {"resultType": "complete", **result} if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS else result

    async def _answer(self, ctx: Context, params: mcp_types.CallToolRequestParams) -> dict[str, Any]:
        if params.name in RESULTS:
            return RESULTS[params.name]
        if params.name in ERRORS:
            raise MCPError(*ERRORS[params.name])
        if params.name in QUESTIONS:
            return await _ask(ctx, QUESTIONS[params.name])
        match params.name:
            case "progress":
                for step in (1, 2.5, 4):
                    await ctx.session.report_progress(step, 4, f"step {step}")
            case "log":
                for level, data in LOGS:
                    message = {"level": level, "logger": "parity", "data": data}
                    await ctx.session._request_outbound.notify("notifications/message", message)
            case "wait":
                await self._wait()
        said = {"arguments": params.arguments, "meta": _foreign(ctx.params)}
        return {"content": [{"type": "text", "text": json.dumps(said, sort_keys=True)}]}

    async def _wait(self) -> None:
        self.waiting.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.cancelled.set()


async def _ask(ctx: Context, question: dict[str, Any]) -> dict[str, Any]:
    """What the client said, asked in the way of the era."""
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        answers = (ctx.params or {}).get("inputResponses")
        if not answers:
            return {"resultType": "input_required", "inputRequests": {"q": question}, "requestState": "asked"}
        answer = answers["q"]
    else:
        answer = await ctx.session._request_outbound.send_raw_request(question["method"], question["params"])
    kept = {key: value for key, value in answer.items() if key != "_meta"}
    return {"content": [{"type": "text", "text": json.dumps(kept, sort_keys=True)}]}


def _foreign(params: Any) -> dict[str, Any]:
    """The metadata of a call that belongs to neither the protocol nor a hop."""
    meta = (params or {}).get("_meta") or {}
    return {key: value for key, value in meta.items() if key.startswith("example.org/")}
