"""The process that accepts connections: it peeks at the beginning of each, chooses a worker and hands it over.

A connection whose first request names a session goes to the worker that has it, every other to the worker with the
fewest. It consumes nothing, and does not wait for long: a connection that sends nothing goes to any worker, which
limits how long a request may take to arrive. A wrong choice only costs a detour: workers forward requests for each
other's sessions.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial

from pml_gateway.config.settings import HttpSettings
from pml_gateway.log import ThrottledWarning, get_logger
from pml_gateway.quotas import quota_key_of_address
from pml_gateway.serve.workers.handover import FrameKind, WorkerLink

logger = get_logger(__name__)

ACCEPTED_AT_ONCE = 64
"""Connections accepted before frames of workers are read again."""

PAUSE_SECONDS = 0.1
"""Pause before accepting again if no more files can be opened or too many connections wait, and of other retries."""

PEEKED_BYTES = 16 * 1024
"""Maximum bytes of a request that are peeked at."""

LOOK_SECONDS = 1.0
"""Seconds for a request's head to arrive before its connection goes to any worker."""

FIRST_PAUSE_SECONDS = 0.005
"""First pause before another look at a partial head; it doubles with each look."""

STUCK_SECONDS = 1.0
"""Seconds without taking a connection after which a worker gets no more: it is stopped, or busy."""

HELD_SECONDS = 10.0
"""Seconds until a connection that no worker takes is refused: more than a worker needs to start."""

MAX_WAITING = 1024
WAITING_PART = 4
"""Maximum connections whose heads are awaited, and maximum that wait for a worker: this number, and a quarter of the
open files allowed. Beyond, the oldest awaited goes to any worker, and no more are accepted while too many wait."""

UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: 35\r\n"
    b'retry-after: 5\r\nconnection: close\r\n\r\n{"error": "no worker is serving"}\r\n'
)

TRANSIENT_ERRORS = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EPERM})
"""Errors of one connection; the next one can be accepted."""

_SESSION = re.compile(rb"\r\nmcp-session-id:[ \t]*([0-9a-f]{12})-", re.IGNORECASE)


class Phase(IntEnum):
    """State of a worker; those of the highest phase get connections."""

    STARTING = 0
    OPEN = 1
    READY = 2


@dataclass(eq=False, slots=True)
class Worker:
    """A worker as the accepting process sees it."""

    number: int
    link: WorkerLink
    on_open: Callable[[], None]
    replica: bytes = b""
    port: int = 0
    phase: Phase = Phase.STARTING
    connections: dict[int, str] = field(default_factory=dict)
    """Quota keys of the addresses of its connections, by their numbers."""
    untaken: dict[int, ArrivingConnection] = field(default_factory=dict)
    """Those that it has not confirmed yet."""
    by_address: Counter[str] = field(default_factory=Counter)

    def is_stuck(self, seconds: float) -> bool:
        """Return True if a connection waits for this worker for longer."""
        oldest = next(iter(self.untaken.values()), None)
        return oldest is not None and asyncio.get_running_loop().time() - oldest.handed_at > seconds

    def drop(self, number: int) -> None:
        """Forget a connection that has ended."""
        quota_key = self.connections.pop(number, None)
        if quota_key is not None:
            self.by_address[quota_key] -= 1
            if not self.by_address[quota_key]:
                del self.by_address[quota_key]


@dataclass(eq=False, slots=True)
class ArrivingConnection:
    """A connection that no worker has yet."""

    connection: socket.socket
    quota_key: str
    since: float
    replica: bytes = b""
    handed_at: float = 0.0
    looks: int = 0
    timer: asyncio.TimerHandle | None = None


