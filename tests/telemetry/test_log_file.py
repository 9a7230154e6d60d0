"""The log file of the gateway that clients share: it is rotated while it is written, and repeats are left out."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from pml_gateway.telemetry.log_file import LINES_OF_ONE_PLACE, OLD_LOGS, Repeats, old_log

pytestmark = pytest.mark.field("A6")

WRITES = """
import logging, os, sys
from pathlib import Path
from pml_gateway.telemetry import log_file, logs
log_file.MAX_BYTES = 10_000
log_file.LogFile.__init__.__defaults__ = (10_000,)
log_file.LINES_OF_ONE_PLACE = 10**9
path = Path(sys.argv[1])
logs.rotate(path)
logs.configure()
for number in range(int(sys.argv[2])):
    logging.getLogger("pml_gateway.test").info("line %d %s", number, "x" * 100)
    if number == 50 and len(sys.argv) > 3:
        path.unlink()
"""


def written(path: Path, *arguments: str) -> None:
    """Have a process whose stderr is the log write lines."""
    with path.open("ab") as log:
        subprocess.run(
            [sys.executable, "-c", WRITES, str(path), *arguments], stderr=log, stdout=log, check=True, timeout=60
        )


def test_a_log_is_rotated_while_it_is_written_and_a_few_old_ones_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "gateway.log"
    written(path, "1000")
    logs = [path, *(old_log(path, number) for number in range(1, OLD_LOGS + 1))]
    assert sorted(tmp_path.iterdir()) == sorted(logs)
    assert all(each.stat().st_size < 10_500 for each in logs)
    lines = [line for each in reversed(logs) for line in each.read_text().splitlines()]
    assert "line 999 " in lines[-1]
    assert [f"line {1000 - len(lines) + at} " in line for at, line in enumerate(lines)] == [True] * len(lines)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_log_that_another_process_rotated_or_somebody_removed_goes_on_at_its_path(tmp_path: Path) -> None:
    path = tmp_path / "gateway.log"
    written(path, "60", "removes it")
    assert "line 59 " in path.read_text()


def test_a_log_elsewhere_is_left_alone(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "gateway.log", tmp_path / "journal"
    with elsewhere.open("ab") as log:
        subprocess.run([sys.executable, "-c", WRITES, str(path), "200"], stderr=log, check=True, timeout=60)
    assert not path.exists()
    assert elsewhere.stat().st_size > 10_500


def record(text: str, *args: object, level: int = logging.WARNING, line: int = 1) -> logging.LogRecord:
    return logging.LogRecord("pml_gateway.x", level, "x.py", line, text, args, None)


def test_a_warning_is_written_once_a_minute_and_says_how_often_it_was_due() -> None:
    now = [0.0]
    repeats = Repeats(lambda: now[0])
    assert [repeats(record("bad line of %s", "a")) for _ in range(100)] == [True] + [False] * 99
    assert repeats(record("something else", line=2))
    now[0] = 61
    again = record("bad line of %s", "a")
    assert repeats(again)
    assert again.getMessage() == "bad line of a (and 99 times before)"


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING, logging.ERROR])
def test_one_place_writes_so_many_lines_a_minute_whatever_they_say(level: int) -> None:
    now = [0.0]
    repeats = Repeats(lambda: now[0])
    assert sum(repeats(record("garbage %d", number, level=level)) for number in range(1000)) == LINES_OF_ONE_PLACE
    now[0] = 61
    again = record("100%% %s", "garbage", level=level)
    assert repeats(again)
    assert again.getMessage() == f"100% garbage (and {1000 - LINES_OF_ONE_PLACE} times before)"


def test_how_requests_ended_is_written_each_time() -> None:
    repeats = Repeats(lambda: 0.0)
    for _ in range(LINES_OF_ONE_PLACE + 10):
        ended = record("tools/call ended with %s", "UPSTREAM_ERROR")
        ended.code = "UPSTREAM_ERROR"
        assert repeats(ended)
