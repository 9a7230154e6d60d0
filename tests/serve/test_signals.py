"""Signals end a command whatever it makes of its cancellation; what the gateway does of one is its own matter."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import anyio.lowlevel
import pytest

from pml_gateway.cli.context import Command
from pml_gateway.errors import GatewayError
from pml_gateway.serve import signals
from pml_gateway.serve.signals import first_signal
from tests.support.waiting import wait_for

ENDS = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.fixture(autouse=True)
def the_tests_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "ENDING_SECONDS", 1e6)


def ended(work: Callable[[], Awaitable[None]]) -> object:
    """The exit code of a command that does this."""
    with pytest.raises((KeyboardInterrupt, SystemExit)) as raised:
        Command().run(work)
    return raised.value.code if isinstance(raised.value, SystemExit) else 130


@pytest.mark.parametrize("sent", ENDS)
def test_a_command_ends_whose_first_cancellation_is_swallowed(sent: signal.Signals) -> None:
    steps: list[str] = []

    async def work() -> None:
        os.kill(os.getpid(), sent)
        with suppress(BaseException):
            await anyio.sleep_forever()
        steps.append("swallowed")
        await anyio.lowlevel.checkpoint()
        steps.append("went on")

    assert ended(work) == ENDS[sent]
    assert steps == ["swallowed"]


@pytest.mark.parametrize("sent", ENDS)
def test_what_fails_as_a_command_is_ended_is_not_what_ended_it(sent: signal.Signals) -> None:
    async def work() -> None:
        os.kill(os.getpid(), sent)
        try:
            await anyio.sleep_forever()
        finally:
            raise GatewayError("the server has left")

    before = {each: signal.getsignal(each) for each in ENDS}
    assert ended(work) == ENDS[sent]
    assert {each: signal.getsignal(each) for each in ENDS} == before


def test_a_command_that_hears_signals_itself_goes_on_and_ends_as_it_wants() -> None:
    heard = []

    async def work() -> int:
        async with first_signal() as signalled:
            os.kill(os.getpid(), signal.SIGTERM)
            await signalled.wait()
            heard.append(True)
        return 7

    assert Command().run(work) == 7
    assert heard


WORK = """
import os, signal, sys, time
from pml_gateway.serve import signals
signals.ENDING_SECONDS = float(sys.argv[2])
async def work():
    os.kill(os.getpid(), signal.SIGINT)
    exec(sys.argv[1])
signals.run_until_signalled(work)
"""


def test_what_has_ended_in_time_is_not_ended_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    exits = list[int]()
    monkeypatch.setattr(os, "_exit", exits.append)
    threads = _thread._count()

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await anyio.sleep_forever()

    assert ended(work) == 130
    wait_for(lambda: _thread._count() <= threads, "nothing waits for its end")
    assert not exits


def code(doing: str, limit: float) -> int:
    return subprocess.run([sys.executable, "-c", WORK, doing, str(limit)], timeout=60, check=False).returncode


@pytest.mark.slow
def test_a_command_ends_though_its_event_loop_is_blocked() -> None:
    assert code("time.sleep(1e6)", 0.1) == 130


@pytest.mark.slow
def test_a_second_signal_ends_a_command_at_once_though_its_event_loop_is_blocked() -> None:
    assert code("os.kill(os.getpid(), signal.SIGINT)", 1e6) == -signal.SIGINT
