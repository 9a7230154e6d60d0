"""Commands on Windows, where clients cannot share a gateway."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.command_line import home_of, pml

SENTENCE = "one gateway for the machine is not supported on Windows; `pml serve --alone` starts one for one client"
SERVERS = {"servers": {"files": {"command": "no-such-command-of-pml", "enabled": False}}}

AS_ON_WINDOWS = """
import sys, types

sys.modules["fcntl"] = None
sys.modules["msvcrt"] = types.ModuleType("msvcrt")
sys.platform = "win32"
from pml_gateway.__main__ import main

main()
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr("pml_gateway.local.endpoint.sys", SimpleNamespace(platform="win32"))
    with home_of(tmp_path, SERVERS) as home, pytest.MonkeyPatch.context() as patch:
        patch.delenv("PML_LOCAL__ATTACH")
        yield home


def test_serve_says_in_one_sentence_that_clients_cannot_share_a_gateway() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AS_ON_WINDOWS, "serve"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (78, "", f"error: {SENTENCE}\n")


@pytest.mark.parametrize("words", ["up", "up --foreground", "down", "restart", "search x", "call files__x"])
def test_commands_that_would_attach_say_the_same(words: str) -> None:
    assert SENTENCE in " ".join(pml(*words.split(), code=78).stderr.split())


def test_status_doctor_and_clients_do_their_work_and_say_it() -> None:
    assert json.loads(pml("status", "--json").stdout)["errors"] == [SENTENCE]
    found = json.loads(pml("doctor", "--json").stdout)["findings"]
    assert [(each["severity"], each["what"]) for each in found if each["area"] == "machine"] == [("note", SENTENCE)]
    assert json.loads(pml("clients", "--json").stdout)["gateway"] is None


def test_connecting_a_client_does_not_fail_over_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home.parent))
    assert SENTENCE in " ".join(pml("connect", "cursor", "--yes", "--start").stderr.split())


def test_commands_do_without_where_the_settings_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PML_LOCAL__ATTACH", "false")
    assert SENTENCE not in pml("search", "x").output
