"""Bodies of HTTP responses: decompressed in small pieces and within limits, and split into server-sent events."""

from __future__ import annotations

import zlib
from codecs import BOM_UTF8
from collections.abc import AsyncIterable, AsyncIterator, Iterator

import httpx2

from pml_gateway.foreign_json import SurrogateRepair

ACCEPTED_ENCODING = "gzip"
"""The only compression that is requested: every server supports it, and it can be decompressed piece by piece."""

PIECE_BYTES = 256 * 1024

MAX_RETRY_SECONDS = 60.0
"""Maximum pause in seconds before a stream is resumed, whatever its server asks for."""

CUT_SHORT = "the connection failed before the end of the answer"


class BodyError(httpx2.StreamError):
    """A body that cannot be accepted; the SDK turns it into an error answer, like any fault in a body."""


class Unpacker:
    """A decompressor of one body that yields bounded pieces."""

    def __init__(self, encoding: str) -> None:
        self._inflate = None
        match encoding.strip().lower():
            case "" | "identity":
                pass
            case "gzip" | "x-gzip":
                self._inflate = zlib.decompressobj(wbits=31)
            case other:
                raise BodyError(f"the answer is packed with {other[:40]!r}, which was not asked for")

    def pieces(self, content: bytes) -> Iterator[bytes]:
        """Yield the decompressed pieces of `content`.

        Raises:
            BodyError: the content is not valid in its declared encoding.
        """
        if self._inflate is None:
            yield content
            return
        while content:
            try:
                piece = self._inflate.decompress(content, PIECE_BYTES)
            except zlib.error as error:
                raise BodyError(f"the answer is no gzip ({error})") from error
            content = self._inflate.unconsumed_tail
            yield piece


async def unpacked(chunks: AsyncIterable[bytes], encoding: str, max_bytes: int | None) -> AsyncIterator[bytes]:
    """Yield the decompressed and repaired body, of at most `max_bytes` (None: an endless stream).

    Raises:
        BodyError: the body is larger, or cannot be decompressed.
    """
    unpacker, repair, size = Unpacker(encoding), SurrogateRepair(), 0
    async for chunk in chunks:
        for piece in unpacker.pieces(chunk):
            size += len(piece)
            if max_bytes is not None and size > max_bytes:
                raise BodyError(f"the answer is larger than {max_bytes} bytes (upstreams.max_message_bytes)")
            if size == len(piece):
                # Only in the first piece: neither JSON nor events begin with a byte order mark.
                piece = piece.removeprefix(BOM_UTF8)
            if fixed := repair.feed(piece):
                yield fixed
    if rest := repair.rest():
        yield rest


class BoundedStream(httpx2.AsyncByteStream):
    """A response's stream, decompressed and bounded."""

    def __init__(self, stream: httpx2.AsyncByteStream, encoding: str, max_bytes: int | None) -> None:
        self._stream = stream
        self._encoding = encoding
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in unpacked(self._stream, self._encoding, self._max_bytes):
                yield piece
        except httpx2.TransportError as error:
            if self._max_bytes is None:
                raise
            # The SDK's client ends the whole session for any error other than a fault in a body.
            raise BodyError(f"{CUT_SHORT} ({type(error).__name__})") from error

    async def aclose(self) -> None:
        """Close the connection's stream."""
        await self._stream.aclose()


def bound(response: httpx2.Response, max_bytes: int, *, is_endless: bool) -> None:
    """Bound the body of a response that has not been read; an `is_endless` one has no limit."""
    encoding = response.headers.pop("content-encoding", "")
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = BoundedStream(response.stream, encoding, None if is_endless else max_bytes)


class Event:
    """One server-sent event."""

    __slots__ = ("data", "id", "name", "raw", "retry_seconds")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.id, self.name, self.retry_seconds = "", "message", 0.0
        data: list[bytes] = []
        for line in raw.splitlines():
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                data.append(value)
            elif name == b"id":
                self.id = value.decode("utf-8", "replace")
            elif name == b"event":
                self.name = value.decode("utf-8", "replace")
            elif name == b"retry" and value.isdigit():
                self.retry_seconds = min(int(value) / 1000, MAX_RETRY_SECONDS)
        self.data = b"\n".join(data)


async def events(pieces: AsyncIterable[bytes], max_bytes: int) -> AsyncIterator[Event]:
    """Yield the events of a stream.

    Raises:
        BodyError: an event is larger than `max_bytes`.
    """
    buffer = bytearray()
    async for piece in pieces:
        searched = max(len(buffer) - 3, 0)
        buffer += piece
        while (end := _end_of_event(buffer, searched)) is not None:
            yield Event(bytes(buffer[: end[0]]))
            del buffer[: end[1]]
            searched = 0
        if len(buffer) > max_bytes:
            raise BodyError(f"an event is larger than {max_bytes} bytes (upstreams.max_message_bytes)")
    if buffer.strip():
        yield Event(bytes(buffer))


def _end_of_event(buffer: bytearray, start: int) -> tuple[int, int] | None:
    found = [
        (at, at + len(blank)) for blank in (b"\r\n\r\n", b"\n\n", b"\r\r") if (at := buffer.find(blank, start)) >= 0
    ]
    return min(found, default=None)
