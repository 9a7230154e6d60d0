"""Frames between the accepting process and a worker: connections in one direction, what became of them in the other.

They go over a pair of unix sockets, and a connection travels as the open file that goes with its frame. It has a
number, by which the worker says that it has taken it, and that it has ended. The accepting process keeps it open until
it is taken, and gives it to another worker if this one dies before. The end of either process is the end of the stream.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

import anyio

from pml_gateway.errors import ConfigurationError

FRAME = struct.Struct("!B12sQ")
"""FrameKind, replica id, number of the connection."""

TAKEN_AT_ONCE = 64
"""Connections that a worker takes before it serves others again."""

ENDING_SECONDS = 1.0
"""Seconds for the accepting process to hand over no more."""


class FrameKind(IntEnum):
    """Meaning of a frame."""

    CONNECTION = 1
    """A connection to be served."""
    FULL = 2
    """One that is served only in the place of an idle one, because all workers together have as many as they may."""
    ADDRESS_FULL = 3
    """One that is served only in the place of an idle one of its address."""
    OPEN = 4
    """The worker takes connections; its replica id, and the port of its own that other workers reach it at."""
    READY = 5
    """It has a list of tools."""
    TAKEN = 6
    """It has a connection, which until then is still the accepting process's as well."""
    LEFT = 7
    """A connection has ended, or was refused."""
    ENDING = 8
    """The worker wants no more connections."""
    OTHER = 9
    """Another worker: its replica id, and its number and port; without a port it has ended."""


PORT_BITS = 16

FIRST = 1
"""Number of the worker that serves the owner's paths for all."""


@dataclass(frozen=True, slots=True)
class HandedConnection:
    """A connection that a worker was given."""

    connection: socket.socket
    kind: FrameKind
    left: Callable[[], None]
    """Says once that it counts no more."""


def check_workers() -> None:
    """Refuse several workers where connections cannot be handed over.

    Raises:
        ConfigurationError: this system cannot pass an open connection to another process.
    """
    if sys.platform == "win32" or not hasattr(socket, "send_fds"):
        raise ConfigurationError(
            "--workers needs a system that can hand an open connection to another process: Linux, macOS or BSD",
            hint="serve without --workers, or start several gateways with one storage.url behind a load balancer",
        )


class WorkerLink:
    """The accepting process's end of the stream to one worker."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._content = b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def hand(self, connection: socket.socket, kind: FrameKind, number: int) -> bool:
        """Hand a connection over; return False if the worker does not take it now."""
        try:
            # A frame is much smaller than what such a socket takes at once: all of it is sent, or nothing.
            socket.send_fds(self._socket, [FRAME.pack(kind, b"", number)], [connection.fileno()])
        except OSError:
            # Its socket is full, it has ended, or too many open files are under way.
            return False
        return True

    def introduce(self, number: int, replica: bytes, port: int) -> bool:
        """Tell the worker of another one; return False if it cannot be told now."""
        try:
            self._socket.send(FRAME.pack(FrameKind.OTHER, replica, number << PORT_BITS | port))
        except BlockingIOError:
            return False
        except OSError:
            # It has ended.
            return True
        return True

    def frames(self) -> Iterator[tuple[FrameKind, bytes, int]]:
        """Yield the frames that have arrived.

        Raises:
            EOFError: the worker has closed the stream.
        """
        while True:
            try:
                received = self._socket.recv(FRAME.size * 256)
            except BlockingIOError:
                return
            except OSError:
                received = b""
            if not received:
                raise EOFError
            content = self._content + received
            whole = len(content) - len(content) % FRAME.size
            self._content = content[whole:]
            for kind, replica, number in FRAME.iter_unpack(content[:whole]):
                yield FrameKind(kind), replica.rstrip(b"\0"), number

    def end(self) -> None:
        """Hand over no more."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)


