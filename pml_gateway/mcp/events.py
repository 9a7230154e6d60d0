"""Server-sent events, parsed from a byte stream with any kind of line ending."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

from pml_gateway.mcp.bodies import BodyError

MAX_RETRY_SECONDS = 60.0
"""Maximum pause in seconds before a stream is resumed, whatever its server asks for."""


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
