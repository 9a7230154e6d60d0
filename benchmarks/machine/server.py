"""A small server for many processes: it says what it sees, asks, counts, reports, waits, with the nonce of the call.

    python -S -E benchmarks/machine/server.py --id s01 --folder DIR [--modern] [FILE]

The standard library alone, so that two hundred of them fit and each starts in 30 ms. In the folder, `pids` has a line
for each start and `journal` one for each execution, written before it is answered.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
METHOD_NOT_FOUND, INVALID_PARAMS = -32601, -32602
FORM = {"type": "object", "properties": {"answer": {"type": "string"}}}
LINE = "{nonce} line {number} of what {server} was asked for"

_NONCE = {"nonce": {"type": "string"}}
_NUMBER = {"type": "integer"}


def _tool(name: str, description: str, /, *, idempotent: bool = False, **properties: Any) -> dict[str, Any]:
    hints = {"readOnlyHint": True, "idempotentHint": True} if idempotent else {"destructiveHint": False}
    schema = {"type": "object", "properties": {**_NONCE, **properties}, "required": ["nonce"]}
    return {"name": name, "description": description, "inputSchema": schema, "annotations": hints}


TOOLS = (
    _tool("act", "Do something that must not be done twice."),
    _tool("look", "Look at something, as often as one likes.", idempotent=True),
    _tool("fill", "Answer with so many characters.", idempotent=True, size=_NUMBER),
    _tool("lines", "Answer with so many lines of text.", idempotent=True, count=_NUMBER),
    _tool("whoami", "Give the working folder and the variables of this server.", idempotent=True),
    _tool("count", "Count the calls of this session."),
    _tool("ask", "Ask the user, the model or the roots of the client.", question={"type": "string"}),
    _tool("report", "Report progress in so many steps.", idempotent=True, steps=_NUMBER),
    _tool("log", "Write a line to the log.", idempotent=True),
    _tool("wait", "Answer after so many milliseconds.", idempotent=True, milliseconds=_NUMBER),
    _tool("grow", "Have one tool more, of this name.", extra={"type": "string"}),
)


def question(kind: str, nonce: str) -> dict[str, Any]:
    """The request by which a call asks its client."""
    match kind:
        case "sampling":
            message = {"role": "user", "content": {"type": "text", "text": nonce}}
            return {"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": 20}}
        case "roots":
            return {"method": "roots/list"}
        case _:
            return {"method": "elicitation/create", "params": {"message": nonce, "requestedSchema": FORM}}


def answer_of(result: dict[str, Any]) -> str:
    """What a client said to a question."""
    if "roots" in result:
        return str(result["roots"][0]["uri"])
    return str(result["content"].get("answer", result["content"].get("text")))


class Server:
    """One session over stdin and stdout."""

    def __init__(self, server_id: str, folder: Path, *, modern: bool) -> None:
        self._id = server_id
        self._modern = modern
        self._journal = os.open(folder / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._tools = list(TOOLS)
        self._count = 0
        self._asked: dict[str, tuple[Any, str]] = {}
        self._waiting: dict[Any, tuple[threading.Timer, str]] = {}
        self._turn = threading.Lock()

    def serve(self) -> None:
        """Until stdin ends."""
        for line in sys.stdin.buffer:
            message = json.loads(line)
            method = message.get("method")
            if method is None:
                self._answered(message)
            elif method == "notifications/cancelled":
                self._cancelled(message["params"].get("requestId"))
            elif "id" in message:
                self._request(message["id"], method, message.get("params") or {})

    def _request(self, request_id: Any, method: str, params: dict[str, Any]) -> None:
        match method:
            case "tools/call":
                self._call(request_id, params)
            case "tools/list":
                self._answer(request_id, self._cached({"tools": self._tools}))
            case "initialize" if not self._modern:
                about = {"protocolVersion": HANDSHAKE, "serverInfo": {"name": self._id, "version": "1"}}
                self._answer(request_id, {**about, "capabilities": {"tools": {"listChanged": True}, "logging": {}}})
            case "server/discover" if self._modern:
                able = {"tools": {"listChanged": True}}
                self._answer(request_id, self._cached({"supportedVersions": [MODERN], "capabilities": able}))
            case "ping" | "logging/setLevel":
                self._answer(request_id, {})
            case _:
                error = {"code": METHOD_NOT_FOUND, "message": f"no method {method!r}"}
                self._write({"id": request_id, "error": error})

    def _call(self, request_id: Any, params: dict[str, Any]) -> None:
        name, given = params["name"], params.get("arguments") or {}
        nonce = str(given.get("nonce"))
        responses = params.get("inputResponses")
        if responses is None:
            # A call of the stateless era that comes back with answers is the same execution.
            self._note(nonce, name)
        match name:
            case "fill":
                self._text(request_id, nonce + "x" * (given["size"] - len(nonce)))
            case "lines":
                lines = (LINE.format(nonce=nonce, number=n, server=self._id) for n in range(given["count"]))
                self._text(request_id, "\n".join(lines))
            case "whoami":
                seen = {key: os.environ.get(key) for key in ("TOKEN", "PATH")}
                self._text(request_id, json.dumps({"nonce": nonce, "folder": str(Path.cwd()), **seen}))
            case "count":
                self._count += 1
                self._text(request_id, f"{nonce} {self._count}")
            case "ask":
                self._ask(request_id, nonce, str(given["question"]), responses)
            case "report":
                token = (params.get("_meta") or {}).get("progressToken")
                for step in range(1, given["steps"] + 1):
                    if token is not None:
                        about = {"progressToken": token, "progress": step, "message": f"{nonce} {step}"}
                        self._notify("notifications/progress", about)
                self._text(request_id, f"{nonce} reported")
            case "log":
                self._notify("notifications/message", {"level": "error", "logger": self._id, "data": nonce})
                self._text(request_id, f"{nonce} logged")
            case "wait":
                timer = threading.Timer(given["milliseconds"] / 1000, self._waited, (request_id, nonce))
                timer.daemon = True
                self._waiting[request_id] = timer, nonce
                timer.start()
            case "grow":
                self._tools.append(_tool(str(given["extra"]), "One tool more.", idempotent=True))
                self._notify("notifications/tools/list_changed")
                self._text(request_id, f"{nonce} grown")
            case _:
                self._text(request_id, f"{nonce} {self._id} {name}")

    def _ask(self, request_id: Any, nonce: str, kind: str, responses: Any) -> None:
        asked = question(kind, nonce)
        if not self._modern:
            key = f"{nonce}?"
            self._asked[key] = request_id, nonce
            self._write({"id": key, **asked})
        elif responses is None:
            round_ = {"resultType": "input_required", "inputRequests": {"q": asked}, "requestState": nonce}
            self._write({"id": request_id, "result": round_})
        else:
            self._text(request_id, f"{nonce} {answer_of(responses['q'])}")

    def _answered(self, message: dict[str, Any]) -> None:
        request_id, nonce = self._asked.pop(message["id"], (None, ""))
        if request_id is None:
            return
        if "error" in message:
            self._text(request_id, f"{nonce} refused: {message['error']['message']}", is_error=True)
        else:
            self._text(request_id, f"{nonce} {answer_of(message['result'])}")

    def _waited(self, request_id: Any, nonce: str) -> None:
        if self._waiting.pop(request_id, None) is not None:
            self._text(request_id, f"{nonce} waited")

    def _cancelled(self, request_id: Any) -> None:
        if (waiting := self._waiting.pop(request_id, None)) is not None:
            waiting[0].cancel()
            self._note(waiting[1], "cancelled")

    def _note(self, nonce: str, what: str) -> None:
        os.write(self._journal, f"{nonce} {what}\n".encode())

    def _text(self, request_id: Any, text: str, *, is_error: bool = False) -> None:
        result: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": is_error}
        self._answer(request_id, result)

    def _cached(self, result: dict[str, Any]) -> dict[str, Any]:
        return {**result, "ttlMs": 0, "cacheScope": "private"} if self._modern else result

    def _answer(self, request_id: Any, result: dict[str, Any]) -> None:
        self._write({"id": request_id, "result": {**result, "resultType": "complete"} if self._modern else result})

    def _notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        self._write({"method": method, "params": params or {}})

    def _write(self, message: dict[str, Any]) -> None:
        with self._turn:
            sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            sys.stdout.buffer.flush()


def main() -> None:
    """Serve one client until it leaves."""
    parser = argparse.ArgumentParser(description="A small server for many processes.")
    parser.add_argument("--id", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for journal and process ids")
    parser.add_argument("--modern", action="store_true", help="speak 2026-07-28 and nothing else")
    parser.add_argument("file", nargs="?", help="a relative path, of which nothing is read")
    arguments = parser.parse_args()
    with (arguments.folder / "pids").open("a", encoding="ascii") as pids:
        pids.write(f"{os.getpid()}\n")
    Server(arguments.id, arguments.folder, modern=arguments.modern).serve()


if __name__ == "__main__":
    main()