class Accepting:
    """The listener and its workers."""

    def __init__(self, listener: socket.socket, settings: HttpSettings, descriptors: int) -> None:
        """Accept connections from a bound listener, in a process that may have this many open files."""
        self._max_waiting = max(min(MAX_WAITING, descriptors // WAITING_PART), 1)
        self._listener = listener
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self.workers: list[Worker] = []
        self._looked_at: OrderedDict[ArrivingConnection, None] = OrderedDict()
        self._held: OrderedDict[ArrivingConnection, None] = OrderedDict()
        self._last_number = 0
        self._is_listening = self._is_stopping = self._is_closed = False
        self._resume: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._peeked = bytearray(PEEKED_BYTES)
        self._line = ThrottledWarning(logger)

    # Workers

    @contextmanager
    def worker(self, number: int, end: socket.socket, on_open: Callable[[], None]) -> Iterator[Worker]:
        """Give connections to a worker, once it says that it takes some, until this context ends."""
        worker = Worker(number, WorkerLink(end), on_open)
        self.workers.append(worker)
        self._loop.add_reader(end, self._hear, worker)
        try:
            yield worker
        finally:
            self._loop.remove_reader(end)
            # Frames may be unread: what the worker has begun to read must go to no other.
            self._hear(worker)
            self._remove(worker)

    def _hear(self, worker: Worker) -> None:
        try:
            for kind, replica, number in worker.link.frames():
                match kind:
                    case FrameKind.OPEN:
                        worker.phase, worker.replica, worker.port = Phase.OPEN, replica, number
                        self._introduce()
                        self._listen()
                        worker.on_open()
                        self._place_held()
                    case FrameKind.READY:
                        worker.phase = Phase.READY
                        logger.info("worker %d is ready", worker.number)
                    case FrameKind.TAKEN:
                        worker.untaken.pop(number).connection.close()
                    case FrameKind.LEFT:
                        worker.drop(number)
                    case FrameKind.ENDING:
                        if self._is_stopping and self.workers == [worker]:
                            # It still takes what clients have sent already.
                            self.close()
                        self._dismiss(worker)
                        worker.link.end()
                    case _:
                        raise AssertionError(kind)
        except EOFError:
            self._loop.remove_reader(worker.link.fileno())
            self._remove(worker)

    def _dismiss(self, worker: Worker) -> None:
        """Give a worker no more connections; the last one to stop ends the listener."""
        if worker in self.workers:
            self.workers.remove(worker)
            self._introduce(worker.number)
        self._close_if_done()

    def _introduce(self, *ended: int) -> None:
        """Tell workers of each other."""
        told = [
            worker.link.introduce(*other)
            for worker in self.workers
            if worker.phase
            for other in (
                *((number, b"", 0) for number in ended),
                *((each.number, each.replica, each.port) for each in self.workers if each.phase and each is not worker),
            )
        ]
        if not all(told):
            self._loop.call_later(PAUSE_SECONDS, self._introduce, *ended)

    def _remove(self, worker: Worker) -> None:
        """Forget a worker that has ended, and give the connections that it has not read to others."""
        self._dismiss(worker)
        untaken, worker.untaken = worker.untaken, {}
        for arriving in untaken.values():
            self._place(arriving)

    # Accepting

    def _listen(self) -> None:
        """Accept connections from now on."""
        if not self._is_listening and not self._is_closed:
            self._listener.setblocking(False)
            self._listener.listen(socket.SOMAXCONN)
            self._is_listening = True
            self._loop.add_reader(self._listener, self._accept)

    def begin_stop(self) -> None:
        """Accept connections only as long as a worker takes them."""
        self._is_stopping = True
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._is_stopping and not self.workers:
            self.close()

    def close(self) -> None:
        """Accept only the connections that clients have made already, and refuse those that no worker takes."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_listening:
            while self._accept():
                continue
            self._loop.remove_reader(self._listener)
        for timer in (self._resume, self._retry):
            if timer is not None:
                timer.cancel()
        self._listener.close()
        for arriving in [*self._looked_at]:
            self._stop_looking(arriving)
            self._place(arriving)
        for arriving in [*self._held]:
            self._refuse(arriving)

    def _accept(self) -> bool:
        """Accept connections; return True if there may be more."""
        for _ in range(ACCEPTED_AT_ONCE):
            if len(self._held) >= self._max_waiting:
                self._pause_accepting()
                return False
            try:
                connection, peer = self._listener.accept()
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno in TRANSIENT_ERRORS:
                    continue
                self._line.warning("no connection can be accepted: %s", error.strerror)
                self._pause_accepting()
                return False
            connection.setblocking(False)
            with suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            address = str(peer[0]) if isinstance(peer, tuple) else ""
            self._look(ArrivingConnection(connection, quota_key_of_address(address), self._loop.time()))
        return True

    def _pause_accepting(self) -> None:
        self._loop.remove_reader(self._listener)
        self._resume = self._loop.call_later(PAUSE_SECONDS, self._loop.add_reader, self._listener, self._accept)

    # Looking

    def _look(self, arriving: ArrivingConnection) -> None:
        """Peek at the first request, and place the connection once enough of it has arrived."""
        try:
            size = arriving.connection.recv_into(self._peeked, PEEKED_BYTES, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            self._look_later(arriving, has_begun=False)
            return
        except OSError:
            size = 0
        if not size:
            self._stop_looking(arriving)
            arriving.connection.close()
            return
        head, end, _ = bytes(memoryview(self._peeked)[:size]).partition(b"\r\n\r\n")
        named = _SESSION.search(head)
        if named is None and not end and size < PEEKED_BYTES:
            self._look_later(arriving, has_begun=True)
            return
        arriving.replica = named[1] if named is not None else b""
        self._stop_looking(arriving)
        self._place(arriving)

    def _look_later(self, arriving: ArrivingConnection, *, has_begun: bool) -> None:
        """Look again at the first byte, or after a pause; if time is up, give the connection to any worker.

        Part of a head is polled: the selector would report it at once, again and again, since it stays unread.
        """
        left = arriving.since + LOOK_SECONDS - self._loop.time()
        if left <= 0:
            self._stop_looking(arriving)
            self._place(arriving)
            return
        is_new = arriving not in self._looked_at
        if not is_new:
            self._stop_looking(arriving)
        self._looked_at[arriving] = None
        if has_begun:
            pause = min(FIRST_PAUSE_SECONDS * 2**arriving.looks, left)
            arriving.looks += 1
        else:
            pause = left
            self._loop.add_reader(arriving.connection, self._look, arriving)
        arriving.timer = self._loop.call_later(pause, self._look, arriving)
        if len(self._looked_at) > self._max_waiting:
            oldest = next(iter(self._looked_at))
            self._stop_looking(oldest)
            self._place(oldest)

    def _stop_looking(self, arriving: ArrivingConnection) -> None:
        if arriving.timer is not None:
            arriving.timer.cancel()
            arriving.timer = None
            self._loop.remove_reader(arriving.connection)
        self._looked_at.pop(arriving, None)

    # Placing

    def _place(self, arriving: ArrivingConnection) -> None:
        """Hand a connection to a worker, or hold it until there is one."""
        if self._hand_over(arriving):
            return
        if self._is_closed or len(self._held) >= self._max_waiting:
            self._refuse(arriving)
        else:
            self._held[arriving] = None
            if self._retry is None:
                self._retry = self._loop.call_later(PAUSE_SECONDS, self._place_held)

    def _place_held(self) -> None:
        """Hand over held connections, and refuse those held for too long."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        until = self._loop.time() - HELD_SECONDS
        for arriving in [*self._held]:
            if self._hand_over(arriving):
                del self._held[arriving]
            elif arriving.since < until:
                self._refuse(arriving)
        if self._held:
            self._retry = self._loop.call_later(PAUSE_SECONDS, self._place_held)

    def _refuse(self, arriving: ArrivingConnection) -> None:
        self._held.pop(arriving, None)
        self._line.warning("a connection was refused: no worker takes it")
        with suppress(OSError):
            # With unread bytes at its close, the system would reset the connection and drop the answer.
            arriving.connection.recv(PEEKED_BYTES)
            arriving.connection.send(UNAVAILABLE)
        arriving.connection.close()

    def _hand_over(self, arriving: ArrivingConnection) -> bool:
        kind, workers = self._choose(arriving)
        for worker in workers:
            self._last_number += 1
            if worker.link.hand(arriving.connection, kind, self._last_number):
                arriving.handed_at = self._loop.time()
                worker.untaken[self._last_number] = arriving
                worker.connections[self._last_number] = arriving.quota_key
                worker.by_address[arriving.quota_key] += 1
                # Round robin among workers with equally few.
                self.workers.remove(worker)
                self.workers.append(worker)
                return True
        return False

    def _choose(self, arriving: ArrivingConnection) -> tuple[FrameKind, list[Worker]]:
        """Return the workers for a connection, the best first, and whether it must displace an idle one.

        Where there is no place, the worker with most connections of the address, or most of all, is the one that
        probably has one to give up.
        """
        phase = max((worker.phase for worker in self.workers), default=Phase.STARTING)
        able = [worker for worker in self.workers if worker.phase is phase] if phase else []
        able = [worker for worker in able if not worker.is_stuck(STUCK_SECONDS)] or able
        of_address = partial(_of_address, arriving.quota_key)
        if sum(map(of_address, self.workers)) >= self._settings.max_connections_per_address:
            return FrameKind.ADDRESS_FULL, sorted(able, key=of_address, reverse=True)
        if sum(map(_count, self.workers)) >= self._settings.max_connections:
            return FrameKind.FULL, sorted(able, key=_count, reverse=True)
        own = [worker for worker in self.workers if arriving.replica and worker.replica == arriving.replica]
        return FrameKind.CONNECTION, own + sorted(able, key=_count)


def _count(worker: Worker) -> int:
    return len(worker.connections)


def _of_address(quota_key: str, worker: Worker) -> int:
    return worker.by_address[quota_key]
