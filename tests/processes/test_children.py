"""What becomes of children when the gateway, or what ends them in its place, is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pml_gateway.processes.children import Children, open_children
from tests.support.process import is_alive
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.name != "posix", reason="elsewhere children end with the gateway's job")

STUBBORN = """
import signal, sys, time
for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(ignored, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def stubborn() -> Iterator[subprocess.Popen[bytes]]:
    """A child that leads a group, and ends when it is killed."""
    command = [sys.executable, "-I", "-S", "-c", STUBBORN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child
        child.kill()


def reaper_of(given: Children) -> int:
    assert given.reaper is not None
    return given.reaper.pid


def test_a_reaper_that_is_killed_is_replaced_by_one_that_knows_all_children(stubborn: subprocess.Popen[bytes]) -> None:
    with open_children() as given:
        given.began(stubborn.pid, install_until=0.0)
        given.answered(stubborn.pid)
        killed = reaper_of(given)
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: reaper_of(given) != killed, "there is another one")
        assert not Path(f"/proc/{killed}").exists(), "it is no zombie"
    # The gateway has ended without having ended its child.
    assert stubborn.wait(10) == -signal.SIGKILL


def test_a_reaper_that_ended_otherwise_is_replaced_when_there_is_something_to_tell_it(
    stubborn: subprocess.Popen[bytes],
) -> None:
    with open_children() as given:
        given.began(stubborn.pid)
        killed = reaper_of(given)
        os.kill(killed, signal.SIGQUIT)
        wait_for(lambda: not is_alive(killed), "it is gone")
        given.answered(stubborn.pid)
        assert reaper_of(given) != killed
    assert stubborn.wait(10) == -signal.SIGKILL
