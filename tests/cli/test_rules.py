"""`pml rules`: presets are written, rules listed and tried, and recorded calls replayed against edited ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import home_of, listed_home, pml

RULES = [
    {"match": {"tool": "files:write_file", "where": "starts_with(path, 'drafts/')"}, "do": "allow"},
    {"preset": "careful"},
]


@pytest.fixture
def _home(tmp_path: Path) -> Iterator[None]:
    with home_of(tmp_path, {"servers": {"a": {"command": "a"}}}):
        yield


def answer(*arguments: str) -> Any:
    return json.loads(pml(*arguments, "--json").stdout)


@pytest.mark.usefixtures("_home")
def test_a_preset_is_written_replaced_and_listed() -> None:
    assert pml("rules", "list").stdout == ""
    assert '"preset": "careful"' in pml("rules", "use", "careful", "--dry-run").stdout
    assert answer("rules", "list") == []
    pml("rules", "use", "careful")
    [row] = answer("rules", "list")
    assert (row["rule"], row["do"], row["answered_by"]) == ("rules[0] (careful)", "ask", "owner")
    assert "ask the owner" in pml("rules", "list").stdout
    pml("rules", "use", "read_only")
    assert [row["do"] for row in answer("rules", "list")] == ["allow", "deny"]
    assert "no preset 'bold'" in pml("rules", "use", "bold", code=2).stderr


def test_rules_of_your_own_are_not_written_over(tmp_path: Path) -> None:
    with home_of(tmp_path, {"servers": {"a": {"command": "a"}}, "rules": RULES[:1]}) as home:
        before = (home / "config.yaml").read_text(encoding="utf-8")
        assert "`- preset: careful` at the end" in pml("rules", "use", "careful", code=78).stderr.replace("\n", " ")
        assert (home / "config.yaml").read_text(encoding="utf-8") == before


@pytest.mark.slow
def test_rules_are_tried_on_calls_and_replayed_from_a_file(tmp_path: Path) -> None:
    with listed_home(tmp_path, {"rules": RULES}) as home:
        tried = answer("rules", "try", "files:write_file", "--args", '{"path": "drafts/a", "content": ""}')
        assert (tried["action"], tried["rule"], tried["client"]) == ("allow", "rules[0]: allow", "local")
        tried = answer("rules", "try", "files:write_file", "--args", '{"path": "a", "content": ""}')
        assert (tried["action"], tried["rule"], tried["answered_by"]) == ("ask", "rules[1] (careful): ask", "owner")
        assert "ask the owner" in pml("rules", "try", "files:write_file").stdout
        assert "no client 'bob'" in pml("rules", "try", "files:write_file", "--client", "bob", code=2).stderr
        assert "no tool 'files:wipe'" in pml("rules", "try", "files:wipe", code=1).stderr

        edited = home / "edited.yaml"
        edited.write_text(json.dumps({"rules": [{"match": {"server": "calc"}, "do": "deny"}]}), encoding="utf-8")
        assert answer("rules", "test", str(edited)) == {"calls": [], "gone": 0}
        assert "0 recorded calls of 30d" in pml("rules", "test", str(edited)).stderr
        edited.write_text(json.dumps({"rules": [{"do": "perhaps"}]}), encoding="utf-8")
        assert "rules: 0.do" in pml("rules", "test", str(edited), code=2).stderr
        edited.write_text(json.dumps({"rules": [{"match": {"role": "dev"}, "do": "deny"}]}), encoding="utf-8")
        assert "rules[0].match.role: no role 'dev'" in pml("rules", "test", str(edited), code=2).stderr
        assert "a mapping with `rules:`" in pml("rules", "test", str(home / "config.yaml"), code=2).stderr


def test_a_condition_that_means_nothing_and_approvals_without_a_passphrase_are_found(tmp_path: Path) -> None:
    rules = [{"match": {"where": "repo =="}, "do": "deny"}, {"preset": "careful"}]
    with home_of(tmp_path, {"servers": {"a": {"command": "a"}}, "rules": rules}):
        checked = json.loads(pml("config", "validate", "--json", code=78).stdout)
        assert [problem["key"] for problem in checked["problems"]] == ["rules.0.match.where"]
        found = json.loads(pml("doctor", "--json", code=78).stdout)
    assert "approvals.secret" in json.dumps(found)
