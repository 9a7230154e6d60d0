"""A seed becomes requests: what clients send, bent where a gateway could be careless, and bytes broken at random."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

MODERN = "2026-07-28"
SESSION = "2025-11-25"
VERSIONS = (MODERN, "2025-11-25", "2025-06-18", "2024-11-05", "", "1", "2099-01-01", "x" * 300)

METHODS = (
    *("tools/call",) * 8,
    *("resources/read",) * 5,
    *("tools/list", "tools/call", "resources/list", "resources/read", "resources/templates/list", "prompts/list"),
    *("prompts/get", "completion/complete", "initialize", "ping", "server/discover", "logging/setLevel"),
    *("notifications/initialized", "notifications/cancelled", "resources/subscribe", "tasks/get", "nothing/here", ""),
)
META_TOOLS = ("search_tools", "tool_schema", "call_tool", "call_batch", "execute_workflow", "read_result", "search")
TOOLS = (
    "vault__open",
    "vault:open",
    "mcp__vault__open",
    "vault.open",
    "vault/open",
    "open",
    "vault__greet",
    "notes__add",
)
URIS = (
    *("file:///srv/private/plan.txt", "file:/srv/private/plan.txt", "file://localhost/srv/private/plan.txt"),
    *(
        "file:///srv/public/../private/x",
        "file:///srv/%70rivate/plan.txt",
        "FILE:///srv/private/x",
        "pml://vault/file:///srv/private/x",
    ),
    *("file:///srv/public/note.txt", "notes:///1", "http://127.0.0.1/x", "res://b", "file:////srv//private//x"),
)
PROMPTS = ("combination", "vault__combination", "vault:combination", "hello", "mcp__vault__combination")
HOSTS = ("localhost:evil.com", "evil.com", "127.0.0.1.evil.com", "[::1]:99999", "localhost@evil.com", "", "a" * 5000)
ORIGINS = (
    "null",
    "http://evil.com",
    "http://localhost:1.evil.com",
    "https://127.0.0.1@evil.com",
    "file://",
    "x" * 5000,
)
EXPRESSIONS = ("$0.a", "$0", "$x[*].y", "{{0.title}}", "${env:HOME}", "$$", "@", "[*].[*].[*]", "length(@)", "a" * 3000)
ACCEPT = "application/json, text/event-stream"
MAX_DEPTH = 6


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request to the endpoint."""

    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    path: str = ""
    verb: str = "POST"


def opening() -> Request:
    """A handshake that is as it should be."""
    about = {"protocolVersion": SESSION, "capabilities": {}, "clientInfo": {"name": "fuzz", "version": "1"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about})
    return Request(body.encode(), {"content-type": "application/json", "accept": ACCEPT})


