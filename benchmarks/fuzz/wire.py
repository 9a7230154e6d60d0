"""One HTTP/1.1 connection that sends whatever it is given and reads whole answers; it opens itself anew when closed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from urllib.parse import urlsplit

from benchmarks.fuzz.inputs import Request

MAX_HEAD = 1 << 20


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back; status 0 where the connection was closed without an answer."""

    status: int
    body: bytes = b""
    session_id: str = ""


class Wire:
    """A connection of one client."""

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url)
        self._host, self._port, self._path = parts.hostname or "", parts.port or 80, parts.path
        self._key = key
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, request: Request) -> Reply:
        """Send a request and read its answer; the caller limits the time."""
        fresh = self._streams is None
        try:
            return await self._exchange(request)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.close()
            if fresh:
                return Reply(0)
            # A connection that was idle may be closed by the server at any time.
            return await self.send(request)
        except TimeoutError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _exchange(self, request: Request) -> Reply:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, limit=MAX_HEAD)
        reader, writer = self._streams
        writer.write(self._head(request) + request.body)
        await writer.drain()
        status, headers = await _head(reader)
        body = b"" if request.verb == "HEAD" else await _body(reader, headers)
        if headers.get("connection", "").lower() == "close":
            self.close()
        return Reply(status, body, headers.get("mcp-session-id", ""))

    def _head(self, request: Request) -> bytes:
        headers = {"host": f"{self._host}:{self._port}", "authorization": f"Bearer {self._key}", **request.headers}
        headers["content-length"] = str(len(request.body))
        lines = [f"{request.verb} {self._path}{request.path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        status = int(first.split(" ")[1])
        if status >= 200:
            pairs = (line.partition(":") for line in lines if line)
            return status, {name.lower(): value.strip() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding") == "chunked":
        pieces = []
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            pieces.append((await reader.readexactly(size + 2))[:-2])
        await reader.readuntil(b"\r\n")
        return b"".join(pieces)
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    return b""
