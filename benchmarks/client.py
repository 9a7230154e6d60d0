"""A raw HTTP client of MCP for both protocol eras: it times the answer and decodes it only when asked."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, assert_never

import httpx2

REQUEST_SECONDS = 120
MAX_PAGES = 100
CLIENT_INFO = {"name": "pml-benchmark", "version": "1"}
NAMED_BY = dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")
"""The parameter that the header `mcp-name` repeats, where that is not `name`."""


class Era(StrEnum):
    """The protocol version a client speaks."""

    HANDSHAKE = "2025-11-25"
    STATELESS = "2026-07-28"


class AnswerError(Exception):
    """An answer that is not the result that was asked for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer as it came over the wire; `seconds` run from sending the request to the last byte."""

    seconds: float
    status: int
    content_type: str
    body: bytes

    def result(self) -> dict[str, Any]:
        """The JSON-RPC result."""
        message = self.message()
        if "result" not in message:
            raise AnswerError(f"HTTP {self.status}: {json.dumps(message)[:500]}")
        result: dict[str, Any] = message["result"]
        return result

    def message(self) -> dict[str, Any]:
        """The response message; server-sent events may carry notifications before it."""
        texts = [self.body]
        if self.content_type.startswith("text/event-stream"):
            lines = self.body.splitlines()
            texts = [line.removeprefix(b"data:") for line in lines if line.startswith(b"data:")]
        for text in reversed(texts):
            if not text.strip():
                continue
            try:
                message = json.loads(text)
            except ValueError as exc:
                raise AnswerError(f"HTTP {self.status}: {self.body[:500]!r}") from exc
            if isinstance(message, dict) and "id" in message:
                return message
        raise AnswerError(f"HTTP {self.status}: no response in {self.body[:500]!r}")


@dataclass(frozen=True, slots=True)
class Client:
    """One client with one connection. `headers` holds the session of the handshake era."""

    http: httpx2.AsyncClient
    url: str
    era: Era
    headers: dict[str, str] = field(default_factory=dict)
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> Answer:
        """Send one request and read the whole answer."""
        return await self._send(*self.prepared(method, params))

    def prepared(self, method: str, params: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, str]]:
        """The message of a request, and its headers."""
        message = {"jsonrpc": "2.0", "id": next(self._numbers), "method": method, "params": dict(params or {})}
        return message, self._prepare(message)

    async def open(self) -> None:
        """Shake hands, where the era wants it."""
        if self.era is Era.STATELESS:
            return
        about = {"protocolVersion": self.era.value, "capabilities": dict(self.capabilities), "clientInfo": CLIENT_INFO}
        response = await self._post(
            {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about},
            {"accept": "application/json, text/event-stream", **self.headers},
        )
        agreed = _answer(response, 0.0).result()["protocolVersion"]
        self.headers["mcp-protocol-version"] = agreed
        if session := response.headers.get("mcp-session-id"):
            self.headers["mcp-session-id"] = session
        initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        await self._send(initialized, self._prepare(initialized))

    async def close(self) -> None:
        """End the session, if there is one."""
        if "mcp-session-id" in self.headers:
            await self.http.delete(self.url, headers=self.headers)

    def _prepare(self, message: dict[str, Any]) -> dict[str, str]:
        """The headers the era requires; the modern one also wants an envelope in the message."""
        headers = {"accept": "application/json, text/event-stream", **self.headers}
        match self.era:
            case Era.HANDSHAKE:
                return headers
            case Era.STATELESS:
                params = message["params"]
                prefix = "io.modelcontextprotocol/"
                params["_meta"] = {
                    f"{prefix}protocolVersion": self.era.value,
                    f"{prefix}clientInfo": CLIENT_INFO,
                    f"{prefix}clientCapabilities": dict(self.capabilities),
                    **params.get("_meta", {}),
                }
                headers |= {"mcp-protocol-version": self.era.value, "mcp-method": message["method"]}
                if name := params.get(NAMED_BY.get(message["method"], "name")):
                    headers["mcp-name"] = name
                return headers
            case _:
                assert_never(self.era)

    async def _send(self, message: dict[str, Any], headers: dict[str, str]) -> Answer:
        started = time.perf_counter()
        response = await self._post(message, headers)
        return _answer(response, time.perf_counter() - started)

    async def _post(self, message: dict[str, Any], headers: dict[str, str]) -> httpx2.Response:
        return await self.http.post(self.url, json=message, headers=headers)


@asynccontextmanager
async def open_client(url: str, era: Era, headers: Mapping[str, str] | None = None) -> AsyncIterator[Client]:
    """A connected client with a connection of its own."""
    limits = httpx2.Limits(max_connections=1, max_keepalive_connections=1)
    async with httpx2.AsyncClient(timeout=REQUEST_SECONDS, limits=limits, trust_env=False) as http:
        client = Client(http, url, era, dict(headers or {}))
        await client.open()
        yield client
        await client.close()


async def list_everything(client: Client) -> tuple[float, int, list[dict[str, Any]]]:
    """Seconds, bytes and tools of a list with all its pages."""
    seconds, size, params = 0.0, 0, dict[str, Any]()
    tools: list[dict[str, Any]] = []
    for _ in range(MAX_PAGES):
        answer = await client.request("tools/list", params)
        result = answer.result()
        seconds, size = seconds + answer.seconds, size + len(answer.body)
        tools += result["tools"]
        if not (cursor := result.get("nextCursor")):
            return seconds, size, tools
        params = {"cursor": cursor}
    raise AnswerError(f"more than {MAX_PAGES} pages")


def _answer(response: httpx2.Response, seconds: float) -> Answer:
    content_type = response.headers.get("content-type", "")
    return Answer(seconds, response.status_code, content_type, response.content)