class Inputs:
    """Requests without end; the same seed gives the same ones.

    Most are sound in their outer form, of one era or the other, so that what they hold is looked at.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._era = ""

    def next(self, session_id: str = "") -> Request:
        """The next request, of the session of this id or of none."""
        choose = self._random
        self._era = choose.choice([MODERN, MODERN, MODERN, SESSION if session_id else MODERN, SESSION, ""])
        message = self._message()
        body = json.dumps(message, ensure_ascii=choose.random() < 0.5).encode("utf-8", "surrogatepass")
        if choose.random() < 0.15:
            body = self._broken(body)
        headers = self._headers(message)
        if self._era == SESSION and session_id:
            headers |= {"mcp-session-id": session_id, "mcp-protocol-version": SESSION}
        return Request(body, headers, self._path(), self._verb())

    def _message(self) -> Any:
        choose = self._random
        if choose.random() < 0.03:
            return self._value(0)
        if choose.random() < 0.03:
            return [self._single() for _ in range(choose.randrange(30))]
        return self._single()

    def _single(self) -> dict[str, Any]:
        choose = self._random
        method: Any = choose.choice(METHODS)
        params: Any = self._params(method)
        if self._era == MODERN or (not self._era and choose.random() < 0.5):
            params = self._enveloped(params)
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": choose.randrange(10**6), "method": method, "params": params}
        if choose.random() < 0.1:
            message[choose.choice(list(message))] = self._value(0)
        if choose.random() < 0.05:
            del message[choose.choice(list(message))]
        return message

    def _enveloped(self, params: dict[str, Any]) -> dict[str, Any]:
        prefix = "io.modelcontextprotocol/"
        meta: dict[str, Any] = {
            f"{prefix}protocolVersion": MODERN,
            f"{prefix}clientInfo": {"name": "fuzz", "version": "1"},
            f"{prefix}clientCapabilities": {},
        }
        if self._random.random() < 0.1:
            meta[self._random.choice([*meta, "progressToken", "pml-gateway/query"])] = self._value(0)
        return {**params, "_meta": meta}

    def _params(self, method: str) -> dict[str, Any]:
        match method:
            case "tools/call":
                return self._tool_call()
            case "resources/read" | "resources/subscribe":
                return {"uri": self._spelled(URIS)}
            case "prompts/get":
                return {"name": self._spelled(PROMPTS), "arguments": self._value(2)}
            case "completion/complete":
                named = {"type": "ref/prompt", "name": self._spelled(PROMPTS)}
                located = {"type": "ref/resource", "uri": self._spelled(URIS)}
                ref = self._random.choice([named, located])
                return {"ref": ref, "argument": {"name": "path", "value": self._text()}}
            case "tools/list":
                return self._random.choice([{}, {"query": self._text()}, {"cursor": self._text()}])
            case "initialize":
                version = self._random.choice(VERSIONS)
                return {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "fuzz", "version": "1"}}
        return self._random.choice([{}, {"name": self._text(), "value": self._value(2)}])

    def _tool_call(self) -> dict[str, Any]:
        choose = self._random
        if choose.random() < 0.4:
            return {"name": self._spelled(TOOLS), "arguments": self._arguments()}
        name = choose.choice(META_TOOLS)
        match name:
            case "search_tools" | "search":
                arguments: Any = {"query": choose.choice([self._text(), "open the vault", "*", "vault:*", "vault__o*"])}
            case "tool_schema":
                arguments = {"names": [self._spelled(TOOLS) for _ in range(choose.randrange(4))]}
            case "call_tool":
                arguments = {"name": self._spelled(TOOLS), "arguments": self._arguments()}
            case "call_batch":
                calls = [
                    {"name": self._spelled(TOOLS), "arguments": self._arguments()} for _ in range(choose.randrange(9))
                ]
                arguments = {"calls": calls}
            case "execute_workflow":
                arguments = {"steps": [self._step() for _ in range(choose.randrange(6))]}
            case _:
                arguments = {"ref": self._text(), "path": choose.choice(EXPRESSIONS)}
        if choose.random() < 0.2:
            arguments[choose.choice([*arguments, "limit", "offset", "detail", "server"])] = self._value(1)
        return {"name": name, "arguments": arguments}

    def _step(self) -> dict[str, Any]:
        choose = self._random
        if choose.random() < 0.3:
            return {"transform": choose.choice(EXPRESSIONS)}
        return {"id": choose.choice(["a", "b", "0"]), "tool": self._spelled(TOOLS), "arguments": self._arguments()}

    def _arguments(self) -> Any:
        choose = self._random
        known: dict[str, Any] = {
            "text": choose.choice([self._text(), choose.choice(EXPRESSIONS), {"$ref": self._text()}])
        }
        return known if choose.random() < 0.7 else self._value(1)

    def _spelled(self, known: Sequence[str]) -> str:
        """One of the names, mostly bent: case, encoding, dots, controls, look-alikes."""
        text = self._random.choice(known)
        for _ in range(self._random.randrange(3)):
            text = self._random.choice(_BENDS)(self._random, text)
        return text

    def _value(self, depth: int) -> Any:
        choose = self._random
        if depth < MAX_DEPTH and choose.random() < 0.4:
            if choose.random() < 0.5:
                return [self._value(depth + 1) for _ in range(choose.randrange(4))]
            return {self._text(): self._value(depth + 1) for _ in range(choose.randrange(4))}
        if choose.random() < 0.01:
            return self._nested(choose.choice((50, 300)))
        numbers = (0, -1, 2**63, 10**400, 1e308, 0.1)
        return choose.choice([None, True, False, choose.choice(numbers), self._text(), self._text()])

    def _nested(self, depth: int) -> Any:
        value: Any = self._text()
        for _ in range(depth):
            value = [value] if self._random.random() < 0.5 else {"a": value}
        return value

    def _text(self) -> str:
        choose = self._random
        kinds = (
            lambda: "".join(choose.choices("abcdefghij _-:/.", k=choose.randrange(20))),
            lambda: "".join(chr(choose.randrange(1, 0x3000)) for _ in range(choose.randrange(12))),
            lambda: chr(choose.randrange(0xD800, 0xE000)),
            lambda: choose.choice(
                ["\x00", "\u202e", "\u200b", "\x1b[31m", "\x9b", "../../etc/passwd", "ref_1", "$0", "%00"]
            ),
            lambda: choose.choice([*TOOLS, *URIS, *EXPRESSIONS]),
            lambda: "x" * choose.choice((100, 5_000, 70_000)) if choose.random() < 0.1 else "x",
        )
        return choose.choice(kinds)()

    def _broken(self, body: bytes) -> bytes:
        choose = self._random
        data = bytearray(body)
        for _ in range(choose.randrange(1, 6)):
            at = choose.randrange(len(data) + 1)
            match choose.randrange(4):
                case 0:
                    del data[at : at + choose.randrange(1, 20)]
                case 1:
                    data[at:at] = bytes(choose.randrange(256) for _ in range(choose.randrange(1, 4)))
                case 2:
                    data[at:at] = data[max(0, at - 20) : at]
                case _:
                    data[at : at + 1] = choose.choice([b'"', b"{", b"}", b"\\", b"\x00", b"\xff", b"NaN", b"1e999"])
        return bytes(data)

    def _headers(self, message: Any) -> dict[str, str]:
        choose = self._random
        headers = {"content-type": "application/json", "accept": ACCEPT}
        if self._era == MODERN or (not self._era and choose.random() < 0.5):
            method = message.get("method") if isinstance(message, dict) else ""
            headers |= {"mcp-protocol-version": MODERN, "mcp-method": _header(method)}
            params = message.get("params") if isinstance(message, dict) else None
            if isinstance(params, dict) and ("name" in params or "uri" in params):
                headers["mcp-name"] = _header(params.get("name", params.get("uri")))
        bent: tuple[tuple[str, Sequence[str]], ...] = (
            ("host", HOSTS),
            ("origin", ORIGINS),
            ("mcp-protocol-version", VERSIONS),
            ("mcp-session-id", ("", "0" * 32, "x" * 4000, "../..")),
            ("content-type", ("text/plain", "", "application/json; charset=utf-16", "multipart/form-data")),
            ("accept", ("", "text/html", "*/*;q=0")),
            ("content-encoding", ("gzip", "br")),
            ("traceparent", ("00-zz", "00-" + "0" * 32 + "-" + "0" * 16 + "-01")),
            ("authorization", ("Bearer", "Bearer " + "x" * 9000, "Basic eDp5", "bearer  ")),
        )
        for name, values in bent:
            if choose.random() < 0.02:
                headers[name] = choose.choice(values)
        return headers

    def _path(self) -> str:
        choose = self._random
        if choose.random() < 0.85:
            return ""
        odd = (
            "/full_proxy",
            "/hybrid",
            "/nosuch",
            "/../metrics",
            "/%2e%2e",
            "?query=open%20the%20vault",
            "//",
            "/meta_only/",
        )
        return choose.choice(odd)

    def _verb(self) -> str:
        choose = self._random
        return "POST" if choose.random() < 0.97 else choose.choice(("DELETE", "PUT", "OPTIONS", "HEAD", "PATCH"))


def _header(value: object) -> str:
    """A header's value: what HTTP cannot carry is left out."""
    return "".join(character for character in str(value) if " " <= character <= "~").strip()


