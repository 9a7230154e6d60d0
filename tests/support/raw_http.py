"""An MCP server over HTTP written byte by byte, so that it can answer what no server library would send."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream


@dataclass
class RawRequest:
    """One HTTP request and the connection that it came on."""

    method: str
    headers: dict[str, str]
    message: dict[str, Any]
    stream: anyio.abc.SocketStream

    async def send(self, content: bytes) -> None:
        """Write to the connection, as far as the other side still reads."""
        await self.stream.send(content)


def response(body: bytes, content_type: str = "application/json", status: str = "200 OK", **headers: str) -> bytes:
    """A whole HTTP response."""
    lines = [f"HTTP/1.1 {status}", f"content-type: {content_type}", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "connection: close", "", ""]).encode() + body


def result(message: dict[str, Any], value: Any) -> bytes:
    """A JSON-RPC result."""
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": value}).encode()


Misbehave = Callable[[RawRequest], Awaitable[None]]


@dataclass
class RawServer:
    """A handshake server that hands the requests of one method to a test."""

    misbehave: Misbehave
    at: str
    session_id: str = ""
    port: int = 0
    seen: list[RawRequest] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}/mcp"

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        """Answer one request of one connection."""
        async with stream:
            try:
                request = await _read(stream)
                self.seen.append(request)
                await self.answer(request)
            except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return

    async def answer(self, request: RawRequest) -> None:
        """Answer one request, as a sound server would where the test does not."""
        method = request.message.get("method")
        if self.at in (method, request.method, "*"):
            await self.misbehave(request)
        elif method == "initialize":
            version = request.message["params"]["protocolVersion"]
            info = {"name": "raw", "version": "1"}
            value = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
            headers = {"mcp_session_id": self.session_id} if self.session_id else {}
            await request.send(response(result(request.message, value), **headers))
        elif method == "tools/list":
            tools = [{"name": "t", "inputSchema": {"type": "object"}}]
            await request.send(response(result(request.message, {"tools": tools})))
        elif method == "tools/call":
            await request.send(response(result(request.message, {"content": [{"type": "text", "text": "fine"}]})))
        elif method == "ping":
            await request.send(response(result(request.message, {})))
        elif request.method != "POST":
            await request.send(response(b"", status="405 Method Not Allowed"))
        elif "id" not in request.message:
            await request.send(response(b"", status="202 Accepted"))
        else:
            await request.send(response(b"", status="400 Bad Request"))


async def _read(stream: anyio.abc.SocketStream) -> RawRequest:
    buffered = BufferedByteReceiveStream(stream)
    head = (await buffered.receive_until(b"\r\n\r\n", 65536)).decode("latin-1")
    first, *lines = head.split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = int(headers.get("content-length", 0))
    body = await buffered.receive_exactly(length) if length else b""
    return RawRequest(first.split(" ")[0], headers, json.loads(body) if body else {}, stream)


@asynccontextmanager
async def raw_server(misbehave: Misbehave, at: str, session_id: str = "") -> AsyncIterator[RawServer]:
    """Listen on a free port; requests of the method `at`, of MCP or HTTP (`*`: all), go to `misbehave`."""
    server = RawServer(misbehave, at, session_id)
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        server.port = listener.extra(anyio.abc.SocketAttribute.local_port)
        tasks.start_soon(listener.serve, server.serve)
        yield server
        tasks.cancel_scope.cancel()
