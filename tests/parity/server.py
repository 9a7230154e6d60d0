"""The server whose answers must not differ, however a client reaches it: all that a tool can answer, tell and ask."""

from __future__ import annotations

import json
from typing import Any

import anyio
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from pml_gateway.mcp.sdk import request_channel
from tests.support.scripted_server import CACHEABLE, EVERY_METHOD, ScriptedServer, tool

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


def tools() -> list[dict[str, Any]]:
    """Every tool, one with every ornament."""
    names = [*RESULTS, *ERRORS, *QUESTIONS, *WORKING]
    plain = [
        tool(name, f"Answers: {name}.", **({"outputSchema": _VALUE} if "structured" in name else {})) for name in names
    ]
    ornate = {
        "name": "ornate",
        "title": "Ornate ✨",
        "description": "Has everything a definition can have.",
        "inputSchema": {
            "type": "object",
            "properties": {"a": {"type": "string", "title": "A", "default": "é", "examples": ["x"]}, "b": {}},
            "required": ["a"],
            "additionalProperties": False,
            "x-vendor": {"any": [1]},
        },
        "annotations": {"title": "Ornate", "readOnlyHint": True, "openWorldHint": False},
        "icons": [{"src": "https://example.org/i.svg", "mimeType": "image/svg+xml", "sizes": ["any"]}],
        "_meta": {"example.org/group": {"n": 1}},
    }
    return [*plain, ornate]


class ParityServer:
    """The server, and what became of the calls that wait."""

    def __init__(self) -> None:
        self.waiting = anyio.Event()
        self.cancelled = anyio.Event()
        self.scripted = ScriptedServer(
            tools(),
            self._call,
            methods=EVERY_METHOD - {"resources/subscribe", "resources/unsubscribe"} | {"logging/setLevel"},
            prompts=[{"name": "greet", "title": "Greet", "arguments": [{"name": "who"}]}],
            resources=[{"uri": "note://1", "name": "one", "title": "One", "annotations": _ANNOTATIONS, "size": 8}],
            templates=[{"uriTemplate": "note://{number}", "name": "any", "mimeType": "text/plain"}],
            answer=_answer,
            modern=None,
        )

    async def _call(self, ctx: Any, call: dict[str, Any]) -> dict[str, Any]:
        name = call["name"]
        if name in RESULTS:
            return RESULTS[name]
        if name in ERRORS:
            raise MCPError(*ERRORS[name])
        if name in QUESTIONS:
            return await _ask(ctx, QUESTIONS[name])
        match name:
            case "progress":
                for step in (1, 2.5, 4):
                    await ctx.session.report_progress(step, 4, f"step {step}")
            case "log":
                for level, data in LOGS:
                    message = {"level": level, "logger": "parity", "data": data}
                    await request_channel(ctx).notify("notifications/message", message)
            case "wait":
                await self._wait()
        said = {"arguments": ctx.params.get("arguments"), "meta": _foreign(ctx.params)}
        return {"content": [{"type": "text", "text": json.dumps(said, sort_keys=True)}]}

    async def _wait(self) -> None:
        self.waiting.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.cancelled.set()


async def _answer(_ctx: Any, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "prompts/get":
            if params["name"] != "greet":
                raise MCPError(INVALID_PARAMS, f"unknown prompt {params['name']}", {"known": ["greet"]})
            contents = [_TEXT, _IMAGE, {"type": "resource", "resource": _NOTE}, _LINK]
            messages = [{"role": "assistant", "content": content} for content in contents]
            return {"messages": messages, "description": str(params.get("arguments")), "_meta": {"example.org/p": 1}}
        case "resources/read":
            known = {"note://1": _NOTE, "note://2": _BLOB}
            if params["uri"] not in known:
                raise MCPError(INVALID_PARAMS, "no such note", {"uri": params["uri"]})
            return {"contents": [known[params["uri"]]], "_meta": {"example.org/r": True}, **CACHEABLE}
        case "completion/complete":
            values = [f"{params['argument']['value']}-{number}" for number in range(3)]
            given = params["context"]["arguments"] if params.get("context") else None
            return {"completion": {"values": [*values, str(given)], "total": 9, "hasMore": True}}
    return None


async def _ask(ctx: Any, question: dict[str, Any]) -> dict[str, Any]:
    """What the client said, asked in the way of the era."""
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        answers = (ctx.params or {}).get("inputResponses")
        if not answers:
            return {"resultType": "input_required", "inputRequests": {"q": question}, "requestState": "asked"}
        answer = answers["q"]
    else:
        answer = await request_channel(ctx).send_raw_request(question["method"], question["params"])
    kept = {key: value for key, value in answer.items() if key != "_meta"}
    return {"content": [{"type": "text", "text": json.dumps(kept, sort_keys=True)}]}


def _foreign(params: Any) -> dict[str, Any]:
    """The metadata of a call that belongs to neither the protocol nor a hop."""
    meta = (params or {}).get("_meta") or {}
    return {key: value for key, value in meta.items() if key.startswith("example.org/")}
