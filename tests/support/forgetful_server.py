"""A server over HTTP that forgets its sessions when a test says so, and refuses them as real servers do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.threaded_http import PlainHandler, threaded

OURS = "the id of the request"
"""In place of an id in a refusal."""


@dataclass(frozen=True)
class Refusal:
    """How a server refuses a session that it does not know; a dictionary is sent as JSON."""

    status: int
    body: dict[str, Any] | str = ""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    def content(self, request_id: object) -> bytes:
        """Return the body of the response to a request."""
        if isinstance(self.body, str):
            return self.body.encode()
        text = json.dumps({**self.body, "id": request_id} if self.body.get("id") == OURS else self.body)
        return (f"event: message\ndata: {text}\n\n" if self.content_type == "text/event-stream" else text).encode()


def error(code: int, message: str, request_id: object = None, **more: Any) -> dict[str, Any]:
    """Return a JSON-RPC error."""
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message, **more}}


REFUSALS: dict[str, Refusal] = {
    "ts_404": Refusal(404, error(-32001, "Session not found")),
    "ts_example_400": Refusal(400, error(-32000, "Bad Request: No valid session ID provided")),
    "ts_example_text": Refusal(400, "Invalid or missing session ID", "text/html"),
    "ts_no_header": Refusal(400, error(-32000, "Bad Request: Mcp-Session-Id header is required")),
    "ts_not_initialized": Refusal(400, error(-32000, "Bad Request: Server not initialized")),
    "python_404": Refusal(404, error(-32600, "Session not found", "server-error")),
    "python_400": Refusal(400, error(-32600, "Bad Request: Missing session ID", "server-error")),
    "spring_404": Refusal(404, {"code": -32600, "message": "Session not found: 12"}),
    "spring_400": Refusal(400, "Session ID missing in mcp-session-id header", "text/plain"),
    "go_404": Refusal(404, "session not found\n", "text/plain"),
    "go_400": Refusal(400, "Invalid session ID\n", "text/plain"),
    "dotnet_404": Refusal(404, error(-32001, "Session not found", "")),
    "rust_401": Refusal(401, "Unauthorized: Session not found", "text/plain"),
    "rust_422": Refusal(422, "Unexpected message, expect initialize request", "text/plain"),
    "cloudflare_400": Refusal(400, error(-32000, "Bad Request: Mcp-Session-Id header is required"), headers={"x": "y"}),
    "conflict": Refusal(409, "Conflict", "text/plain"),
    "gone": Refusal(410),
    "gone_with_error": Refusal(410, error(-32000, "gone", OURS)),
    "not_found_of_this_request": Refusal(404, error(-32001, "Session not found", OURS)),
    "precondition": Refusal(412, "<html><title>412</title></html>", "text/html"),
    "silent_400": Refusal(400),
    "other_language": Refusal(400, "Ungültige Sitzung", "text/plain"),
    "forbidden": Refusal(403, {"detail": "unknown session"}),
    "challenged_401": Refusal(401, "Session not found", "text/plain", {"www-authenticate": 'Bearer realm="mcp"'}),
    "failed_500": Refusal(500, "Error: Session not found at Server.handle", "text/plain"),
    "json_200": Refusal(200, error(-32600, "Session not found", OURS)),
    "json_200_null": Refusal(200, error(-32000, "Invalid session")),
    "json_200_not_initialized": Refusal(200, error(-32002, "Server not initialized", OURS)),
    "json_200_silent": Refusal(200, error(-32001, "Unknown client", OURS)),
    "event_200": Refusal(200, error(-32600, "Session not found", OURS), "text/event-stream"),
    "event_200_null": Refusal(200, error(-32001, "Session terminated"), "text/event-stream"),
}
"""Refusals as published servers and SDKs give them, and variants that differ in one part."""


class ForgetfulServer:
    """A handshake server with one tool, one prompt and one resource."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        self.url = ""
        self.known: set[str] = set()
        self.opened = 0
        self.executed: list[str] = []
        self.answers: dict[str, Any] = {}  # the JSON-RPC error or result that a method is answered with, by method
        self.refused: dict[str, Refusal] = {}  # how a method is refused in a session that is known
        self.lists_of: list[str] = []
        self.keeps_none = False
        self.prompt = "p"
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Forget every session, as after a restart."""
        self.known.clear()

    def open(self) -> str:
        """Open a session."""
        with self._lock:
            self.opened += 1
            session = f"s-{self.opened}"
            if not self.keeps_none:
                self.known.add(session)
            return session

    def result(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a request in a session that is known."""
        method = request["method"]
        if method in self.answers:
            answer: dict[str, Any] = self.answers[method]
            return answer
        match method:
            case "initialize":
                capabilities = {"tools": {"listChanged": True}, "prompts": {}, "resources": {"subscribe": True}}
                info = {"name": "forgetful", "version": "1"}
                version = request["params"]["protocolVersion"]
                return {"result": {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}}
            case "tools/list":
                tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("t", *self.lists_of)]
                return {"result": {"tools": tools}}
            case "prompts/list":
                return {"result": {"prompts": [{"name": self.prompt}]}}
            case "prompts/get":
                return {"result": {"messages": [{"role": "user", "content": {"type": "text", "text": "fine"}}]}}
            case "resources/list":
                return {"result": {"resources": [{"uri": "x://r", "name": "r"}]}}
            case "resources/templates/list":
                return {"result": {"resourceTemplates": []}}
            case "resources/read":
                return {"result": {"contents": [{"uri": "x://r", "text": "fine"}]}}
            case "tools/call":
                return {"result": {"content": [{"type": "text", "text": "fine"}]}}
            case _:
                return {"result": {}}


def _handler(server: ForgetfulServer) -> type[PlainHandler]:
    class Handler(PlainHandler):
        def post(self) -> None:
            request = self.received()
            method = str(request.get("method"))
            if method == "server/discover":
                self.respond(400, b"no session", "text/plain")
            elif method == "initialize":
                self._answer(request, {"mcp-session-id": server.open()})
            elif self.headers.get("mcp-session-id") not in server.known:
                self._refuse(server.refusal, request)
            elif "id" not in request:
                self.respond(202)
            else:
                server.executed.append(method)
                if (refusal := server.refused.get(method)) is None:
                    self._answer(request, {})
                else:
                    self._refuse(refusal, request)

        def _refuse(self, refusal: Refusal, request: Mapping[str, Any]) -> None:
            self.respond(refusal.status, refusal.content(request.get("id")), refusal.content_type, refusal.headers)

        def _answer(self, request: Mapping[str, Any], headers: Mapping[str, str]) -> None:
            body = json.dumps({"jsonrpc": "2.0", "id": request["id"], **server.result(request)}).encode()
            self.respond(200, body, headers=headers)

    return Handler


@contextmanager
def forgetful(refusal: Refusal, prepare: Callable[[ForgetfulServer], None] | None = None) -> Iterator[ForgetfulServer]:
    """Serve over HTTP in a thread of its own."""
    server = ForgetfulServer(refusal)
    if prepare is not None:
        prepare(server)
    with threaded(_handler(server)) as url:
        server.url = url
        yield server
