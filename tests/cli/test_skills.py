"""`pml skills` with folders of its user, and what other commands say of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.skills.test_serving import two_skills
from tests.support.command_line import run_here
from tests.support.process import write_settings

pytestmark = pytest.mark.slow


def test_skills_of_own_folders_are_listed_shown_and_found(tmp_path: Path) -> None:
    root = two_skills(tmp_path / "skills")
    (root / "Broken").mkdir()
    (root / "Broken" / "SKILL.md").write_text("# nothing", encoding="utf-8")
    write_settings(tmp_path, {"skills": [str(root)]})
    shown = run_here(tmp_path, "skills")
    assert [line.split()[:3] for line in shown.stdout.splitlines() if "skills" in line] == [
        ["mail", "skills", "1"],
        ["refunds", "skills", "3"],
    ]
    assert f"not served: {root / 'Broken' / 'SKILL.md'}" in shown.stderr
    listed = json.loads(run_here(tmp_path, "skills", "--json").stdout)
    assert [each["uri"] for each in listed["skills"]] == ["skill://mail/SKILL.md", "skill://refunds/SKILL.md"]
    assert len(listed["faults"]) == 1
    assert "Read references/LIMITS.md first." in run_here(tmp_path, "skills", "refunds").stdout
    assert run_here(tmp_path, "skills", "refunds/references/LIMITS.md").stdout.strip() == "up to 100 EUR"
    assert json.loads(run_here(tmp_path, "skills", "mail", "--json").stdout)["contents"][0]["mimeType"]
    unknown = run_here(tmp_path, "skills", "refund")
    assert (unknown.returncode, "did you mean refunds?" in unknown.stderr) == (1, True)
    found = run_here(tmp_path, "search", "a customer wants money back").stdout
    assert "skill refunds of skills" in found
    assert "pml skills skills:refunds" in found
    assert run_here(tmp_path, "search", "*").stdout.split() == ["server", "skills", "skills", "2"]
    assert str(root / "Broken") in run_here(tmp_path, "config", "validate").stderr


def test_the_server_of_own_folders_is_switched_but_neither_removed_nor_renamed(tmp_path: Path) -> None:
    write_settings(tmp_path, {"skills": [str(two_skills(tmp_path / "skills"))]})
    for command in (("remove", "skills", "--yes"), ("rename", "skills", "others", "--yes")):
        refused = run_here(tmp_path, *command)
        assert (refused.returncode, "stands for the setting `skills`" in refused.stderr) == (2, True)
    assert run_here(tmp_path, "disable", "skills", "--yes").returncode == 0
    assert json.loads(run_here(tmp_path, "skills", "--json").stdout)["skills"] == []
    assert run_here(tmp_path, "enable", "skills", "--yes").returncode == 0
    assert len(json.loads(run_here(tmp_path, "skills", "--json").stdout)["skills"]) == 2


def test_without_skills_it_says_how_to_have_some(tmp_path: Path) -> None:
    write_settings(tmp_path, {"servers": {}})
    shown = run_here(tmp_path, "skills")
    assert "no servers are configured" in shown.stderr
