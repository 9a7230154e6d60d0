"""`pml service`: written, loaded, shown and removed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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


def test_a_dry_run_shows_the_unit_and_writes_nothing(unit: Path) -> None:
    shown = pml("service", "install", "--dry-run")
    assert "ExecStart=" in shown.stdout
    assert "nothing was written" in shown.stderr
    assert not unit.exists()
    assert answer("status") == {"file": str(unit), "text": None, "said": "not installed: pml service install"}


def test_it_is_written_loaded_shown_and_removed(tmp_path: Path, home: Path, unit: Path) -> None:
    pml("service", "install")
    text = unit.read_text(encoding="utf-8")
    assert 'up" "--foreground" "--by-service"\n' in text
    assert f'Environment="PML_HOME={home}"' in text
    assert "hunter2" not in text
    assert "TOKEN" not in text
    assert asked(tmp_path / "managers") == [
        "systemctl --user disable --now pml-gateway.service",
        "systemctl --user enable --now pml-gateway.service",
    ]
    assert answer("status") == {"file": str(unit), "text": text, "said": "ActiveState=active\nMainPID=4711"}
    assert "stopped and removed" in pml("service", "uninstall").stderr
    assert not unit.exists()
    assert asked(tmp_path / "managers")[-1] == "systemctl --user disable --now pml-gateway.service"
    assert "there is no service" in pml("service", "uninstall").stderr


def test_options_stand_in_the_command(unit: Path, home: Path) -> None:
    pml("service", "install", "--http", "--config", str(home / "config.yaml"))
    assert f'"--by-service" "--http" "--config={home}/config.yaml"\n' in unit.read_text(encoding="utf-8")


def test_a_unit_that_pml_did_not_write_is_left_alone(unit: Path) -> None:
    unit.parent.mkdir(parents=True)
    for write in (lambda: unit.write_text("[Service]\nExecStart=/bin/true\n"), lambda: unit.symlink_to(os.devnull)):
        write()
        for word in ("install", "status", "uninstall"):
            assert "was not written by pml" in pml("service", word, code=78).stderr
        unit.unlink()


def test_without_a_session_it_is_written_and_said_what_to_do(tmp_path: Path, unit: Path) -> None:
    (tmp_path / "managers" / "no-session").touch()
    failed = pml("service", "install", code=1)
    assert "Failed to connect to bus" in failed.stderr
    assert "log in and try again" in failed.stderr
    assert unit.exists()
    assert "Failed to connect to bus" in pml("service", "status", code=1).stderr
    assert "Failed to connect to bus" in pml("service", "uninstall", code=1).stderr
    assert not unit.exists()


def test_a_machine_without_systemd_is_told_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home))
    assert "there is no systemctl" in pml("service", "install", code=1).stderr
