"""What `benchmarks.run_install` runs is what the README says."""

from __future__ import annotations

from benchmarks.run_install import Installed, environment_of, readme_commands, rows
from tests.support.documents import README


def test_the_two_commands_of_the_readme_are_found() -> None:
    commands = readme_commands(README.read_text(encoding="utf-8"))
    first, test = commands["first"], commands["test, installed only"]
    assert (environment_of(first), environment_of(test)) == (".venv", ".venv-test")
    assert first[-1] == ".venv/bin/pml demo"
    assert "'.[dev]'" in test[-1]


def test_the_first_command_needs_no_torch() -> None:
    assert "torch" not in " ".join(readme_commands(README.read_text(encoding="utf-8"))["first"])


def test_medians_of_both_commits_are_compared() -> None:
    def run(commit: str, seconds: float, mib: float) -> Installed:
        return Installed(commit, "first", seconds, seconds / 2, {}, mib, 10, "No broken requirements found.")

    (row,) = rows([run("a", 10, 100), run("b", 4, 50), run("b", 5, 50), run("b", 90, 50), run("a", 10, 100)], "a", "b")
    assert (row["before s"], row["after s"], row["ratio"]) == (10, 5, 0.5)
    assert (row["before cpu s"], row["after cpu s"], row["cpu ratio"]) == (5, 2.5, 0.5)
    assert (row["before MiB"], row["after MiB"]) == (100, 50)
