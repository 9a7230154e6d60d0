"""Bytes as they come and as they leave: whole lines out of parts, and what waits until the other side takes it.

Also what a bridge and the gateway know of each other's lines.
"""

from __future__ import annotations

from collections import deque

MAX_LINE = 256 * 1024 * 1024
"""Longer lines are no messages: several times what clients and servers send at most."""

FINISHING = b'!{"finishing":true}'
"""What a bridge says whose client sends no more. One that leaves without it has been killed."""

FULL = 1024 * 1024
"""Bytes that wait for one side, from which on nothing more is read of the other."""


class LineTooLongError(Exception):
    """What came is no message."""

    def __init__(self) -> None:
        super().__init__(f"a message is longer than {MAX_LINE // 1024 // 1024} MiB")


class Lines:
    """What was read of one side."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that are whole now, each with its end.

        Raises:
            LineTooLongError: one has no end within `MAX_LINE` bytes.
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
        """What came of a line whose end has not; once."""
        rest = bytes(self._rest)
        # Another one: the room of a large message is given back.
        self._rest = bytearray()
        return rest


class Outbox:
    """What one side is yet to take."""

    def __init__(self) -> None:
        self._waiting: deque[memoryview] = deque()
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be asked for until some of it is taken; one message always has room."""
        return self._size >= FULL

    def put(self, line: bytes) -> None:
        """Add a line behind what waits."""
        if line:
            self._waiting.append(memoryview(line))
            self._size += len(line)

    def next(self, most: int) -> memoryview:
        """What to offer next: at most so many bytes, small lines together."""
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
        """So many bytes of what was offered are gone."""
        first = self._waiting.popleft()
        self._size -= count
        if count < len(first):
            self._waiting.appendleft(first[count:])

    def clear(self) -> None:
        """Forget all of it: nobody is there to take it."""
        self._waiting.clear()
        self._size = 0
