"""What a faulty upstream answers, whatever carries it; the standard library alone, so that a restart takes 30 ms."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

MODERN = "2026-07-28"
METHOD_NOT_FOUND = -32601

ACT, LOOK = "act", "look"
"""A tool that may be executed once at most, and one that is marked idempotent."""

_SCHEMA = {
    "type": "object",
    "properties": {
        "nonce": {"type": "string"},
        "mood": {"type": "string", "description": "how the upstream behaves on this call"},
        "milliseconds": {"type": "integer"},
    },
    "required": ["nonce"],
}
TOOLS: list[dict[str, Any]] = [
    {"name": ACT, "description": "Do something that must not be done twice.", "inputSchema": _SCHEMA},
    {
        "name": LOOK,
        "description": "Look at something, as often as one likes.",
        "inputSchema": _SCHEMA,
        "annotations": {"readOnlyHint": True, "idempotentHint": True},
    },
]


def proof(upstream_id: str, tool: str, nonce: str) -> str:
    """What only this tool of this upstream answers to this call."""
    return hashlib.sha256(f"{upstream_id}:{tool}:{nonce}".encode()).hexdigest()


class Answers:
    """One upstream's side of the protocol, in one version; every execution is written down before it is answered."""

    def __init__(self, upstream_id: str, version: str, journal: Path) -> None:
        self._upstream_id = upstream_id
        self._version = version
        self._journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    @property
    def is_modern(self) -> bool:
        """Whether it speaks without a handshake, and nothing else."""
        return self._version == MODERN

    def to_request(self, method: str) -> dict[str, Any]:
        """`result` or `error` of anything but a tool call."""
        match method:
            case "initialize" if not self.is_modern:
                info = {"name": self._upstream_id, "version": "1"}
                return _result({"protocolVersion": self._version, "capabilities": {"tools": {}}, "serverInfo": info})
            case "server/discover" if self.is_modern:
                return self._cached({"supportedVersions": [MODERN], "capabilities": {"tools": {}}})
            case "tools/list":
                return self._cached({"tools": TOOLS})
            case "ping":
                return _result({})
            case _:
                return {"error": {"code": METHOD_NOT_FOUND, "message": f"no method {method!r}"}}

    def execute(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Do the work: one line in the journal, and the proof as the result."""
        nonce = arguments["nonce"]
        os.write(self._journal, f"{nonce} {tool}\n".encode())
        text = proof(self._upstream_id, tool, nonce)
        result: dict[str, Any] = {"content": [{"type": "text", "text": text}]}
        if arguments.get("mood") == "fails":
            result["isError"] = True
        if self.is_modern:
            result["resultType"] = "complete"
        return _result(result)

    def _cached(self, result: dict[str, Any]) -> dict[str, Any]:
        extra = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if self.is_modern else {}
        return _result({**result, **extra})


def _result(result: dict[str, Any]) -> dict[str, Any]:
    return {"result": result}
