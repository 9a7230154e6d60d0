"""The command line in this process: a home with the demo's servers, and what a command printed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
import typer.main
from typer.testing import CliRunner, Result

from pml_gateway.cli.app import app
from pml_gateway.demo import servers as demo_modules
from pml_gateway.demo.definitions import demo_servers
from tests.field import canned_server
from tests.field.canned import Canned
from tests.support.process import OWN_GATEWAYS, environment, write_settings

WIDTH = 80

PATIENCE_SECONDS = 60.0

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
        for command in ("local", "status"):
            # A gateway that has just begun on a busy machine answers late.
            patch.setattr(f"pml_gateway.cli.{command}.ANSWER_SECONDS", PATIENCE_SECONDS)
        try:
            yield home
        finally:
            CliRunner().invoke(app, ["down"])


def listing(folder: Path, *demo: str) -> dict[str, dict[str, Any]]:
    """Servers that list what those of the demo list, and start in a tenth of the time; calls return the arguments."""
    folder.mkdir(parents=True, exist_ok=True)
    # Of what is printed, paths in this folder alone are the same in all checkouts.
    script = str(shutil.copy(canned_server.__file__, folder))
    for name in demo:
        (folder / f"{name}.json").write_text(_listed_by(name).specification(), encoding="utf-8")
    return {name: {"command": sys.executable, "args": [script, str(folder / f"{name}.json")]} for name in demo}


@cache
def _listed_by(name: str) -> Canned:
    with TemporaryDirectory() as folder:
        work = {"files": [Path(folder)], "notes": [Path(folder) / "notes.sqlite3"], "calc": []}[name]
        server = import_module(f"{demo_modules.__name__}.{name}").build(*work)
        tools = anyio.run(server.list_tools)
    listed = [tool.to_mcp_tool().model_dump(by_alias=True, mode="json", exclude_none=True) for tool in tools]
    return Canned(tools=listed)


@contextmanager
def demo_home(folder: Path, settings: Mapping[str, Any] | None = None) -> Iterator[Path]:
    """A home with the three demo servers, listed once, so that commands answer without starting them."""
    with home_of(folder, {"servers": demo_servers(folder / "demo"), **(settings or {})}) as home:
        pml("tools", "--json")
        yield home


@contextmanager
def listed_home(folder: Path, settings: Mapping[str, Any] | None = None) -> Iterator[Path]:
    """A home like that of the demo, for commands that call nothing and show no configuration."""
    with home_of(folder, {"servers": listing(folder / "demo", "files", "notes", "calc"), **(settings or {})}) as home:
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
