"""Commands to the gateway of a machine: answered, refused, or given up within their limit, and never waited for."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.errors import GatewayError
from pml_gateway.local.commands import ask, wait_for_end
from pml_gateway.local.endpoint import Endpoint
from pml_gateway.owner.operations import OfProcess
from tests.support.scripted_machine import scripted_machine

STATUS: OfProcess[Any] = OfProcess("status")
DOWN: OfProcess[Any] = OfProcess("down")
"""Answered by scripts, in few words."""


def test_where_nobody_listens_there_is_no_answer(tmp_path: Path) -> None:
    assert ask(Endpoint.of(tmp_path, "config.yaml"), STATUS, 5) is None


def test_an_answer_of_many_parts_is_read_to_its_end(tmp_path: Path) -> None:
    answer = {"clients": ["x" * 1000] * 500}
    with scripted_machine(tmp_path, {"status": answer}) as machine:
        assert ask(machine.endpoint, STATUS, 5) == answer


def test_what_it_refuses_is_an_error_with_its_words(tmp_path: Path) -> None:
    with scripted_machine(tmp_path, {}) as machine, pytest.raises(GatewayError, match="unknown operation 'dance'"):
        ask(machine.endpoint, OfProcess("dance"), 5)


@pytest.mark.parametrize(
    ("said", "error"), [(b"", "without an answer"), (b"no json\n", "is none"), (b"[]\n", "no result")]
)
def test_what_is_no_answer_is_an_error(tmp_path: Path, said: bytes, error: str) -> None:
    endpoint = Endpoint.of(tmp_path, "config.yaml")
    endpoint.prepare()
    with endpoint.listen() as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(GatewayError, match=error):
            ask(endpoint, STATUS, 5)
        thread.join()


@pytest.mark.parametrize("said", [b"", b'{"pid": '], ids=["nothing", "half"])
@pytest.mark.parametrize("has_next", [True, False])
def test_one_that_leaves_without_an_answer_is_not_to_blame_where_another_has_its_place(
    tmp_path: Path, said: bytes, has_next: bool
) -> None:
    endpoint = Endpoint.of(tmp_path, "config.yaml")
    endpoint.prepare()
    life = endpoint.take_life()
    assert life is not None
    listeners = [endpoint.listen()]
    lives = [life]

    def leave() -> None:
        """Leave as a gateway that is restarted, and answer as the next one."""
        connection, _ = listeners[0].accept()
        with connection:
            connection.recv(1000)
            endpoint.withdraw()
            endpoint.leave(life)
            if has_next:
                next_life = endpoint.take_life()
                assert next_life is not None
                lives.append(next_life)
                os.ftruncate(next_life, 0)
                os.pwrite(next_life, b"4", 0)
                listeners.append(endpoint.listen())
            connection.sendall(said)
        if has_next:
            connection, _ = listeners[1].accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b'{"result": {"pid": 4}}\n')

    thread = threading.Thread(target=leave)
    thread.start()
    assert ask(endpoint, STATUS, 30) == ({"pid": 4} if has_next else None)
    thread.join()
    for listener in listeners:
        listener.close()
    for each in lives:
        os.close(each)


def test_one_that_does_not_answer_is_waited_for_within_the_limit(tmp_path: Path) -> None:
    endpoint = Endpoint.of(tmp_path, "config.yaml")
    endpoint.prepare()
    Path(endpoint.log).touch()
    with endpoint.listen(), pytest.raises(GatewayError, match=r"no answer in \S+ s") as caught:
        ask(endpoint, STATUS, 0.05)
    assert endpoint.log in str(caught.value)


def test_a_log_that_is_not_there_is_not_named(tmp_path: Path) -> None:
    endpoint = Endpoint.of(tmp_path, "config.yaml")
    endpoint.prepare()
    Path(endpoint.socket).touch(0o600)
    with pytest.raises(GatewayError, match="something else is in this place") as caught:
        ask(endpoint, STATUS, 5)
    assert endpoint.log not in str(caught.value)


@pytest.mark.parametrize("is_new", [True, False])
def test_only_one_that_has_just_been_started_is_waited_for_beyond_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    monkeypatch.setattr("pml_gateway.local.commands.PROGRESS_INTERVAL", 0.01)
    endpoint = Endpoint.of(tmp_path, "config.yaml")
    endpoint.prepare()
    told: list[float] = []
    life = endpoint.take_life()
    assert life is not None
    if not is_new:
        an_hour_ago = time.time() - 3600
        os.utime(endpoint.life_lock, (an_hour_ago, an_hour_ago))
    with endpoint.listen() as listener:

        def tell(left: float) -> None:
            told.append(left)
            if len(told) == 10:
                accepted, _ = listener.accept()
                accepted.sendall(b'{"result": {"pid": 1}}\n')
                accepted.close()

        if is_new:
            assert ask(endpoint, STATUS, 0.03, waiting=tell) == {"pid": 1}
            assert min(told) >= 0
        else:
            with pytest.raises(GatewayError, match=r"no answer in \S+ s"):
                ask(endpoint, STATUS, 0.03, waiting=tell)
    endpoint.leave(life)
    os.close(life)


def test_whoever_waits_is_told_how_long_it_may_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pml_gateway.local.commands.PROGRESS_INTERVAL", 0.01)
    endpoint = Endpoint.of(tmp_path, "config.yaml")
    endpoint.prepare()
    told: list[float] = []
    accepted: list[socket.socket] = []
    with endpoint.listen() as listener:

        def tell(left: float) -> None:
            if not told:
                accepted.append(listener.accept()[0])
                accepted[0].sendall(json.dumps({"result": {"ended": True}}).encode() + b"\n")
            told.append(left)

        assert ask(endpoint, DOWN, 30, waiting=tell) == {"ended": True}
        accepted[0].close()
    assert 0 < told[0] <= 30


def test_the_end_is_waited_for_within_a_limit(tmp_path: Path) -> None:
    with scripted_machine(tmp_path, {}) as machine, machine.endpoint.watch() as gateway:
        assert not wait_for_end(gateway, 0.01)
    with machine.endpoint.watch() as gateway:
        assert wait_for_end(gateway, 0.01)


def test_the_end_that_is_waited_for_is_that_of_the_one_that_lived_and_not_of_the_next(tmp_path: Path) -> None:
    endpoint = Endpoint.of(tmp_path, "config.yaml")
    endpoint.prepare()
    first = endpoint.take_life()
    assert first is not None
    with endpoint.watch() as gateway:
        endpoint.leave(first)
        second = endpoint.take_life()
        assert second is not None
        assert not wait_for_end(gateway, 0.01), "it has what it started yet to end"
        os.close(first)
        assert wait_for_end(gateway, 0.01)
        assert endpoint.living() == os.getpid()
    os.close(second)
