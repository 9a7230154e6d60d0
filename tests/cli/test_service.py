"""`pml service`: written after it was shown, started where there is something to start it, gone without a trace."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.errors import ConfigurationError
from pml_gateway.service.install import manager_here
from pml_gateway.service.program import own_program
from tests.support.command_line import home_of, pml
from tests.support.service_managers import asked, managers_in

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="systemd is asked")

SERVERS = {"servers": {"a": {"command": "no-such-command", "env": {"TOKEN": "${env:A_TOKEN}"}}}}


@pytest.fixture(autouse=True)
def home(tmp_path: Path) -> Iterator[Path]:
    with home_of(tmp_path, SERVERS) as home, pytest.MonkeyPatch.context() as patch:
        patch.delenv("XDG_CONFIG_HOME", raising=False)
        patch.setenv("A_TOKEN", "hunter2")
        patch.setenv("PATH", managers_in(tmp_path / "managers"))
        yield home


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    return tmp_path / ".config" / "systemd" / "user" / "pml-gateway.service"


def answer(*words: str, code: int = 0) -> Any:
    return json.loads(pml("service", *words, "--json", code=code).stdout)


def test_it_is_shown_and_not_written_unless_somebody_agrees(unit: Path) -> None:
    shown = pml("service", "install", "--dry-run")
    assert "+ExecStart=" in shown.stdout
    assert "nothing was written" in shown.stderr
    assert "--yes" in pml("service", "install", code=2).stderr
    assert not answer("install", code=2)["written"]
    assert not unit.exists()
    assert answer("status") == {
        "file": str(unit),
        "installed": False,
        "enabled": None,
        "running": None,
        "pid": None,
        "command": None,
        "problem": None,
        "remedy": None,
    }


def test_it_is_written_started_found_and_gone_without_a_trace(tmp_path: Path, home: Path, unit: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    done = pml("service", "install", "--yes")
    assert "loginctl enable-linger" in done.stderr
    text = unit.read_text(encoding="utf-8")
    assert f'Environment="PML_HOME={home}"' in text
    assert "hunter2" not in text
    assert "TOKEN" not in text

    status = answer("status")
    assert (status["enabled"], status["running"], status["pid"], status["problem"]) == (True, True, 4711, None)
    assert status["command"][-3:] == ["up", "--foreground", "--by-service"]
    assert "runs (pid 4711)" in pml("service", "status").stdout

    assert "--yes" in pml("service", "uninstall", code=2).stderr
    assert "would stop it" in pml("service", "uninstall", "--dry-run").stderr
    assert unit.exists()
    assert answer("uninstall", "--yes")["removed"]
    left = sorted(path for path in tmp_path.rglob("*") if path.name != "journal")
    assert left == before
    assert "there is no service" in pml("service", "uninstall").stderr


def test_a_second_time_only_what_differs_is_written_and_only_then_is_it_started_anew(tmp_path: Path) -> None:
    pml("service", "install", "--yes")
    assert not answer("install")["changed"]
    assert "says this already" in pml("service", "install").stderr
    assert "restart" not in " ".join(asked(tmp_path / "managers")[5:])
    changed = pml("service", "install", "--http", "--yes")
    assert [line for line in changed.stdout.splitlines() if line.startswith(("+E", "-E"))] == [
        line for line in changed.stdout.splitlines() if "ExecStart" in line
    ]
    assert "systemctl --user restart pml-gateway.service" in asked(tmp_path / "managers")
    assert answer("status")["problem"] is None


def test_a_unit_of_somebody_else_is_left_alone_unless_it_is_said(unit: Path, tmp_path: Path) -> None:
    unit.parent.mkdir(parents=True)
    for write in (lambda: unit.write_text("[Service]\nExecStart=/bin/true\n"), lambda: unit.symlink_to(os.devnull)):
        write()
        for words in (["install", "--yes"], ["uninstall", "--yes"]):
            assert "was not written by pml" in pml("service", *words, code=78).stderr
        assert "was not written by pml" in answer("status")["problem"]
        unit.unlink()
    unit.write_text("[Service]\nExecStart=/bin/true\n")
    assert answer("install", "--replace", "--yes")["written"]
    # The folders were there before.
    pml("service", "uninstall", "--yes")
    assert unit.parent.exists()


def test_without_a_session_it_is_written_and_said_what_to_do(tmp_path: Path, unit: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    (tmp_path / "managers" / "no-session").touch()
    failed = pml("service", "install", "--yes", code=1)
    assert "no systemd of this user answers" in failed.stderr
    assert "systemctl --user enable --now pml-gateway.service" in failed.stderr
    assert unit.exists()
    said = answer("status")
    assert (said["installed"], said["running"]) == (True, None)
    assert "no systemd" in said["problem"]
    # Enabled by hand, in a session that is over.
    link = unit.parent / "default.target.wants" / unit.name
    link.parent.mkdir()
    link.symlink_to(unit)
    pml("service", "uninstall", "--yes")
    (tmp_path / "managers" / "no-session").unlink()
    assert sorted(path for path in tmp_path.rglob("*") if path.name != "journal") == before


def test_a_machine_without_systemd_is_told_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home))
    assert "there is no systemctl" in pml("service", "install", "--yes", code=1).stderr


def test_a_start_that_fails_is_said_and_how_it_stands_afterwards(tmp_path: Path) -> None:
    (tmp_path / "managers" / "refuses").touch()
    said = answer("install", "--yes", code=1)
    assert (said["written"], said["started"]) == (True, False)
    assert "Job for pml-gateway.service failed" in said["problem"]
    status = answer("status")
    assert (status["problem"], status["remedy"]) == ("it does not run (exit-code)", "pml service install")


def test_an_installation_that_moved_is_seen(unit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pml("service", "install", "--yes")
    monkeypatch.setenv("PML_HOME", str(tmp_path / "another"))
    assert "another home" in answer("status")["problem"]
    monkeypatch.undo()
    text = unit.read_text(encoding="utf-8")
    unit.write_text(text.replace('ExecStart="/', 'ExecStart="/gone/'), encoding="utf-8")
    said = answer("status")
    assert said["problem"].startswith("/gone/")
    assert said["remedy"] == "pml service install"


def test_paths_that_no_unit_can_hold_are_refused() -> None:
    for path in ("/a\nb", "/a\udcffb", "/a\uffffb"):
        with pytest.raises(ConfigurationError, match="no unit of systemd or launchd can hold"):
            own_program({"PML_HOME": path})


def test_there_is_no_service_on_windows() -> None:
    with pytest.raises(ConfigurationError, match="not supported on Windows"):
        manager_here({}, "win32")
