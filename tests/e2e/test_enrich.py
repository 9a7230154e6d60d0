"""`pml enrich` as a process, in front of real servers, with a scripted language model."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pml_gateway.demo.definitions import demo_servers
from tests.support import fake_writer
from tests.support.process import end_gateway, environment, run_pml, write_settings

pytestmark = pytest.mark.slow

SECONDS = 120


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pml_gateway", *arguments]


def writer(behaviour: str, asked: Path) -> list[str]:
    return ["--writer", shlex.join([sys.executable, fake_writer.__file__, behaviour, str(asked)])]


def run(home: Path, *arguments: str) -> str:
    done = run_pml(home, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def count(asked: Path) -> int:
    return len(asked.read_text().splitlines()) if asked.exists() else 0


def test_what_was_written_is_found_and_an_interruption_loses_nothing(tmp_path: Path) -> None:
    home, asked, later = tmp_path / "home", tmp_path / "asked", tmp_path / "later"
    write_settings(home, {"servers": demo_servers(tmp_path / "demo")})
    total = json.loads(run(home, "enrich", "--dry-run", "--json"))["tools"]

    process = subprocess.Popen(
        command("enrich", "--yes", *writer("hang-later", asked)),
        env=environment(home),
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # The second prompt hangs: the first server's requests are stored.
    until(lambda: count(asked) == 2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "the next run goes on from there" in said
    left = json.loads(run(home, "enrich", "--dry-run", "--json"))
    assert 0 < left["tools"] < total

    result = json.loads(run(home, "enrich", "--yes", "--json", *writer("good", later)))["result"]
    assert result["unsent"] == 0
    assert not [line for line in later.read_text().splitlines() if json.loads(line)["prompt"].count('"files"')]
    shown = json.loads(run(home, "example-queries", "show", "notes__create_note", "--json"))["examples"]
    assert shown
    hits = json.loads(run(home, "search", shown[0]["text"], "--json"))["hits"]
    assert hits[0]["name"] == "notes__create_note"
    end_gateway(home)
