"""Client files that are not regular files: each is skipped with one line, and the others are listed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import home_of_a_person, pml
from tests.support.irregular import put_in_place_of_a_file


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a person with one client that is in order."""
    home = home_of_a_person(tmp_path, monkeypatch)
    (home / ".gemini").mkdir()
    (home / ".gemini" / "settings.json").write_text('{"mcpServers": {"a": {"command": "true"}}}')
    return home


PLACES = [".mcp.json", "~/.claude.json", "~/.cursor/mcp.json", "~/.codex/config.toml"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder"])
@pytest.mark.slow
def test_what_lies_in_place_of_a_clients_file_is_skipped_and_the_others_are_listed(
    home: Path, place: str, kind: str
) -> None:
    path = Path(place).expanduser() if place.startswith("~") else Path.cwd() / place
    put_in_place_of_a_file(path, kind)
    line = f"warning: {path} is not a regular file; skipped"

    listed = pml("clients")
    assert listed.stderr.splitlines().count(line) == 1
    assert "gemini" in listed.stdout
    assert {row["state"] for row in json.loads(pml("clients", "--json").stdout)["clients"]} >= {"skipped", "direct"}

    imported = pml("init", "--yes", "--no-start")
    assert imported.stderr.splitlines().count(line) == 1
    assert "wrote" in imported.stderr


def test_a_pipe_is_a_warning_of_doctor_and_no_error(home: Path) -> None:
    for place in PLACES:
        put_in_place_of_a_file(Path(place).expanduser() if place.startswith("~") else Path.cwd() / place, "pipe")
    put_in_place_of_a_file(Path.cwd() / ".pml.yaml", "pipe")
    (home / ".pml").mkdir(mode=0o700)
    (home / ".pml" / "config.yaml").write_text("servers: {a: {command: nothing, enabled: false}}\n")
    found = json.loads(pml("doctor", "--json").stdout)["findings"]
    said = [each for each in found if "not a regular file" in each["what"]]
    assert len(said) == len(PLACES) + 1
    assert {each["severity"] for each in said} == {"warning"}
    assert all(each["fix"] for each in said if each["area"] == "clients")
