"""MCP over bare HTTP: the bytes a client without any SDK would send and get."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import httpx2

MODERN: Final = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}

SAME_ID = {"x-request-id": "test"}
"""Answers to equal requests are equal, so that tests can compare what a hidden and an unknown name are answered."""

NAMED_BY = {"resources/read": "uri", **dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")}
"""The parameter that names what a request is about, where that is not `name`; it is repeated in a header."""


def post_modern(
    url: str,
    method: str,
    params: Mapping[str, Any] | None = None,
    *,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 30,
    client: httpx2.Client | None = None,
) -> httpx2.Response:
    """One stateless 2026-07-28 request; a `client` that is kept saves the time for another one."""
    body, sent = modern(method, params, key, headers)
    return (client or httpx2).post(url, content=body, headers=sent, timeout=timeout)


def events_modern(url: str, method: str, params: Mapping[str, Any], key: str | None = None) -> Iterator[dict[str, Any]]:
    """The messages on the stream of a stateless request, which is closed once no more are wanted."""
    body, sent = modern(method, params, key, None)
    with httpx2.stream("POST", url, content=body, headers=sent, timeout=30) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line[6:])


def modern(
    method: str, params: Mapping[str, Any] | None, key: str | None, headers: Mapping[str, str] | None = None
) -> tuple[str, dict[str, str]]:
    """The body and headers of a stateless request."""
    given = dict(params or {})
    named_by = NAMED_BY.get(method, "name")
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": method,
        "params": {**given, "_meta": {**META, **given.get("_meta", {})}},
    }
    sent = {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        **SAME_ID,
        "mcp-protocol-version": MODERN,
        "mcp-method": method,
        **({"mcp-name": str(given[named_by])} if named_by in given else {}),
        **({"authorization": f"Bearer {key}"} if key else {}),
        **(headers or {}),
    }
    return json.dumps(body), sent


def result_modern(url: str, method: str, params: Mapping[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """The result of a stateless request that must succeed."""
    response = post_modern(url, method, params, **options)
    message = decoded(response)
    assert "result" in message, message
    result: dict[str, Any] = message["result"]
    return result


def decoded(response: httpx2.Response) -> dict[str, Any]:
    """The JSON-RPC response, whether it came as JSON or as the last event of a stream."""
    text = response.text
    if response.headers["content-type"].startswith("text/event-stream"):
        text = [line[6:] for line in text.splitlines() if line.startswith("data: ")][-1]
    message: dict[str, Any] = json.loads(text)
    return message


INTRODUCTION = {"capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}


def post_initialize(url: str, version: str = "2025-11-25") -> httpx2.Response:
    """The request that opens a session, whatever becomes of it."""
    params = {**INTRODUCTION, "protocolVersion": version}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    return httpx2.post(url, content=json.dumps(body), headers=headers, timeout=30)


class HandshakeSession:
    """One session of the handshake era."""

    def __init__(
        self,
        url: str,
        version: str = "2025-11-25",
        key: str | None = None,
        capabilities: Mapping[str, Any] | None = None,
        program: str = "raw",
    ) -> None:
        self._client = httpx2.Client(timeout=30)
        self.url = url
        self.headers = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            **SAME_ID,
            **({"authorization": f"Bearer {key}"} if key else {}),
        }
        self._next = 0
        introduction = {"capabilities": dict(capabilities or {}), "clientInfo": {"name": program, "version": "1"}}
        response = self.send("initialize", {**introduction, "protocolVersion": version})
        self.initialized = decoded(response)["result"]
        self.headers["mcp-session-id"] = response.headers["mcp-session-id"]
        self.headers["mcp-protocol-version"] = self.initialized["protocolVersion"]
        self._client.post(
            url, content=json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}), headers=self.headers
        )

    def __enter__(self) -> HandshakeSession:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.request("DELETE", self.url, headers=self.headers)
        self.close()

    def close(self) -> None:
        """Leave without a word, as where there is no gateway any more."""
        self._client.close()

    def send(self, method: str, params: Mapping[str, Any] | None = None, url: str | None = None) -> httpx2.Response:
        """One request of this session, to its own URL or another."""
        self._next += 1
        body = {"jsonrpc": "2.0", "id": self._next, "method": method, "params": dict(params or {})}
        return self._client.post(url or self.url, content=json.dumps(body), headers=self.headers)

    def asked(
        self, method: str, params: Mapping[str, Any], answer: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> dict[str, Any]:
        """The answer to one request, in which questions to the client are answered by `answer`."""
        self._next += 1
        body = {"jsonrpc": "2.0", "id": self._next, "method": method, "params": dict(params)}
        with self._client.stream("POST", self.url, content=json.dumps(body), headers=self.headers) as response:
            for line in response.iter_lines():
                message: dict[str, Any] = json.loads(line[6:]) if line.startswith("data: {") else {}
                if "id" in message and "method" not in message:
                    return message
                if "id" in message:
                    answered = {"jsonrpc": "2.0", "id": message["id"], "result": answer(message)}
                    httpx2.post(self.url, content=json.dumps(answered), headers=self.headers, timeout=30)
        raise AssertionError(f"{method} was not answered")

    @property
    def last_id(self) -> int:
        """The id of the request sent last."""
        return self._next

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """One notification, on a connection of its own: the session's may wait for an answer."""
        body = {"jsonrpc": "2.0", "method": method, "params": dict(params)}
        httpx2.post(self.url, content=json.dumps(body), headers=self.headers, timeout=30)

    def result(self, method: str, params: Mapping[str, Any] | None = None, url: str | None = None) -> dict[str, Any]:
        """The result of a request that must succeed."""
        message = decoded(self.send(method, params, url))
        assert "result" in message, message
        result: dict[str, Any] = message["result"]
        return result
