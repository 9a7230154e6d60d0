"""The command line in this process: a home with the demo's servers, and what a command printed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner, Result

from pml_gateway.cli.app import app
from pml_gateway.demo.definitions import demo_servers
from tests.support.process import OWN_GATEWAYS, environment, write_settings

WIDTH = 80

OF_CLIENTS = ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "GITHUB_PAT")
"""Variables that say where clients keep their files, and one of their secrets."""


def home_of_a_person(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """An empty home, with a project as the working directory, and none of this machine's clients."""
    for name in [name for name in os.environ if name.startswith("PML_") or name in OF_CLIENTS]:
        patch.delenv(name)
    home, project = folder / "home", folder / "project"
    home.mkdir()
    (project / ".git").mkdir(parents=True)
    patch.setenv("HOME", str(home))
    patch.setenv("NO_COLOR", "1")
    patch.setenv("COLUMNS", str(WIDTH))
    patch.chdir(project)
    return home


@contextmanager
def home_of(folder: Path, settings: Mapping[str, Any]) -> Iterator[Path]:
    """A home with these settings, which commands use; the working directory is an empty folder beside it."""
    home, work = folder / "home", folder / "work"
    work.mkdir(parents=True, exist_ok=True)
    write_settings(home, settings)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PML_") and name != "PML_DATA"]:
            patch.delenv(name)
        patch.setenv("HOME", str(folder))
        patch.setenv("PML_HOME", str(home))
        for name, value in {**OWN_GATEWAYS, "NO_COLOR": "1"}.items():
            patch.setenv(name, value)
        patch.setenv("COLUMNS", str(WIDTH))
        patch.chdir(work)
        try:
            yield home
        finally:
            CliRunner().invoke(app, ["down"])


@contextmanager
def demo_home(folder: Path, settings: Mapping[str, Any] | None = None) -> Iterator[Path]:
    """A home with the three demo servers, listed once, so that commands answer without starting them."""
    with home_of(folder, {"servers": demo_servers(folder / "demo"), **(settings or {})}) as home:
        pml("tools", "--json")
        yield home


def pml(*arguments: str, code: int = 0) -> Result:
    """Run a command and check its exit code."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, f"pml {' '.join(arguments)}: exit code {result.exit_code}\n{result.output}"
    return result


def run_here(
    home: Path, *arguments: str, extra: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """One `pml` command to its end in this process, with the environment that `run_pml` gives to a process."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            patch.delenv(name)
        for name, value in environment(home, {**OWN_GATEWAYS, **(extra or {})}).items():
            patch.setenv(name, value)
        patch.setenv("COLUMNS", (extra or {}).get("COLUMNS", str(WIDTH)))
        patch.chdir(cwd or home)
        result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr)


def commands() -> dict[str, Any]:
    """Every command by what is typed for it, groups included."""
    found: dict[str, Any] = {}

    def walk(command: Any, words: tuple[str, ...]) -> None:
        found[" ".join(words)] = command
        for name, each in getattr(command, "commands", {}).items():
            walk(each, (*words, name))

    walk(typer.main.get_command(app), ("pml",))
    return found
