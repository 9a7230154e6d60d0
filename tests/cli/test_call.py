"""`pml call` takes a tool's parameters as options, and the shell knows them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import run_here
from tests.support.process import environment, write_settings


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose calculator was listed once."""
    home = tmp_path_factory.mktemp("home")
    calc = {"command": sys.executable, "args": ["-m", "pml_gateway.demo.servers.calc"]}
    write_settings(home, {"servers": {"calc": calc}})
    assert run_here(home, "tools").returncode == 0
    return home


def completed(home: Path, line: str, shell: str = "bash") -> list[str]:
    """What a shell is told to offer at the end of a line."""
    words = line.split(" ")
    variables = {"_PML_COMPLETE": f"complete_{shell}", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    variables |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    pml = "import sys; sys.argv = ['pml']; from pml_gateway.cli.app import app; app(prog_name='pml')"
    run = subprocess.run(
        [sys.executable, "-c", pml],
        env=environment(home, variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return run.stdout.split()


def test_options_are_typed_by_the_schema_of_the_tool(home: Path) -> None:
    called = run_here(home, "call", "calc__evaluate_expression", "--expression", "6 * 7", "--json")
    assert called.returncode == 0, called.stderr
    assert "42" in json.loads(called.stdout)["content"][0]["text"]
    # A number where the schema wants text arrives as text.
    assert run_here(home, "call", "calc:evaluate_expression", "--arg", "expression=7").returncode == 0


def test_an_unknown_option_is_a_usage_error_that_names_the_nearest(home: Path) -> None:
    failed = run_here(home, "call", "calc__evaluate_expression", "--expresion", "1")
    assert failed.returncode == 2
    assert "did you mean --expression?" in failed.stderr


def test_a_tool_of_a_disabled_server_is_told_as_such(tmp_path: Path) -> None:
    calc = {"command": sys.executable, "args": ["-m", "pml_gateway.demo.servers.calc"]}
    write_settings(tmp_path, {"servers": {"calc": calc, "notes": {**calc, "enabled": False}}})
    for name in ("notes__factorize", "notes:factorize"):
        for words in ([], ["--help"]):
            failed = run_here(tmp_path, "call", name, *words)
            assert failed.returncode == 1
            assert "error: notes is disabled" in failed.stderr
            assert "pml enable notes" in failed.stderr


def test_help_after_a_name_is_about_the_tool(home: Path) -> None:
    assert "--start *" in run_here(home, "call", "calc__date_difference", "--help").stdout
    described = json.loads(run_here(home, "call", "calc__date_difference", "--help", "--json").stdout)
    assert described["inputSchema"]["required"] == ["start", "end"]
    assert "--arg" in run_here(home, "call", "--help").stdout
    missing = run_here(home, "call", "calc__date_diference", "--help")
    assert missing.returncode == 1
    assert "calc__date_difference" in missing.stderr


def test_errors_of_the_gateway_are_sentences(home: Path) -> None:
    failed = run_here(home, "call", "calc__evaluate_expression")
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: invalid arguments for calc__evaluate_expression: /: 'expression'")
    assert failed.stdout == ""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("pml call calc__date_", ["calc__date_difference"]),
        ("pml call calc__date_difference --z", ["--zone"]),
        ("pml tools --mode s", ["semantic"]),
        ("pml search x --server c", ["calc"]),
        ("pml tools --preset hybrid_b", ["hybrid_balanced"]),
        ("pml upstreams logs c", ["calc"]),
        ("pml upstreams login c", ["calc"]),
        ("pml upstreams logout c", ["calc"]),
        ("pml connect cu", ["cursor"]),
        ("pml disconnect ze", ["zed"]),
        ("pml init --client vs", ["vscode"]),
        ("pml config --preset full", ["full_proxy"]),
    ],
)
def test_the_shell_completes_from_the_last_listing(home: Path, line: str, expected: list[str]) -> None:
    assert completed(home, line) == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_complete_the_same(home: Path, shell: str) -> None:
    assert "calc__date_difference" in " ".join(completed(home, "pml call calc__date_", shell))
