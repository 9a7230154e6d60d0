"""The process that accepts connections: which worker gets one, and what a client that says nothing costs others."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from pml_gateway.config.settings import HttpSettings
from pml_gateway.serve.workers import accepting
from pml_gateway.serve.workers.accepting import ACCEPTED_AT_ONCE, Accepting
from pml_gateway.serve.workers.handover import FRAME, PORT_BITS, FrameKind
from tests.support.listening import bound
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

PLAIN = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
OF_TWO = b"POST /mcp HTTP/1.1\r\nhost: x\r\nMcp-Session-Id: bbbbbbbbbbbb-x\r\n\r\n"


class FakeWorker:
    """The other end of the stream, which keeps what it is given."""

    def __init__(self, end: socket.socket, replica: bytes) -> None:
        self.end = end
        self.replica = replica
        self.others: dict[int, int] = {}
        self.taken: list[tuple[FrameKind, int, socket.socket]] = []

    def say(self, kind: FrameKind, number: int = 0) -> None:
        self.end.sendall(FRAME.pack(kind, self.replica, number))

    def take(self) -> None:
        """Take all that lies there."""
        while True:
            try:
                content, descriptors, _, _ = socket.recv_fds(self.end, FRAME.size, 1)
            except BlockingIOError:
                return
            if not content:
                return
            kind, _, number = FRAME.unpack(content)
            if kind == FrameKind.OTHER:
                self.others[number >> PORT_BITS] = number & (1 << PORT_BITS) - 1
                continue
            self.taken.append((FrameKind(kind), number, socket.socket(fileno=descriptors[0])))
            self.say(FrameKind.TAKEN, number)

    def close(self) -> None:
        with suppress(OSError):
            self.take()
        for _, _, connection in self.taken:
            connection.close()
        self.end.close()


class Served:
    """An accepting process with workers."""

    def __init__(self, accepting: Accepting, address: tuple[str, int], stack: ExitStack) -> None:
        self.accepting = accepting
        self._address = address
        self._stack = stack
        self.workers: list[FakeWorker] = []

    def worker(self, replica: bytes, *said: FrameKind) -> FakeWorker:
        own, other = socket.socketpair()
        own.setblocking(False)
        self._stack.enter_context(other)
        worker = FakeWorker(own, replica)
        self._stack.callback(worker.close)
        self._stack.enter_context(self.accepting.worker(len(self.workers) + 1, other, lambda: None))
        self.workers.append(worker)
        for each in said:
            worker.say(each)
        return worker

    async def connect(self, *parts: bytes) -> socket.socket:
        """A client that sends something, part by part."""
        client = self._stack.enter_context(socket.socket())
        client.setblocking(False)
        with anyio.fail_after(60):
            await asyncio.get_running_loop().sock_connect(client, self._address)
            for part in parts:
                await asyncio.get_running_loop().sock_sendall(client, part)
                await anyio.lowlevel.checkpoint()
        return client

    def connected(self, content: bytes) -> socket.socket:
        """A client that has sent something before the accepting process gets to look."""
        client = self._stack.enter_context(socket.create_connection(self._address, timeout=60))
        client.sendall(content)
        return client

    def taken(self) -> list[int]:
        """How many connections each worker has been given."""
        for worker in self.workers:
            worker.take()
        return [len(worker.taken) for worker in self.workers]

    async def until_taken(self, *counts: int) -> None:
        await until(lambda: self.taken() == [*counts])


@asynccontextmanager
async def accepted(**settings: int) -> AsyncIterator[Served]:
    with bound() as listener, ExitStack() as stack:
        accepting = Accepting(listener, HttpSettings.model_validate(settings), 1000)
        stack.callback(accepting.close)
        yield Served(accepting, listener.getsockname(), stack)


@asynccontextmanager
async def two(**settings: int) -> AsyncIterator[Served]:
    async with accepted(**settings) as served:
        for replica in (b"aaaaaaaaaaaa", b"bbbbbbbbbbbb"):
            served.worker(replica, FrameKind.OPEN, FrameKind.READY)
            await heard(served)
        yield served


async def heard(served: Served) -> None:
    """Wait until the last worker's words have been read."""
    ends = [worker.end for worker in served.workers]
    await until(lambda: all(unread(end) == 0 for end in ends))
    await anyio.lowlevel.checkpoint()


def unread(end: socket.socket) -> int:
    """Bytes that the other side has not read."""
    (count,) = struct.unpack("i", fcntl.ioctl(end.fileno(), termios.TIOCOUTQ, b"\0" * 4))
    return int(count)


