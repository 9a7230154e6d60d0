"""`pml call` takes a tool's parameters as options, and the shell knows them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import listing, run_here
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


@pytest.mark.slow
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
    calc = listing(tmp_path, "calc")["calc"]
    write_settings(tmp_path, {"servers": {"calc": calc, "notes": {**calc, "enabled": False}}})
    for name in ("notes__factorize", "notes:factorize"):
        for words in ([], ["--help"]):
            failed = run_here(tmp_path, "call", name, *words)
            assert failed.returncode == 1
            assert "error: notes is disabled" in failed.stderr
            assert "pml enable notes" in failed.stderr


SWITCHED_OFF = {
    "calc": {
        "command": sys.executable,
        "args": ["-m", "pml_gateway.demo.servers.calc"],
        "tools": {"factorize": {"enabled": False}},
    }
}


@pytest.mark.parametrize(
    "words",
    [
        ("call", "calc__factorize", "--number", "12"),
        ("call", "calc:factorize", '{"number": 12}'),
        ("call", "factorize", "--help"),
        ("call", "mcp__pml__calc__factorize"),
        ("call", "CALC-Factorize"),
        ("schema", "calc__factorize"),
    ],
)
@pytest.mark.slow
def test_the_owner_learns_that_a_tool_is_disabled_and_how_to_enable_it(tmp_path: Path, words: tuple[str, ...]) -> None:
    write_settings(tmp_path, {"servers": SWITCHED_OFF})
    failed = run_here(tmp_path, *words)
    assert failed.returncode == 1
    assert "is disabled (servers.calc.tools.factorize.enabled: false)" in " ".join(failed.stderr.split())
    assert "pml enable calc:factorize" in failed.stderr


@pytest.mark.parametrize("verb", ["disable", "enable"])
@pytest.mark.parametrize("name", ["calc:factorise", "calc__nosuch", "calc:calc__factorize"])
def test_only_tools_that_the_server_lists_are_switched(home: Path, verb: str, name: str) -> None:
    before = (home / "config.yaml").read_bytes()
    failed = run_here(home, verb, name, "--yes")
    assert failed.returncode == 2, failed.stderr
    assert "calc has no tool" in failed.stderr
    assert ("did you mean factorize?" in failed.stderr) is (name != "calc__nosuch")
    assert (home / "config.yaml").read_bytes() == before


@pytest.mark.parametrize("name", ["calc:factorize", "calc__factorize", "calc:Factorize", "calc__date-difference"])
def test_tools_are_switched_by_the_name_that_the_server_gives_them(home: Path, name: str) -> None:
    switched = run_here(home, "disable", name, "--dry-run")
    assert switched.returncode == 0, switched.stderr
    added = [line for line in switched.stdout.splitlines() if line.startswith("+")]
    assert any(each in line for line in added for each in ("factorize", "date_difference"))
    assert "not known" not in switched.stderr


def test_tools_of_a_server_that_never_listed_are_switched_with_a_note(tmp_path: Path) -> None:
    write_settings(tmp_path, {"servers": {"calc": {"command": sys.executable, "args": ["-m", "nothing"]}}})
    switched = run_here(tmp_path, "disable", "calc:add", "--yes")
    assert switched.returncode == 0
    assert "no gateway has listed the tools of calc yet" in " ".join(switched.stderr.split())


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
@pytest.mark.slow
def test_the_shell_completes_from_the_last_listing(home: Path, line: str, expected: list[str]) -> None:
    assert completed(home, line) == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
@pytest.mark.slow
def test_other_shells_complete_the_same(home: Path, shell: str) -> None:
    assert "calc__date_difference" in " ".join(completed(home, "pml call calc__date_", shell))
