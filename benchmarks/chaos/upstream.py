"""An upstream that fails as it is told: in the arguments of a call, by a signal, or by a file when it starts.

    python -m benchmarks.chaos.upstream --id s01 --version 2025-11-25 --folder DIR [--port 8000] [--stubborn]

A call's `mood`: fine, slow, fails (an error result), noisy (garbage before the answer), twice (a second, wrong
answer), stray (an answer to nobody's request first), garbled (no JSON), cut (half an answer, then the end), mute
(never answers), dies_before and dies_after the execution. SIGUSR1 makes it noisy by itself. A file `slow` holds the
seconds that its next start takes.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.chaos.answers import Answers

WRONG = {"result": {"content": [{"type": "text", "text": "not what was asked"}]}}
GARBAGE = (
    b"npm WARN deprecated: this is no protocol\n"
    b'{"jsonrpc": "2.0", "id": 1, "resu\n'
    b"\xff\xfe\x00 no UTF-8 \xc3\x28\n"
    b"null\n[]\n\n{}\n"
    b'{"jsonrpc":"2.0","id":987654321,"result":{"content":[{"type":"text","text":"stray"}]}}\n'
    b'{"jsonrpc":"2.0","method":"notifications/of_nothing","params":{"x":1}}\n'
    b'{"jsonrpc":"2.0","id":"s-1","method":"no/such/method"}\n'
)
PATIENCE_SECONDS = 60.0
"""How long a mute upstream keeps an HTTP request."""


def main() -> None:
    """Serve until told to end."""
    parser = argparse.ArgumentParser(description="An upstream that fails as it is told.")
    parser.add_argument("--id", required=True)
    parser.add_argument("--version", required=True, help="the one protocol version it speaks")
    parser.add_argument("--folder", type=Path, required=True, help="journal, process ids, and what it is told")
    parser.add_argument("--port", type=int, help="serve HTTP there instead of stdio")
    parser.add_argument("--stubborn", action="store_true", help="stay when stdin ends")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    with (folder / "pids").open("a", encoding="ascii") as pids:
        pids.write(f"{os.getpid()}\n")
    slow = folder / "slow"
    if slow.exists():
        seconds = float(slow.read_text(encoding="ascii"))
        slow.unlink(missing_ok=True)
        time.sleep(seconds)
    answers = Answers(arguments.id, arguments.version, folder / "journal")
    if arguments.port is None:
        _serve_stdio(answers, stubborn=arguments.stubborn)
    else:
        _serve_http(answers, arguments.port)


def _serve_stdio(answers: Answers, *, stubborn: bool) -> None:
    # Single writes of less than a page are whole, from any thread and from within a signal's handler.
    signal.signal(signal.SIGUSR1, lambda *_: os.write(1, GARBAGE))
    for line in sys.stdin.buffer:
        message = json.loads(line)
        method, request_id = message.get("method"), message.get("id")
        if method is None or request_id is None:
            continue
        if method != "tools/call":
            _write({"id": request_id, **answers.to_request(method)})
            continue
        params = message["params"]
        delay = params["arguments"].get("milliseconds", 0) / 1000
        if delay:
            timer = threading.Timer(delay, _call_over_stdio, (answers, request_id, params))
            timer.daemon = True
            timer.start()
        else:
            _call_over_stdio(answers, request_id, params)
    while stubborn:
        time.sleep(PATIENCE_SECONDS)


def _call_over_stdio(answers: Answers, request_id: Any, params: dict[str, Any]) -> None:
    mood = params["arguments"].get("mood")
    if mood == "dies_before":
        os._exit(3)
    answer = {"id": request_id, **answers.execute(params["name"], params["arguments"])}
    match mood:
        case "dies_after":
            os._exit(3)
        case "mute":
            return
        case "garbled":
            os.write(1, b'{"jsonrpc":"2.0","id":}\n')
            return
        case "cut":
            os.write(1, json.dumps({"jsonrpc": "2.0", **answer}).encode()[:40])
            os._exit(3)
        case "noisy":
            os.write(1, GARBAGE)
        case "stray":
            _write({"id": f"{request_id}-other", **WRONG})
    _write(answer)
    if mood == "twice":
        _write({"id": request_id, **WRONG})


def _write(message: dict[str, Any]) -> None:
    os.write(1, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


class _Handler(BaseHTTPRequestHandler):
    """One connection of an HTTP client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    answers: ClassVar[Answers]
    sessions: ClassVar[set[str]] = set()
    noise: ClassVar[list[int]] = [0]

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method, request_id = message.get("method"), message.get("id")
        session = self.headers.get("mcp-session-id")
        if method == "initialize" and not self.answers.is_modern:
            session = os.urandom(16).hex()
            self.sessions.add(session)
        elif not self.answers.is_modern and method != "server/discover" and session not in self.sessions:
            self._send({"error": {"code": -32600, "message": "Session not found"}, "id": request_id}, status=404)
            return
        if method is None or request_id is None:
            self._send_bytes(b"", status=202)
        elif method == "tools/call":
            self._call(request_id, message["params"])
        else:
            self._send({"id": request_id, **self.answers.to_request(method)}, session=session)

    def do_GET(self) -> None:
        self._send_bytes(b"", status=405)

    def do_DELETE(self) -> None:
        self.sessions.discard(self.headers.get("mcp-session-id", ""))
        self._send_bytes(b"")

    def _call(self, request_id: Any, params: dict[str, Any]) -> None:
        mood = params["arguments"].get("mood")
        time.sleep(params["arguments"].get("milliseconds", 0) / 1000)
        if mood == "dies_before":
            os._exit(3)
        answer = {"id": request_id, **self.answers.execute(params["name"], params["arguments"])}
        match mood:
            case "dies_after":
                os._exit(3)
            case "mute":
                # Readable means that the client went away, or sends what no answer will come to.
                select.select([self.connection], [], [], PATIENCE_SECONDS)
                self.close_connection = True
            case "cut":
                self._send(answer, promised=1000)
                self.close_connection = True
            case "garbled":
                self._send_bytes(b'{"jsonrpc":"2.0","id":}')
            case "noisy" | "stray" | "twice":
                # Strays are answers to no request; whatever follows the answer comes too late to count.
                lines = [
                    b": a comment",
                    b'data: {"jsonrpc":"2.0","method":"notifications/of_nothing"}',
                    b"data: " + json.dumps({"jsonrpc": "2.0", **answer}).encode(),
                    b"data: " + json.dumps({"jsonrpc": "2.0", "id": request_id, **WRONG}).encode(),
                ]
                self._send_bytes(b"".join(line + b"\n\n" for line in lines), content_type="text/event-stream")
            case _:
                self._send(answer)

    def _send(
        self, message: dict[str, Any], *, status: int = 200, session: str | None = None, promised: int = 0
    ) -> None:
        content = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._send_bytes(content, status=status, session=session, promised=promised)

    def _send_bytes(
        self,
        content: bytes,
        *,
        status: int = 200,
        session: str | None = None,
        content_type: str = "application/json",
        promised: int = 0,
    ) -> None:
        if self.noise[0] > 0 and content:
            self.noise[0] -= 1
            status, content = (502, b"<html>bad gateway</html>") if self.noise[0] % 2 else (200, b"\xff\xfe{")
        self.send_response(status)
        if content:
            self.send_header("content-type", content_type)
        if session is not None:
            self.send_header("mcp-session-id", session)
        self.send_header("content-length", str(len(content) + promised))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


class _HttpServer(ThreadingHTTPServer):
    """Shares its port with the driver, which keeps it while no process listens."""

    daemon_threads = True

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may leave whenever they like."""


def _serve_http(answers: Answers, port: int) -> None:
    _Handler.answers = answers
    signal.signal(signal.SIGUSR1, lambda *_: _Handler.noise.__setitem__(0, 3))
    with _HttpServer(("127.0.0.1", port), _Handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
