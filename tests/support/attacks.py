"""What a hostile or broken HTTP client does to a gateway, over bare sockets."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from urllib.parse import urlsplit

import anyio
import anyio.abc

from tests.support.raw import MODERN

LIMIT = 60
BODY = b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}'


@asynccontextmanager
async def connected(url: str, sent: bytes = b"", *, local: str | None = None) -> AsyncIterator[anyio.abc.SocketStream]:
    """A connection on which something was sent; `local` is the address that it comes from."""
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    if local is None:
        stream = await anyio.connect_tcp(address.hostname, address.port)
    else:
        raw = socket.socket()
        raw.bind((local, 0))
        raw.connect((address.hostname, address.port))
        stream = await anyio.abc.SocketStream.from_socket(raw)
    async with stream:
        if sent:
            await stream.send(sent)
        yield stream


@asynccontextmanager
async def flood(
    url: str, count: int, sent: bytes = b"", *, local: str | None = None
) -> AsyncIterator[list[anyio.abc.SocketStream]]:
    """Many connections, each of which has sent the same."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(connected(url, sent, local=local)) for _ in range(count)]


async def trickle(stream: anyio.abc.SocketStream, sent: bytes) -> None:
    """Send the same a little at a time, until the other side closes the connection."""
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        while True:
            await stream.send(sent)
            await anyio.sleep(0.02)


async def answer(stream: anyio.abc.SocketStream) -> bytes:
    """All that comes until the other side closes the connection."""
    received = b""
    with anyio.fail_after(LIMIT):
        while True:
            try:
                received += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return received


def request(
    url: str, body: bytes = BODY, *, length: int | None = None, close: bool = True, modern: bool = True
) -> bytes:
    """A request to the endpoint as bytes; `length` is what it claims its body to have."""
    address = urlsplit(url)
    lines = [
        f"POST {address.path} HTTP/1.1",
        f"host: {address.netloc}",
        "content-type: application/json",
        "accept: application/json, text/event-stream",
        *([f"mcp-protocol-version: {MODERN}", "mcp-method: tools/list"] if modern else []),
        f"content-length: {len(body) if length is None else length}",
        *(["connection: close"] if close else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


@asynccontextmanager
async def half_sent(
    url: str, count: int, *, modern: bool = True, method: bytes = b"POST"
) -> AsyncIterator[list[anyio.abc.SocketStream]]:
    """Requests that are being served already, while their bodies never come."""
    sent = request(url, b"{", length=5000, close=False, modern=modern).replace(
        b"\r\n", b"\r\nexpect: 100-continue\r\n", 1
    )
    async with flood(url, count, sent.replace(b"POST", method, 1)) as streams:
        for stream in streams:
            with anyio.fail_after(LIMIT):
                assert (await stream.receive()).startswith(b"HTTP/1.1 100")
        yield streams


def health(url: str, *, close: bool = True) -> bytes:
    """A request that any gateway answers at once."""
    netloc = urlsplit(url).netloc
    end = "connection: close\r\n" if close else ""
    return f"GET /healthz HTTP/1.1\r\nhost: {netloc}\r\n{end}\r\n".encode()


async def is_served(url: str, *, local: str | None = None) -> bytes:
    """The first line of the answer to an ordinary request on a connection of its own."""
    async with connected(url, health(url), local=local) as stream:
        return (await answer(stream)).partition(b"\r\n")[0]


async def until_served(url: str) -> None:
    """Wait until the gateway has noticed that connections ended."""
    with anyio.fail_after(LIMIT):
        while not (await is_served(url)).endswith(b" 200 OK"):  # noqa: ASYNC110  # what the gateway does has no event here
            await anyio.sleep(0.01)
