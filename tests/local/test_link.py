"""The connection of a bridge to its gateway."""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from pml_gateway.local import bridge
from pml_gateway.local.bridge import GatewayConnection
from pml_gateway.local.endpoint import Endpoint
from pml_gateway.local.lines import FINISHING
from tests.support.waiting import wait_for


def test_a_gateway_that_takes_nothing_just_now_still_learns_that_the_client_sends_no_more() -> None:
    ours, gateway = socket.socketpair()
    with ours, gateway:
        ours.setblocking(False)
        link = GatewayConnection(ours)
        waiting = b"x" * 1_000_000 + b"\n"
        sent = ours.send(waiting)
        link.finish()
        taken = b""
        gateway.settimeout(5)
        while not taken.endswith(FINISHING + b"\n"):
            taken += gateway.recv(1_000_000)
            if link.out:
                link.write()
        assert taken == waiting[:sent] + FINISHING + b"\n"
        assert gateway.recv(1) == b""
        assert link.is_half_closed


def test_a_gateway_that_says_nothing_after_the_client_has_left_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "LEFT_SECONDS", 0.05)
    endpoint = Endpoint.of(tmp_path, tmp_path / "config.yaml")
    reading, stdin = os.pipe()
    answers, stdout = os.pipe()
    with endpoint.listen() as listener, ExitStack() as held:

        def accept() -> None:
            first = held.enter_context(listener.accept()[0])
            first.sendall(b'!{"attached": {"pid": 1}}\n')
            for _ in range(bridge.LOST_AT_ONCE):
                listener.accept()[0].close()

        gateway = threading.Thread(target=accept)
        gateway.start()
        os.write(stdin, b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}\n')
        os.close(stdin)
        assert bridge.Bridge(endpoint, [], {}, reading, stdout).run() == 0
        gateway.join()
    os.close(stdout)
    assert "there is no gateway" in json.loads(os.read(answers, 65_536))["error"]["message"]
    os.close(answers)
    os.close(reading)


def test_a_client_is_told_of_a_gateway_that_hangs_and_served_once_that_was_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bridge, "LISTEN_SECONDS", 2.0)
    # By then the next one would be too late, if both had the same limit.
    monkeypatch.setattr(bridge, "SILENT_SECONDS", 2.4)
    endpoint = Endpoint.of(tmp_path, tmp_path / "config.yaml")
    reading, stdin = os.pipe()
    answers, stdout = os.pipe()
    said: list[str] = []

    def is_told() -> bool:
        said.append(capsys.readouterr().err)
        return "has not answered for 2.4 s (`pml down` ends one that hangs)" in "".join(said)

    with endpoint.listen() as listener:

        def hang_and_serve() -> None:
            with listener.accept()[0]:
                wait_for(is_told, "the client is told")
            served = listener.accept()[0]
            with served, served.makefile("rb") as lines:
                served.sendall(b'!{"attached": {"pid": 2}}\n')
                while b"tools/list" not in lines.readline():
                    continue
                served.sendall(b'{"jsonrpc":"2.0","id":1,"result":{}}\n')

        gateway = threading.Thread(target=hang_and_serve, daemon=True)
        gateway.start()
        os.write(stdin, b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}\n')
        os.close(stdin)
        assert bridge.Bridge(endpoint, [], {}, reading, stdout).run() == 0
        gateway.join(60)
    os.close(stdout)
    with os.fdopen(answers) as told:
        assert json.loads(told.readline()) == {"jsonrpc": "2.0", "id": 1, "result": {}}
    os.close(reading)
