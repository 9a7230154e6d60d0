"""Line buffers for one connection: complete lines from received chunks, and a queue of lines to send.

Also the constants on which a bridge and the gateway must agree.
"""

from __future__ import annotations

from collections import deque

MAX_LINE = 256 * 1024 * 1024
"""Maximum bytes of a line: several times the longest message of clients and servers."""

FINISHING = b'!{"finishing":true}'
"""The line that a bridge sends once its client sends no more. A bridge that leaves without it has been killed."""

FULL = 1024 * 1024
"""Bytes in the queue for one side from which on nothing more is read from the other side."""


class LineTooLongError(Exception):
    """A received line that is longer than MAX_LINE."""

    def __init__(self) -> None:
        super().__init__(f"a message is longer than {MAX_LINE // 1024 // 1024} MiB")


class LineBuffer:
    """A buffer that splits received bytes into lines."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add received bytes and return the lines that are now complete, each with its line end.

        Raises:
            LineTooLongError: a line has no end within `MAX_LINE` bytes.
        """
        *whole, rest = chunk.split(b"\n")
        lines = [line + b"\n" for line in whole]
        if lines and self._rest:
            self._rest += lines[0]
            lines[0] = self.take_rest()
        self._rest += rest
        if len(self._rest) > MAX_LINE:
            raise LineTooLongError
        return lines

    def take_rest(self) -> bytes:
        """Return and clear the bytes of the unterminated last line."""
        rest = bytes(self._rest)
        # A new buffer, to free the memory of a large message.
        self._rest = bytearray()
        return rest


class Outbox:
    """A queue of bytes to send to one side."""

    def __init__(self) -> None:
        self._waiting: deque[memoryview] = deque()
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        """Return True if nothing more should be read until some of the queue is sent; one message always has room."""
        return self._size >= FULL

    def put(self, line: bytes) -> None:
        """Append a line."""
        if line:
            self._waiting.append(memoryview(line))
            self._size += len(line)

    def next(self, most: int) -> memoryview:
        """Return at most `most` bytes to send next, with small lines joined; `taken` removes them."""
        first = self._waiting.popleft()
        if len(first) < most and self._waiting:
            together = [first]
            size = len(first)
            while self._waiting and size + len(self._waiting[0]) <= most:
                together.append(self._waiting.popleft())
                size += len(together[-1])
            first = memoryview(b"".join(together))
        self._waiting.appendleft(first)
        return first[:most]

    def taken(self, count: int) -> None:
        """Remove `count` bytes that were sent."""
        first = self._waiting.popleft()
        self._size -= count
        if count < len(first):
            self._waiting.appendleft(first[count:])

    def clear(self) -> None:
        """Discard the queue, as the other side has gone."""
        self._waiting.clear()
        self._size = 0