_BENDS: tuple[Callable[[random.Random, str], str], ...] = (
    lambda choose, text: text.upper() if choose.random() < 0.5 else text.swapcase(),
    lambda choose, text: _at_random(choose, text, lambda character: f"%{ord(character) & 255:02x}"),
    lambda choose, text: _at_random(choose, text, lambda character: quote(quote(character, safe=""), safe="")),
    lambda choose, text: _inserted(
        choose, text, ("\t", "\n", "\x00", "\u200b", "/", "//", "./", "a/../", "\\", "%2f", "%2e%2e/")
    ),
    lambda choose, text: text + choose.choice(("#", "#x", "?", "?x=1", "/", "/.", " ", ";x", "%00", "/../plan.txt")),
    lambda choose, text: text.replace(
        "://", choose.choice((":", ":/", ":////", "://localhost/", "://a@b:1/", ":\\\\", "://%6cocalhost/"))
    ),
    lambda choose, text: text.replace("__", choose.choice((":", ".", "/", "_", "___", "__ ", "::"))),
    lambda choose, text: text.replace("o", choose.choice(("\u043e", "0", "\uff4f"))),
    lambda choose, text: choose.choice(("mcp__", "pml__", "mcp__pml__", " ", "pml://vault/")) + text,
)


def _at_random(choose: random.Random, text: str, change: Callable[[str], str]) -> str:
    at = choose.randrange(len(text)) if text else 0
    return text[:at] + change(text[at]) + text[at + 1 :] if text else text


def _inserted(choose: random.Random, text: str, pieces: Sequence[str]) -> str:
    at = choose.randrange(len(text) + 1)
    return text[:at] + choose.choice(pieces) + text[at:]