async def test_connections_go_to_the_worker_with_the_fewest_in_turns() -> None:
    async with two() as served:
        for count in range(6):
            await served.connect(PLAIN)
            await served.until_taken((count + 2) // 2, (count + 1) // 2)


async def test_what_a_worker_says_has_ended_counts_no_more() -> None:
    async with two() as served:
        for _ in range(4):
            await served.connect(PLAIN)
        await served.until_taken(2, 2)
        for _, number, _ in served.workers[1].taken:
            served.workers[1].say(FrameKind.LEFT, number)
        await heard(served)
        await served.connect(PLAIN)
        await served.connect(PLAIN)
        await served.until_taken(2, 4)


@pytest.mark.parametrize(
    "parts",
    [
        [OF_TWO],
        [OF_TWO[:30], OF_TWO[30:]],
        [OF_TWO[:50], OF_TWO[50:]],
        [OF_TWO[:-3] + b"y" * 10_000 + OF_TWO[-4:]],
        [OF_TWO.replace(b"Mcp-Session-Id: ", b"x: " + b"y" * 10_000 + b"\r\nMCP-SESSION-ID:")],
    ],
    ids=["whole", "in two parts", "split in the id", "long id", "after 10,000 bytes"],
)
async def test_a_connection_whose_first_request_names_a_session_goes_to_its_worker(parts: list[bytes]) -> None:
    async with two() as served:
        for _ in range(3):
            await served.connect(*parts)
        await served.until_taken(0, 3)
        _, _, connection = served.workers[1].taken[0]
        assert connection.recv(65536) == b"".join(parts)


@pytest.mark.parametrize("name", [b"cccccccccccc-x", b"x", b"bbbbbbbbbbbbx", b""])
async def test_a_session_of_no_worker_goes_to_any(name: bytes) -> None:
    async with two() as served:
        await served.connect(OF_TWO.replace(b"bbbbbbbbbbbb-x", name))
        await served.connect(PLAIN)
        await served.until_taken(1, 1)


async def test_a_body_names_no_session() -> None:
    async with two() as served:
        await served.connect(PLAIN)
        await served.connect(PLAIN)
        await served.until_taken(1, 1)
        await served.connect(b"POST / HTTP/1.1\r\nhost: x\r\n\r\n" + OF_TWO)
        await served.until_taken(2, 1)


async def test_clients_that_say_nothing_hold_nobody_up_and_go_to_a_worker_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accepting, "LOOK_SECONDS", 0.3)
    async with two() as served:
        for sent in (b"", b"POST /mcp HTTP/1.1\r\nx-half: "):
            for _ in range(20):
                await served.connect(sent)
        await served.connect(OF_TWO)
        await until(lambda: served.taken()[1] == 1)
        await until(lambda: sum(served.taken()) == 41)


async def test_of_many_that_say_nothing_the_first_go_to_a_worker_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "MAX_WAITING", 3)
    monkeypatch.setattr(accepting, "LOOK_SECONDS", 60)
    async with two() as served:
        for _ in range(8):
            await served.connect(b"")
        await until(lambda: sum(served.taken()) == 5)


async def test_clients_that_leave_before_they_say_anything_are_nobodys() -> None:
    async with two() as served:
        for _ in range(5):
            (await served.connect(b"")).close()
        await served.connect(PLAIN)
        await until(lambda: sum(served.taken()) == 1)


@pytest.mark.parametrize(
    ("limits", "kind"),
    [({"max_connections_per_address": 2}, FrameKind.ADDRESS_FULL), ({"max_connections": 2}, FrameKind.FULL)],
)
async def test_the_limits_hold_for_all_workers_together(limits: dict[str, int], kind: FrameKind) -> None:
    async with two(**limits) as served:
        for _ in range(4):
            await served.connect(PLAIN)
        await until(lambda: sum(served.taken()) == 4)
        kinds = sorted(each for worker in served.workers for each, _, _ in worker.taken)
        assert kinds == [FrameKind.CONNECTION] * 2 + [kind] * 2


async def test_workers_know_the_ports_of_the_others_that_run() -> None:
    async with accepted() as served:
        for replica, port in ((b"a" * 12, 1111), (b"b" * 12, 2222), (b"c" * 12, 3333)):
            served.worker(replica).say(FrameKind.OPEN, port)
        await until(lambda: len(served.taken()) == 3 and served.workers[0].others == {2: 2222, 3: 3333})
        assert served.workers[2].others == {1: 1111, 2: 2222}
        served.workers[1].say(FrameKind.ENDING)
        await until(lambda: (took(served.workers[0]), served.workers[0].others) == (0, {2: 0, 3: 3333}))


