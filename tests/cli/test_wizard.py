"""`pml config --wizard`: from the user's own tools and a few answers to a preset."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import listed_home, listing, pml
from tests.support.golden import check_golden
from tests.support.process import STOP_SECONDS, environment

OWN = """\
# my gateway
gateway:
  blacklisted_tools: ["*:delete_*"]  # never
  hybrid:
    whitelisted_tools: [calc__convert_units]
clients: {bot: {key: "${env:BOT_KEY}"}}
"""


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home whose servers have been listed once."""
    with listed_home(tmp_path_factory.mktemp("wizard")) as home:
        yield home


@pytest.fixture(autouse=True)
def home(listed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same home with the user's own configuration anew, and a project of its own to work in."""
    servers = json.dumps(listing(listed.parent / "demo", "files", "notes", "calc"))
    (listed / "config.yaml").write_text(f"{OWN}servers: {servers}\n", encoding="utf-8")
    for left in listed.glob("config.yaml.bak-*"):
        left.unlink()
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return listed


def wizard(*options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pml("config", "--wizard", "--json", *options).stdout)
    return found


@pytest.mark.slow
def test_the_choice_and_its_reason_are_readable_in_eighty_columns(home: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\ndescription = "Converts units of measurement for kitchens."\n')
    done = pml("config", "--wizard", "--matters", "accuracy", "--dry-run")
    answer, separator, diff = done.stdout.partition("---")
    assert max(map(len, answer.splitlines())) <= 80
    text = answer + separator + diff
    for path, name in ((home.parent, "~"), (tmp_path, "PROJECT"), (sys.executable, "python")):
        text = text.replace(str(path), name)
    check_golden("wizard.txt", re.sub(r" +", " ", re.sub(r"\d[\d,.]*%?", "N", text)), {})
    assert not (tmp_path / ".pml.yaml").exists()


def test_without_a_terminal_or_a_yes_nothing_is_written(home: Path) -> None:
    before = (home / "config.yaml").read_bytes()
    refused = pml("config", "--wizard", "--matters", "compatibility", code=2).stderr
    assert "nothing was written" in refused
    assert "run it with --yes" in refused
    assert wizard("--matters", "compatibility")["written"] is False
    assert (home / "config.yaml").read_bytes() == before


def test_a_yes_applies_the_preset_and_leaves_everything_else(home: Path) -> None:
    found = wizard("--matters", "accuracy", "--intent", "", "--yes")
    assert (found["preset"], found["written"]) == ("hybrid_permissive", True)
    [file] = found["files"]
    before, after = Path(file["backup"]).read_text(), (home / "config.yaml").read_text()
    removed = {line for line in before.splitlines() if line not in after.splitlines()}
    assert removed == set()
    assert json.loads(pml("config", "show", "--json").stdout)["settings"]["gateway"]["tools_exposure"] == "hybrid"
    assert wizard("--matters", "accuracy", "--intent", "", "--yes")["files"][0]["changed"] is False


@pytest.mark.slow
def test_an_intent_of_the_project_is_used_where_tools_are_selected_by_one(home: Path, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Kitchen\n\n![badge](x)\n\nConverts **units** for [cooks](http://c.test).\n")
    (tmp_path / ".pml.yaml").write_text("# ours\ngateway:\n  blacklisted_tools: []\n")
    assert wizard("--matters", "tokens", "--yes")["intent"] == {"text": None, "derived_from": None}
    found = wizard("--matters", "accuracy", "--yes")
    assert found["intent"] == {"text": "Converts units for cooks.", "derived_from": str(tmp_path / "README.md")}
    assert (tmp_path / ".pml.yaml").read_text().startswith("# ours\n")
    shown = json.loads(pml("config", "show", "--json").stdout)["settings"]["gateway"]
    assert shown["intent"] == "Converts units for cooks."
    # One that is there stays.
    assert wizard("--matters", "accuracy", "--yes")["intent"]["derived_from"] is None


def test_a_trusted_project_file_that_changes_has_to_be_trusted_again(home: Path, tmp_path: Path) -> None:
    (tmp_path / ".pml.yaml").write_text("gateway: {blacklisted_tools: []}\n")
    pml("trust", "project", "--yes")
    warnings = wizard("--matters", "accuracy", "--intent", "convert units", "--yes")["warnings"]
    assert any("run `pml trust project` again" in warning for warning in warnings)


def test_clients_that_search_themselves_are_taken_into_account(home: Path) -> None:
    alone = wizard("--matters", "compatibility", "--client", "claude-code")
    assert alone["preset"] == "full_proxy"
    assert "claude-code defers tools and searches them itself" in alone["reason"]
    both = wizard("--matters", "tokens", "--client", "claude-code", "--client", "cursor")
    assert both["answers"]["clients"] == ["claude-code", "cursor"]
    assert "would search twice" in both["notes"][0]


@pytest.mark.slow
def test_the_number_of_servers_to_come_counts(home: Path) -> None:
    few, many = (
        wizard("--matters", "accuracy", "--intent", "", "--servers", number)["preset"] for number in ("3", "30")
    )
    assert (few, many) == ("hybrid_permissive", "hybrid_balanced")


def test_slips_in_answers_are_told_with_what_there_is() -> None:
    assert "did you mean accuracy?" in pml("config", "--wizard", "--matters", "acuracy", code=2).stderr
    assert "did you mean cursor?" in pml("config", "--wizard", "--client", "curser", code=2).stderr
    pml("config", "--wizard", "--preset", "semantic", code=2)
    pml("config", "--wizard", "show", code=2)


@pytest.mark.slow
def test_a_person_is_asked_and_may_take_every_default(home: Path, tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"description": "A shop that sells kitchen scales"}')
    keyboard, terminal = pty.openpty()
    variables = {"HOME": str(home.parent), "NO_COLOR": "1", "COLUMNS": "80"}
    process = subprocess.Popen(
        [sys.executable, "-m", "pml_gateway", "config", "--wizard"],
        env=environment(home, variables),
        cwd=tmp_path,
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        # Servers, clients, what matters, the intent, writing: what is typed ahead waits in the terminal.
        os.write(keyboard, b"\nnone\naccuracy\n\n\n")
        _, asked = process.communicate(timeout=4 * STOP_SECONDS)
    finally:
        process.kill()
        os.close(keyboard)
        os.close(terminal)
    assert process.returncode == 0, asked
    assert "How many servers will there be? [3]" in asked
    assert "A shop that sells kitchen scales" in asked
    assert "A shop that sells kitchen scales" in (tmp_path / ".pml.yaml").read_text()
    assert "tools_exposure: hybrid" in (home / "config.yaml").read_text()
