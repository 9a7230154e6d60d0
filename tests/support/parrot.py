"""A server that answers word for word what its client sends it to say, over stdio, HTTP or the transport of 2024-11-05.

`say` answers with its argument `result`; `write` with the bytes of its argument `raw` (latin-1), in which ID stands for
the request's id; `work` over stdio reports progress in `steps` with a `pause` of seconds before each. Prompts,
resources and completions answer with `result` as well, which stands as JSON in an argument.

`python parrot.py [--modern]` is the process.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote, unquote

NOTHING = b""
SCHEMA = {"type": "object"}
TOOLS = [{"name": name, "inputSchema": SCHEMA} for name in ("say", "write", "work")]
DECLARED = {"name": "say_declared", "inputSchema": SCHEMA, "outputSchema": {"type": "object"}}
CACHEABLE = {"ttlMs": 0, "cacheScope": "private"}
CAPABILITIES: dict[str, Any] = {"tools": {}, "prompts": {}, "resources": {}, "completions": {}}
INFO = {"name": "parrot", "version": "1"}
MODERN = "2026-07-28"


def resource_saying(result: Any) -> str:
    """The URI of the resource whose contents are this result."""
    return f"parrot://said/{quote(json.dumps(result), safe='')}"


def reply(message: dict[str, Any], *, modern: bool = False) -> bytes:
    """The bytes that answer a message; none for a notification."""
    method, params = message.get("method"), message.get("params") or {}
    arguments = params.get("arguments") or {}
    if "id" not in message:
        return NOTHING
    if method == "tools/call" and params["name"] == "write":
        return str(arguments["raw"]).replace("ID", json.dumps(message["id"])).encode("latin-1")
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], **_body(method, params, arguments, modern)}).encode()


def _body(method: str | None, params: dict[str, Any], arguments: dict[str, Any], modern: bool) -> dict[str, Any]:
    refused = {"error": {"code": -32601, "message": "this server speaks one era of the protocol only"}}
    result: Any
    match method:
        case "initialize":
            if modern:
                return refused
            result = {"protocolVersion": params["protocolVersion"], "capabilities": CAPABILITIES, "serverInfo": INFO}
        case "server/discover":
            if not modern:
                return refused
            result = {"supportedVersions": [MODERN], "capabilities": CAPABILITIES, "serverInfo": INFO, **CACHEABLE}
        case "tools/list":
            result = {"tools": [*TOOLS, DECLARED], **CACHEABLE}
        case "prompts/list":
            result = {"prompts": [{"name": "said", "arguments": [{"name": "result"}]}], **CACHEABLE}
        case "resources/list":
            result = {"resources": [], **CACHEABLE}
        case "resources/templates/list":
            result = {"resourceTemplates": [{"name": "said", "uriTemplate": "parrot://said/{result}"}], **CACHEABLE}
        case "tools/call":
            return {"result": arguments.get("result", {"content": "done"})}
        case "prompts/get":
            return {"result": json.loads(arguments["result"])}
        case "resources/read":
            return {"result": json.loads(unquote(params["uri"].removeprefix("parrot://said/")))}
        case "completion/complete":
            return {"result": json.loads(params["argument"]["value"])}
        case _:
            result = {}
    return {"result": {**result, "resultType": "complete"} if modern else result}


def http_app(*, modern: bool = False, events: bool = False) -> Any:
    """The server as an ASGI application; with `events`, every answer is a server-sent event."""
    from starlette.requests import Request
    from starlette.responses import Response

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        if request.method != "POST":
            await Response(status_code=405)(scope, receive, send)
            return
        content = reply(json.loads(await request.body()), modern=modern)
        if not content:
            response = Response(status_code=202)
        elif events:
            response = Response(b"event: message\ndata: " + content + b"\n\n", media_type="text/event-stream")
        else:
            response = Response(content, media_type="application/json")
        await response(scope, receive, send)

    return app


def sse_app() -> Any:
    """The server over the transport of 2024-11-05, at `/sse`, for one client."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    replies: asyncio.Queue[bytes] = asyncio.Queue()

    async def connect(_request: Request) -> Response:
        async def stream() -> AsyncIterator[bytes]:
            yield b"event: endpoint\ndata: /messages\n\n"
            while True:
                content = await replies.get()
                yield b"event: message\ndata: " + content + b"\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def take(request: Request) -> Response:
        if content := reply(json.loads(await request.body())):
            replies.put_nowait(content)
        return Response(status_code=202)

    return Starlette(routes=[Route("/sse", connect), Route("/messages", take, methods=["POST"])])


def work(message: dict[str, Any]) -> None:
    """Report progress of a request, step by step."""
    params = message["params"]
    for step in range(params["arguments"]["steps"]):
        time.sleep(params["arguments"]["pause"])
        progress = {"progressToken": params["_meta"]["progressToken"], "progress": step + 1}
        told = {"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}
        sys.stdout.buffer.write(json.dumps(told).encode() + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    """Serve stdin and stdout."""
    for line in sys.stdin.buffer:
        if not line.strip():
            continue
        message = json.loads(line)
        if message.get("method") == "tools/call" and message["params"]["name"] == "work":
            work(message)
        content = reply(message, modern="--modern" in sys.argv)
        is_raw = message.get("method") == "tools/call" and message["params"]["name"] == "write"
        sys.stdout.buffer.write(content if is_raw or not content else content + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