async def test_a_worker_that_is_ready_is_preferred_to_one_that_is_not() -> None:
    async with accepted() as served:
        served.worker(b"a" * 12, FrameKind.OPEN)
        await heard(served)
        await served.connect(PLAIN)
        await served.until_taken(1)
        served.worker(b"b" * 12, FrameKind.OPEN, FrameKind.READY)
        await heard(served)
        for _ in range(3):
            await served.connect(PLAIN)
        await served.until_taken(1, 3)


async def test_connections_wait_for_a_worker_that_takes_them() -> None:
    async with accepted() as served:
        gone = served.worker(b"a" * 12, FrameKind.OPEN)
        await heard(served)
        gone.say(FrameKind.ENDING)
        await heard(served)
        await served.connect(OF_TWO)
        await served.connect(PLAIN)
        served.worker(b"b" * 12, FrameKind.OPEN)
        await served.until_taken(0, 2)


async def test_the_last_worker_to_end_is_given_what_clients_have_sent_by_then() -> None:
    async with accepted() as served:
        worker = served.worker(b"aaaaaaaaaaaa", FrameKind.OPEN, FrameKind.READY)
        await heard(served)
        served.accepting.begin_stop()
        # More than are accepted at once.
        clients = [served.connected(PLAIN) for _ in range(ACCEPTED_AT_ONCE + 20)]
        worker.say(FrameKind.ENDING)
        await served.until_taken(len(clients))
        with pytest.raises(ConnectionRefusedError):
            served.connected(PLAIN)


async def test_what_a_worker_has_not_taken_when_it_dies_goes_to_another() -> None:
    async with two() as served:
        for _ in range(4):
            await served.connect(OF_TWO)
        await until(lambda: len(served.accepting.workers[-1].untaken) == 4)
        served.workers[1].end.shutdown(socket.SHUT_RDWR)
        await until(lambda: took(served.workers[0]) == 4)


async def test_what_a_worker_has_begun_to_read_when_it_dies_goes_to_no_other() -> None:
    async with accepted() as served:
        survivor = served.worker(b"a" * 12, FrameKind.OPEN, FrameKind.READY)
        await heard(served)
        own, other = socket.socketpair()
        own.setblocking(False)
        doomed = FakeWorker(own, b"b" * 12)
        with other, served.accepting.worker(2, other, lambda: None):
            doomed.say(FrameKind.OPEN)
            doomed.say(FrameKind.READY)
            client = await served.connect(OF_TWO)
            await until(partial(has_taken, doomed, 1))
            assert doomed.taken[0][2].recv(30) == OF_TWO[:30]
            doomed.close()
        assert took(survivor) == 0
        with anyio.fail_after(60), suppress(ConnectionResetError):
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b""


async def test_connections_that_no_worker_takes_in_time_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "HELD_SECONDS", 0.2)
    async with accepted() as served:
        gone = served.worker(b"a" * 12, FrameKind.OPEN)
        await heard(served)
        gone.say(FrameKind.ENDING)
        await heard(served)
        client = await served.connect(PLAIN)
        with anyio.fail_after(60):
            received = await asyncio.get_running_loop().sock_recv(client, 1000)
        assert received.startswith(b"HTTP/1.1 503 ")
        head, _, body = received.partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}".encode() in head


async def test_a_worker_that_reads_nothing_gets_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "STUCK_SECONDS", 0)
    async with two() as served:
        await served.connect(OF_TWO)
        await until(lambda: served.accepting.workers[-1].untaken)
        for count in range(4):
            await served.connect(PLAIN)
            await until(partial(has_taken, served.workers[0], count + 1))
            await heard(served)
        # What only that worker has waits for it.
        await served.connect(OF_TWO)
        await until(lambda: took(served.workers[1]) == 2)


async def test_a_worker_that_is_busy_loses_its_turn_and_no_connection() -> None:
    async with two() as served:
        fill(served)
        await served.connect(PLAIN)
        await served.connect(PLAIN)
        await until(lambda: took(served.workers[1]) == 2)


def has_taken(worker: FakeWorker, count: int) -> bool:
    return took(worker) == count


def took(worker: FakeWorker) -> int:
    worker.take()
    return len(worker.taken)


def fill(served: Served) -> None:
    """Hand the first worker, which takes nothing, as much as its socket holds."""
    worker = next(each for each in served.accepting.workers if each.number == 1)
    with socket.socket() as nothing:
        while worker.link.hand(nothing, FrameKind.CONNECTION, 0):
            continue
