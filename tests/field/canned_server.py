"""Prepared answers of an MCP server: `python canned_server.py SPECIFICATION.json` gives them over stdio."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Answers:
    """Prepared answers, by request."""

    def __init__(self, specification: str) -> None:
        self._given = json.loads(specification)

    def to(self, request: Mapping[str, Any]) -> bytes | None:
        """Return the response to a message; None for a notification."""
        if "id" not in request or "method" not in request:
            return None
        prepared = self._prepared(request)
        if prepared is None:
            return self._message(request, {"result": self._usual(request)})
        if "bytes" in prepared:
            return base64.b64decode(prepared["bytes"]).replace(b"%ID%", json.dumps(request["id"]).encode())
        value = prepared["value"]
        if isinstance(value, dict) and value.keys() == {"message"}:
            return self._message(request, value["message"])
        return self._message(request, {"result": value})

    def _prepared(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        parameters = request.get("params") or {}
        name = parameters.get("name") or parameters.get("uri") or json.dumps(parameters.get("cursor"))
        answers: dict[str, Any] = self._given["answers"]
        return answers.get(f"{request['method']}:{name}") or answers.get(request["method"])

    def _usual(self, request: Mapping[str, Any]) -> dict[str, Any]:
        parameters = request.get("params") or {}
        match request["method"]:
            case "initialize":
                return {
                    "protocolVersion": parameters["protocolVersion"],
                    "capabilities": self._given["capabilities"],
                    "serverInfo": {"name": "canned", "version": "1"},
                }
            case "tools/list":
                return {"tools": [{"inputSchema": {"type": "object"}, **tool} for tool in self._given["tools"]]}
            case "tools/call":
                # Tests read here what reached the server.
                return {"content": [{"type": "text", "text": json.dumps(parameters.get("arguments"))}]}
            case _:
                return {}

    def _message(self, request: Mapping[str, Any], rest: Mapping[str, Any]) -> bytes:
        if request["method"] == "server/discover":
            rest = {"error": {"code": -32601, "message": "Method not found"}}
        return json.dumps({"jsonrpc": "2.0", "id": request["id"], **rest}).encode()


def main() -> None:
    """Serve stdin and stdout."""
    answers = Answers(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for line in sys.stdin:
        if (response := answers.to(json.loads(line))) is not None:
            sys.stdout.buffer.write(response + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
