"""How tests end that hang, and with which signals they run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.limits import OWN_SIGNALS
from tests.support.process import is_alive

HANGS = """
import subprocess, threading, time
import anyio, pytest
from hypothesis import given, strategies
from tests.support import limits

limits.AGAIN_SECONDS = 0.5

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.fixture
def never_gone():
    yield
    time.sleep(600)

def test_waits():
    time.sleep(600)

def test_waits_for_a_process():
    subprocess.run(["sleep", "600"])

def test_waits_for_a_thread():
    thread = threading.Thread(target=time.sleep, args=(600,), daemon=True)
    thread.start()
    thread.join()

@pytest.mark.anyio
async def test_cleans_up_for_ever():
    try:
        await anyio.sleep(600)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(600)

def test_swallows_the_first_alarm():
    try:
        time.sleep(600)
    except BaseException:
        time.sleep(600)

@given(strategies.integers())
def test_an_example_hangs(number):
    if number > 3:
        time.sleep(600)

def test_is_torn_down_for_ever(never_gone):
    pass

def test_fails_and_is_torn_down_for_ever(never_gone):
    raise AssertionError

def test_passes():
    pass
"""

SIGNALS = """
import signal, subprocess, sys

def test_signals_of_this_process():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
    ignored = {each for each in signal.valid_signals() if signal.getsignal(each) is signal.SIG_IGN}
    assert ignored <= {signal.SIGPIPE, signal.SIGXFSZ}

def test_signals_of_its_children():
    status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout
    if status:
        masks = dict(line.split(":") for line in status.splitlines() if line.startswith("Sig"))
        assert int(masks["SigIgn"], 16) == int(masks["SigBlk"], 16) == 0
"""

STARTS = {
    "nohup": [signal.SIGHUP],
    "a shell in the background": [signal.SIGINT, signal.SIGQUIT],
    "all that can be ignored": sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, 32, 33}),
}


def run(folder: Path, code: str, *options: str, ignored: list[signal.Signals] = []) -> str:  # noqa: B006  # unchanged
    """Return the output of pytest for a file of tests, started by a process that ignores and blocks these signals."""
    (folder / "test_these.py").write_text(code, encoding="utf-8")
    pytest_ = [sys.executable, "-m", "pytest", "-p", "tests.support.limits", "-q", f"--rootdir={folder}", *options]
    start = (
        "import os, signal, sys\n"
        f"for each in {[int(each) for each in ignored]}: signal.signal(each, signal.SIG_IGN)\n"
        f"signal.pthread_sigmask(signal.SIG_BLOCK, {[int(each) for each in ignored]})\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    return subprocess.run(
        [sys.executable, "-c", start, *pytest_, "test_these.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    ).stdout


@pytest.mark.slow
def test_what_hangs_fails_and_the_next_test_runs(tmp_path: Path) -> None:
    shown = run(tmp_path, HANGS, "-n", "2", "-o", "timeout=1", "-o", "timeout_method=signal", "-W", "error")
    failed = set(re.findall(r"^FAILED test_these.py::(\w+) - Failed: Timeout", shown, re.M))
    assert failed == {
        "test_waits",
        "test_waits_for_a_process",
        "test_waits_for_a_thread",
        "test_cleans_up_for_ever",
        "test_swallows_the_first_alarm",
        "test_an_example_hangs",
    }
    errors = set(re.findall(r"^ERROR test_these.py::(\w+) - Failed: Timeout", shown, re.M))
    assert errors == {"test_is_torn_down_for_ever", "test_fails_and_is_torn_down_for_ever"}
    assert "7 failed, 2 passed, 2 errors" in shown


@pytest.mark.parametrize("processes", ["0", "1"])
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.slow
def test_tests_and_their_children_have_the_default_signals(tmp_path: Path, start: str, processes: str) -> None:
    shown = run(tmp_path, SIGNALS, "-n", processes, ignored=STARTS[start])
    assert "2 passed" in shown, shown


def test_python_ignores_no_other_signals_itself() -> None:
    code = "import signal; print(*(int(s) for s in signal.valid_signals() if signal.getsignal(s) is signal.SIG_IGN))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert {*map(int, shown.split())} == {*map(int, OWN_SIGNALS)}


def test_a_process_that_ends_while_it_is_looked_at_is_not_alive() -> None:
    for _ in range(200):
        with subprocess.Popen(["true"]) as child:
            waits = threading.Thread(target=child.wait)
            waits.start()
            while is_alive(child.pid):
                pass
            waits.join(60)
