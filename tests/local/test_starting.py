"""Starting a gateway that is nobody's child."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pml_gateway.local.endpoint import Endpoint
from pml_gateway.local.starting import FailedStartError, reach
from tests.local import fake_gateway
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

PATIENCE = 20.0


@contextmanager
def reached(home: Path, behaviour: str = "") -> Iterator[Endpoint]:
    """The endpoint of a gateway that was started; all that were are ended at the end."""
    config = home / "config.yaml"
    endpoint = Endpoint.of(home, config)
    command = [sys.executable, fake_gateway.__file__, str(home), str(config), behaviour]
    environ = {**os.environ, "PYTHONPATH": str(Path(fake_gateway.__file__).parents[2])}
    try:
        with reach(endpoint, command, time.monotonic() + PATIENCE, environ):
            yield endpoint
    finally:
        for pid in started(home):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def started(home: Path) -> list[int]:
    """The process ids of the gateways that were started."""
    file = home / "starts"
    return [json.loads(line)["pid"] for line in file.read_text().splitlines()] if file.exists() else []


def test_a_limit_of_open_files_without_end_holds_no_start_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where one system call does not close them all, as many would be closed one by one.
    monkeypatch.setattr(os, "sysconf", lambda _: 2**63 - 1)
    reading, inherited = os.pipe()
    os.set_inheritable(inherited, True)
    try:
        with reached(tmp_path):
            os.close(inherited)
            assert os.read(reading, 1) == b"", "the gateway has no file of its client's"
    finally:
        os.close(reading)


def test_one_that_a_signal_ends_before_it_listens_is_started_once_more(tmp_path: Path) -> None:
    with reached(tmp_path, "is_killed_once") as endpoint:
        assert endpoint.living() == started(tmp_path)[1]


def test_one_that_signals_end_again_is_no_failure_of_the_starts_of_others(tmp_path: Path) -> None:
    with pytest.raises(FailedStartError, match="signal 9"), reached(tmp_path, "is_killed"):
        pass
    assert len(started(tmp_path)) == 2
    assert not [*(tmp_path / "run").glob("*.failure")]


@contextmanager
def odd_signals() -> Iterator[None]:
    """This process treats signals as no gateway should."""
    handler = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGCHLD, handler)


def test_a_gateway_does_not_take_over_how_its_client_treats_signals(tmp_path: Path) -> None:
    with odd_signals(), reached(tmp_path) as endpoint:
        os.kill(started(tmp_path)[0], signal.SIGTERM)
        wait_for(lambda: endpoint.living() is None, "the gateway ends")


def test_a_log_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    log = Path(Endpoint.of(tmp_path, tmp_path / "config.yaml").log)
    log.parent.mkdir(parents=True)
    os.mkfifo(log)
    with pytest.raises(OSError, match=log.name), reached(tmp_path):
        pass