class Handover:
    """A worker's end of the stream."""

    def __init__(self, number: int, end: socket.socket, url: str, host: str) -> None:
        """Serve as the worker of this number what is handed over.

        Args:
            number: its number, from 1.
            end: its end of the stream.
            url: URL by which clients know the gateway.
            host: address at which other workers and replicas reach this one.
        """
        end.setblocking(False)
        self.number = number
        self.url = url
        self.host = host
        self._others: dict[int, tuple[str, int]] = {}
        self._socket = end
        self._unsent = b""
        self._to_serve: list[Callable[[], object]] = []
        """Connections to be read once TAKEN is sent: until then, another worker may get them."""
        self._content = b""
        self._descriptors: list[int] = []
        self._is_ending = False
        self._ended = anyio.Event()

    @classmethod
    def inherited(cls, text: str, host: str) -> Handover:
        """Return the handover that `argument` describes."""
        number, descriptor, url = text.split(":", 2)
        return cls(int(number), socket.socket(fileno=int(descriptor)), url, host)

    @staticmethod
    def argument(number: int, end: socket.socket, url: str) -> str:
        """Return the command-line argument by which a worker finds its end."""
        return f"{number}:{end.fileno()}:{url}"

    def others(self) -> Iterator[tuple[int, str]]:
        """Yield the numbers of the other workers and their own URLs, without a path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        for number, (_, port) in self._others.items():
            yield number, f"http://{host}:{port}"

    def replica_of(self, number: int) -> str | None:
        """Return the replica id of another worker; None while it does not run."""
        found = self._others.get(number)
        return None if found is None else found[0]

    def begin(self, replica: str, port: int, serve: Callable[[HandedConnection], object]) -> None:
        """Take connections from now on."""
        self._tell(FrameKind.OPEN, replica=replica.encode(), number=port)
        asyncio.get_running_loop().add_reader(self._socket, self._take, serve)

    def ready(self) -> None:
        """Say that there is a list of tools."""
        self._tell(FrameKind.READY)

    async def end(self) -> None:
        """Have no more connections handed over, and wait until those under way have come."""
        self._is_ending = True
        self._tell(FrameKind.ENDING)
        with anyio.move_on_after(ENDING_SECONDS):
            await self._ended.wait()

    def close(self) -> None:
        """Leave the stream."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        loop.remove_writer(self._socket)
        self._socket.close()

    def _take(self, serve: Callable[[HandedConnection], object]) -> None:
        for _ in range(TAKEN_AT_ONCE):
            try:
                content, ancillary, _, _ = self._socket.recvmsg(
                    FRAME.size - len(self._content), socket.CMSG_SPACE(4), getattr(socket, "MSG_CMSG_CLOEXEC", 0)
                )
            except BlockingIOError:
                return
            except OSError:
                content, ancillary = b"", []
            if not content:
                self._note_end()
                return
            self._content += content
            self._descriptors += [each for _, _, data in ancillary for each in array("i", data)]
            if len(self._content) == FRAME.size:
                kind, replica, number = FRAME.unpack(self._content)
                self._content = b""
                if kind == FrameKind.OTHER:
                    self._note_other(replica.decode(), number)
                else:
                    self._serve(serve, FrameKind(kind), number)

    def _note_other(self, replica: str, number: int) -> None:
        number, port = number >> PORT_BITS, number & (1 << PORT_BITS) - 1
        if port:
            self._others[number] = (replica, port)
        else:
            self._others.pop(number, None)

    def _serve(self, serve: Callable[[HandedConnection], object], kind: FrameKind, number: int) -> None:
        has_left = False

        def left() -> None:
            nonlocal has_left
            if not has_left:
                has_left = True
                self._tell(FrameKind.LEFT, number=number)

        if self._descriptors:
            descriptor = self._descriptors.pop()
            os.set_inheritable(descriptor, False)
            handed = HandedConnection(socket.socket(fileno=descriptor), kind, left)
            self._to_serve.append(partial(serve, handed))
        else:
            # This process has as many open files as it may: the system has closed the connection.
            self._to_serve.append(left)
        self._tell(FrameKind.TAKEN, number=number)

    def _note_end(self) -> None:
        """Note the end of the stream; end this process if it was not asked for: the accepting process is gone."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._ended.set()
        if not self._is_ending:
            # The first signal ends this process in order, and one that is ending already at once.
            signal.raise_signal(signal.SIGTERM)

    def _tell(self, kind: FrameKind, replica: bytes = b"", number: int = 0) -> None:
        if self._socket.fileno() < 0:
            # It was closed: only connections that end with the process are left.
            return
        was_waiting = bool(self._unsent)
        self._unsent += FRAME.pack(kind, replica, number)
        if not was_waiting:
            self._send()

    def _send(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            # The other end is closed; reading notices it as well.
            sent = len(self._unsent)
        self._unsent = self._unsent[sent:]
        if self._unsent:
            loop.add_writer(self._socket, self._send)
        else:
            loop.remove_writer(self._socket)
            while self._to_serve:
                self._to_serve.pop(0)()
