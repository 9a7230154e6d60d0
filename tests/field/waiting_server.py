"""An MCP server over stdio whose calls wait until a file exists: `python waiting_server.py`."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

WAIT_SECONDS = 60
_writing = threading.Lock()


def send(message: dict[str, Any]) -> None:
    with _writing:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def call(request_id: object, arguments: dict[str, Any]) -> None:
    if "began" in arguments:
        Path(arguments["began"]).touch()
    until = time.monotonic() + WAIT_SECONDS
    while "until" in arguments and not Path(arguments["until"]).exists() and time.monotonic() < until:
        time.sleep(0.01)
    text = json.dumps(arguments.get("say"))
    send({"id": request_id, "result": {"content": [{"type": "text", "text": text}]}})


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        params = request.get("params") or {}
        match request.get("method"):
            case "initialize":
                info = {"name": "waiting", "version": "1"}
                answer = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
                send({"id": request["id"], "result": {**answer, "serverInfo": info}})
            case "tools/list":
                send({"id": request["id"], "result": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}})
            case "tools/call":
                threading.Thread(target=call, args=(request["id"], params["arguments"]), daemon=True).start()
            case "server/discover":
                send({"id": request["id"], "error": {"code": -32601, "message": "Method not found"}})
            case _ if "id" in request:
                send({"id": request["id"], "result": {}})


if __name__ == "__main__":
    main()
