"""Servers over HTTP without a library, in threads of a test's own process."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class PlainHandler(BaseHTTPRequestHandler):
    """One connection to an MCP server without streams and without a log."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.get()

    def do_POST(self) -> None:
        self.post()

    def do_DELETE(self) -> None:
        self.delete()

    def get(self) -> None:
        """Refuse the stream of a session."""
        self.respond(405)

    def post(self) -> None:
        """Answer a message."""
        raise NotImplementedError

    def delete(self) -> None:
        """Take the end of a session."""
        self.respond(200)

    def received(self) -> dict[str, Any]:
        """Read the message of this request."""
        message: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["content-length"])))
        return message

    def respond(
        self,
        status: int,
        body: bytes = b"",
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send the whole response."""
        self.send_response(status)
        own = {"content-type": content_type, "content-length": str(len(body))}
        for name, value in {**own, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@contextmanager
def threaded(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve in a thread of its own; yield the URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listener:
        listener.daemon_threads = True
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.server_address[1]}/mcp"
        finally:
            listener.shutdown()
            thread.join(10)
