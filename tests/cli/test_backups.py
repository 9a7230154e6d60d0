"""Backups live as long as something may need them, and come back or go by one command."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pml_gateway.cli.app import app
from pml_gateway.cli.output import ExitCode
from tests.support.command_line import home_of_a_person

SECRET = "hunter2-hunter2"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own with a connected Claude Code, and the file as it was before."""
    home = home_of_a_person(tmp_path, monkeypatch)
    entry = {"command": sys.executable, "args": ["-c", "pass"], "env": {"DB_PASS": SECRET, "DB_USER": "shop"}}
    (home / ".claude.json").write_text(json.dumps({"mcpServers": {"shop": entry}}, indent=2))
    pml("init", "--yes")
    return home


def pml(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    assert SECRET not in result.output
    return result


def listed() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(pml("backups", "--json").stdout)["backups"]
    return found


def holding_the_secret(home: Path) -> list[str]:
    found = [path for path in home.rglob("*") if path.is_file() and SECRET in path.read_text(errors="replace")]
    assert all(not stat.S_IMODE(path.stat().st_mode) & 0o077 for path in found if ".pml" in path.parts)
    return sorted(path.name for path in found)


def test_no_backup_with_a_secret_is_left_once_the_client_is_disconnected(home: Path) -> None:
    before = (home / ".claude.json").read_bytes()
    for way in ([], ["--keep"], []):
        pml("connect", "claude-code", "--yes", *way)
    (kept,) = listed()
    assert kept["needed"]
    assert kept["file"] == str(home / ".claude.json")
    assert Path(kept["path"]).read_bytes() == before
    assert stat.S_IMODE(Path(kept["path"]).parent.stat().st_mode) == 0o700
    pml("disconnect", "claude-code", "--yes")
    assert (home / ".claude.json").read_bytes() == before
    assert listed() == []
    assert holding_the_secret(home) == [".claude.json", "secrets.env"]


def test_one_scope_s_backup_stays_where_the_other_s_undo_needs_it(home: Path) -> None:
    pml("connect", "claude-code", "--yes")
    Path(".mcp.json").write_text(json.dumps({"mcpServers": {"x": {"command": "x", "env": {"X_TOKEN": SECRET}}}}))
    pml("connect", "claude-code", "--scope", "project", "--yes")
    assert len(listed()) == 2
    pml("disconnect", "claude-code", "--yes")
    (kept,) = listed()
    assert kept["file"] == str(Path(".mcp.json").resolve())


def test_a_backup_is_restored_with_a_diff_and_that_is_undone_as_well(home: Path) -> None:
    file = home / ".claude.json"
    before = file.read_bytes()
    pml("connect", "claude-code", "--yes")
    connected = file.read_bytes()
    (backup,) = listed()
    assert '"DB_PASS": "***"' in pml("backups", "restore", backup["name"], "--dry-run").stdout
    pml("backups", "restore", backup["name"], code=ExitCode.USAGE)
    assert file.read_bytes() == connected
    done = json.loads(pml("backups", "restore", backup["name"], "--yes", "--json").stdout)
    assert file.read_bytes() == before
    assert "says this already" in pml("backups", "restore", backup["name"], "--yes").stderr
    pml("backups", "restore", Path(done["backup"]).name, "--yes")
    assert file.read_bytes() == connected
    pml("disconnect", "claude-code", "--yes")
    assert file.read_bytes() == before
    assert listed() == []


def test_a_client_s_file_that_was_deleted_comes_back(home: Path) -> None:
    file = home / ".claude.json"
    before = file.read_bytes()
    pml("connect", "claude-code", "--yes")
    file.unlink()
    pml("backups", "restore", listed()[0]["name"], "--yes")
    assert file.read_bytes() == before
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_old_texts_of_the_configuration_are_listed_and_restored(home: Path) -> None:
    config = home / ".pml" / "config.yaml"
    before = config.read_bytes()
    pml("config", "--preset", "full_proxy")
    (backup,) = listed()
    assert (backup["kind"], backup["needed"]) == ("configuration", False)
    after = config.read_bytes()
    # Also over a text that is broken by now.
    config.write_text(f"servers: [{{TOKEN: {SECRET}\n")
    done = json.loads(pml("backups", "restore", backup["name"], "--yes", "--json").stdout)
    assert config.read_bytes() == before
    pml("backups", "restore", Path(done["backup"]).name, "--yes")
    assert config.read_text() == f"servers: [{{TOKEN: {SECRET}\n"
    config.write_bytes(after)


def test_pruning_takes_what_nothing_needs_and_all_only_if_asked(home: Path) -> None:
    file = home / ".claude.json"
    pml("connect", "claude-code", "--yes")
    pml("config", "--preset", "full_proxy")
    # What an earlier version left behind.
    old = home / ".pml" / "backups" / "cursor-user-20250101-101010-mcp.json"
    old.write_text(SECRET)
    old.chmod(0o600)
    assert "1 backup that nothing needs" in pml("backups").stderr
    pml("backups", "prune", code=ExitCode.USAGE)
    assert old.exists()
    pml("backups", "prune", "--yes")
    assert sorted(backup["kind"] for backup in listed()) == ["client", "configuration"]
    assert json.loads(pml("backups", "prune", "--older-than", "1h", "--json").stdout)["backups"] == []
    assert pml("backups", "prune", "--older-than", "soon", code=ExitCode.USAGE)
    pml("backups", "prune", "--all", "--yes")
    assert listed() == []
    # The gateway's own entry still goes; the servers it replaced are the gateway's alone now.
    pml("disconnect", "claude-code", "--yes")
    assert json.loads(file.read_text())["mcpServers"] == {}


def test_a_backup_whose_folder_is_gone_can_undo_nothing(home: Path, tmp_path: Path) -> None:
    Path(".mcp.json").write_text(json.dumps({"mcpServers": {"x": {"command": "x"}}}))
    pml("connect", "claude-code", "--scope", "project", "--yes")
    os.chdir(tmp_path)
    (tmp_path / "project").rename(tmp_path / "elsewhere")
    (backup,) = listed()
    assert (backup["needed"], backup["why"]) == (False, "the folder of the file is gone")
    pml("backups", "prune", "--yes")
    assert listed() == []


@pytest.mark.parametrize("left", [1, 2])
def test_a_run_that_was_killed_leaves_what_the_next_one_needs(home: Path, left: int) -> None:
    file, record = home / ".claude.json", home / ".pml" / "connections.json"
    before = file.read_bytes()
    pml("connect", "claude-code", "--yes")
    if left == 1:
        # Killed between the note and the file.
        file.write_bytes(before)
    else:
        # Killed while disconnecting, between the file and the note.
        noted = record.read_bytes()
        copies = {path: path.read_bytes() for path in (home / ".pml" / "backups").iterdir()}
        pml("disconnect", "claude-code", "--yes")
        record.write_bytes(noted)
        for path, content in copies.items():
            path.write_bytes(content)
    pml("connect", "claude-code", "--yes")
    pml("disconnect", "claude-code", "--yes")
    assert file.read_bytes() == before
    assert listed() == []


def test_lists_fit_the_terminal_and_names_complete(home: Path) -> None:
    from pml_gateway.cli.completion import backup_names

    pml("connect", "claude-code", "--yes")
    pml("config", "--preset", "full_proxy")
    assert max(map(len, pml("backups").stdout.splitlines())) <= 80
    assert len(backup_names("claude-code-user-")) == 1
    assert "did you mean" in pml("backups", "restore", listed()[0]["name"][:-1], code=ExitCode.USAGE).stderr


def test_a_file_that_was_deleted_comes_back_and_leaves_no_backup(home: Path) -> None:
    before = (home / ".claude.json").read_bytes()
    pml("connect", "claude-code", "--yes")
    (home / ".claude.json").unlink()
    pml("disconnect", "claude-code", "--yes")
    assert (home / ".claude.json").read_bytes() == before
    assert listed() == []
