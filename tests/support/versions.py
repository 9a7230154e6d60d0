"""A server that takes some protocol versions only, and refuses the others as it is told: over stdio, HTTP or SSE.

`python versions.py SPECIFICATION` is the process; the specification is JSON.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.threaded_http import PlainHandler, threaded

HANG_SECONDS = 60


def refusal(how: str, request: dict[str, Any], takes: list[str]) -> dict[str, Any] | None:
    """Return the response that refuses a version; None where there is none."""
    asked = request["params"]["protocolVersion"]
    match how:
        case "supported":
            data = {"supported": takes, "requested": asked}
            error = {"code": -32602, "message": "Unsupported protocol version", "data": data}
        case "words":
            error = {"code": -32000, "message": f"version {asked} is not supported; use {' or '.join(takes)}"}
        case "bare" | "exits after":
            error = {"code": -32602, "message": "Invalid params"}
        case "internal":
            error = {"code": -32603, "message": "Internal error"}
        case "invalid_request":
            error = {"code": -32600, "message": "Invalid Request"}
        case _:
            return None
    return {"jsonrpc": "2.0", "id": request["id"], "error": error}


def answer(request: dict[str, Any], says: str) -> dict[str, Any]:
    """Return the response to a request in a version that is taken."""
    match request["method"]:
        case "initialize":
            version = says or request["params"]["protocolVersion"]
            info = {"name": "versions", "version": "1"}
            result: dict[str, Any] = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            result = {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            result = {"content": [{"type": "text", "text": "fine"}]}
        case _:
            result = {}
    return {"jsonrpc": "2.0", "id": request["id"], "result": result}


def main() -> None:
    """Serve stdin and stdout; each version that is offered is noted in a file."""
    given = json.loads(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        response: dict[str, Any] | None = answer(request, given.get("says", ""))
        if request["method"] == "initialize":
            version = request["params"]["protocolVersion"]
            with Path(given["offered"]).open("a", encoding="utf-8") as offered:
                offered.write(version + "\n")
            if version not in given["takes"]:
                response = refusal(given["how"], request, given["takes"])
                if response is None or given["how"] == "exits after":
                    sys.stdout.write(json.dumps(response) + "\n" if response else "")
                    sys.exit(1)
        elif request["method"] == "server/discover":
            response = {"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "unknown"}}
        sys.stdout.write(json.dumps(response) + "\n")
        sys.stdout.flush()


class VersionServer:
    """The same over HTTP (`/mcp`) and SSE (`/sse`)."""

    def __init__(self, how: str, takes: list[str], says: str = "", discover: str = "404") -> None:
        self.how = how
        self.takes = takes
        self.says = says
        self.discover = discover
        self.offered: list[str] = []
        self.named: list[str | None] = []  # the version in the header of each request but the first
        self.url = ""
        self.ends = threading.Event()

    def handler(self) -> type[PlainHandler]:
        """Return what serves one connection."""
        server = self
        streams: dict[str, queue.Queue[str | None]] = {}

        class Handler(PlainHandler):
            def get(self) -> None:
                if not self.path.startswith("/sse"):
                    super().get()
                    return
                events = streams.setdefault(str(len(streams)), queue.Queue())
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("connection", "close")
                self.end_headers()
                self.wfile.write(f"event: endpoint\ndata: /messages?id={len(streams) - 1}\n\n".encode())
                while (event := events.get()) is not None:
                    self.wfile.write(f"event: message\ndata: {event}\n\n".encode())
                self.close_connection = True

            def post(self) -> None:
                request = self.received()
                method = request.get("method")
                if "id" not in request:
                    self.respond(202)
                elif method == "server/discover":
                    self._discover()
                elif method != "initialize":
                    server.named.append(self.headers.get("mcp-protocol-version"))
                    self._answer(answer(request, ""))
                else:
                    version = request["params"]["protocolVersion"]
                    server.offered.append(version)
                    if version in server.takes:
                        self._answer(answer(request, server.says))
                    else:
                        self._refuse(request)

            def _discover(self) -> None:
                match server.discover:
                    case "hangs":
                        server.ends.wait(HANG_SECONDS)
                        self.close_connection = True
                    case "closes":
                        self.close_connection = True
                    case status:
                        self.respond(int(status))

            def _refuse(self, request: dict[str, Any]) -> None:
                if server.how == "closes":
                    self.close_connection = True
                    if self.path.startswith("/messages"):
                        streams[self.path.rpartition("=")[2]].put(None)
                elif server.how.startswith("400"):
                    text = "Bad Request: Unsupported protocol version"
                    known = refusal(server.how.removeprefix("400 "), request, server.takes)
                    if known is None:
                        self.respond(400, text.encode(), "text/plain")
                    else:
                        self.respond(400, json.dumps(known).encode())
                else:
                    response = refusal(server.how, request, server.takes)
                    assert response is not None
                    self._answer(response)

            def _answer(self, response: dict[str, Any]) -> None:
                if self.path.startswith("/messages"):
                    streams[self.path.rpartition("=")[2]].put(json.dumps(response))
                    self.respond(202)
                else:
                    self.respond(200, json.dumps(response).encode())

        return Handler


@contextmanager
def version_server(how: str, takes: list[str], **more: str) -> Iterator[VersionServer]:
    """Serve in a thread of its own."""
    server = VersionServer(how, takes, **more)
    try:
        with threaded(server.handler()) as url:
            server.url = url
            yield server
    finally:
        server.ends.set()


if __name__ == "__main__":
    main()
