"""A worker's end of the stream: what it takes and says, and what it does when nobody hands it anything any more."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import suppress

import anyio.lowlevel
import pytest

from pml_gateway.errors import ConfigurationError
from pml_gateway.serve.workers.handover import FRAME, FrameKind, HandedConnection, Handover, WorkerLink, check_workers
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

REPLICA = "a" * 12


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    own, others = socket.socketpair()
    with own, others:
        yield own, others


def said(link: WorkerLink) -> list[tuple[FrameKind, bytes, int]]:
    with suppress(EOFError):
        return list(link.frames())
    return []


async def test_a_worker_takes_what_it_is_handed_and_says_once_that_it_has_left(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    link, handover, taken = WorkerLink(ends[0]), Handover(2, ends[1], "http://x", "127.0.0.1"), list[HandedConnection]()
    handover.begin(REPLICA, 4711, taken.append)
    client, served = socket.socketpair()
    with client, served:
        assert link.hand(served, FrameKind.ADDRESS_FULL, 7)
        assert link.introduce(1, b"b" * 12, 4712)
        await until(lambda: taken and handover.replica_of(1))
        with taken[0].connection as connection:
            connection.sendall(b"served")
            assert client.recv(10) == b"served"
            assert not connection.get_inheritable()
        assert taken[0].kind is FrameKind.ADDRESS_FULL
    taken[0].left()
    taken[0].left()
    assert said(link) == [
        (FrameKind.OPEN, REPLICA.encode(), 4711),
        (FrameKind.TAKEN, b"", 7),
        (FrameKind.LEFT, b"", 7),
    ]
    assert [*handover.others()] == [(1, "http://127.0.0.1:4712")]
    link.introduce(1, b"", 0)
    await until(lambda: handover.replica_of(1) is None)
    link.end()
    await handover.end()


async def test_a_worker_reads_nothing_of_a_connection_before_it_has_said_that_it_takes_it(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    link, handover, taken = WorkerLink(ends[0]), Handover(2, ends[1], "http://x", "127.0.0.1"), list[HandedConnection]()
    handover.begin(REPLICA, 4711, taken.append)
    with suppress(BlockingIOError):
        while True:
            ends[1].send(FRAME.pack(FrameKind.LEFT, b"", 1))
    client, served = socket.socketpair()
    with client, served:
        assert link.hand(served, FrameKind.CONNECTION, 7)
        assert link.introduce(1, b"b" * 12, 4712)
        await until(lambda: handover.replica_of(1))
        assert not taken
        while (FrameKind.TAKEN, b"", 7) not in said(link):
            await anyio.lowlevel.checkpoint()
        await until(lambda: taken)
        taken[0].connection.close()


async def test_a_worker_ends_in_order_once_the_accepting_process_is_gone(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[signal.Signals] = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    Handover(1, ends[1], "http://x", "127.0.0.1").begin(REPLICA, 1, lambda _: None)
    ends[0].close()
    await until(lambda: raised == [signal.SIGTERM])


def test_a_system_that_hands_over_no_connections_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "send_fds")
    with pytest.raises(ConfigurationError, match="Linux, macOS or BSD"):
        check_workers()
