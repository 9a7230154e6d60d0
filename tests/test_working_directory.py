"""Workplaces: what is started for a client is started as from its folder and with its variables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.mcp.transport import process_parameters, resolved_headers, surroundings
from pml_gateway.working_directory import WorkingDirectory
from tests.support.memory import settings_for
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import serving
from tests.support.told import SCRIPT, told

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[1]


@pytest.fixture
def working_directory(tmp_path: Path) -> WorkingDirectory:
    """A client's folder with a program, files of variables and a home, none of which this process knows."""
    project, home = tmp_path / "project", tmp_path / "home"
    (project / "sub").mkdir(parents=True)
    (project / "bin").mkdir()
    (home / ".pml").mkdir(parents=True)
    (home / "tools").mkdir()
    for program in (project / "bin" / "runner", project / "sub" / "here", home / "tools" / "mine"):
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {SCRIPT} tells 0 "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    (project / "sub" / "local.env").write_text("FROM_FILE=sub\n", encoding="utf-8")
    (project / "local.env").write_text("FROM_FILE=project\n", encoding="utf-8")
    (home / "token").write_text("of-the-home\n", encoding="utf-8")
    (home / "own.env").write_text("FROM_FILE=home\n", encoding="utf-8")
    (home / ".pml" / "secrets.env").write_text("STORED=from-secrets\n", encoding="utf-8")
    environ = {"PATH": f"{project / 'bin'}:/usr/bin:/bin", "HOME": str(home), "TOKEN": "of-the-client", "LANG": "C"}
    return WorkingDirectory(project, environ)


SERVERS: dict[str, dict[str, Any]] = {
    "by-path": {"command": "runner", "env": {"A": "${env:TOKEN}", "B": "${file:~/token}", "C": "${env:STORED}"}},
    "relative-command": {"command": "./sub/here", "args": ["./x", "${env:TOKEN}"], "sessions": "per_folder"},
    "relative-cwd": {"command": "./here", "cwd": "sub", "env_file": "local.env", "sessions": "per_folder"},
    "relative-env-file": {"command": "runner", "env_file": "local.env"},
    "refused": {"command": "./sub/here"},
    "home": {"command": "~/tools/mine", "cwd": "~", "env_file": "~/own.env"},
    "own-path": {"command": "mine", "env": {"PATH": "${env:HOME}/tools:/bin"}},
    "relative-path": {"command": "here", "env": {"PATH": "sub:/bin"}, "sessions": "per_folder"},
    "empty-path": {"command": "here", "cwd": "sub", "env": {"PATH": ":/bin"}, "sessions": "per_folder"},
    "missing": {"command": "nowhere-to-be-found"},
    "missing-folder": {"command": "runner", "cwd": "gone"},
    "missing-variable": {"command": "runner", "env": {"A": "${env:NOT_THERE}"}},
    "missing-file": {"command": "runner", "env_file": "gone.env"},
}


@pytest.mark.slow
async def test_a_gateway_for_another_workplace_starts_servers_as_one_that_was_started_there(
    working_directory: WorkingDirectory, tmp_path: Path
) -> None:
    done = await anyio.to_thread.run_sync(
        lambda: subprocess.run(
            [sys.executable, "-m", "tests.support.told", json.dumps(SERVERS), str(tmp_path / "there")],
            cwd=working_directory.folder,
            env={**working_directory.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            timeout=100,
            check=False,
        )
    )
    assert done.returncode == 0, done.stderr[-3000:]
    here = await told(SERVERS, tmp_path / "here", working_directory)
    assert here == json.loads(done.stdout)
    assert [name for name, said in here.items() if isinstance(said, str)] == [
        "refused",
        "missing",
        "missing-folder",
        "missing-variable",
        "missing-file",
    ]
    assert here["by-path"]["cwd"] == str(working_directory.home)
    assert here["relative-command"]["cwd"] == str(working_directory.folder)
    assert here["by-path"]["env"].items() >= {"A": "of-the-client", "B": "of-the-home", "C": "from-secrets"}.items()
    assert here["relative-command"]["args"] == ["./x", "of-the-client"]
    assert [here[name]["env"]["FROM_FILE"] for name in ("relative-cwd", "relative-env-file", "home")] == [
        "sub",
        "project",
        "home",
    ]


def definition(**entry: Any) -> UpstreamDefinition:
    return UpstreamDefinition.model_validate(entry)


def test_the_folder_of_the_client_has_two_names_in_definitions(working_directory: WorkingDirectory) -> None:
    given = definition(
        command="${cwd}/sub/here",
        args=["--root=${workspaceFolder}", "$${cwd}", "${cwd", "${pwd}"],
        env={"ROOT": "${cwd}"},
        cwd="${workspaceFolder}/sub",
        env_file="${cwd}/local.env",
        sessions="per_folder",
    )
    found = process_parameters("up", given, working_directory)
    folder = str(working_directory.folder)
    assert found.command == f"{folder}/sub/here"
    assert found.args == [f"--root={folder}", "${cwd}", "${cwd", "${pwd}"]
    assert found.cwd == working_directory.folder / "sub"
    assert (found.env or {}).items() >= {"ROOT": folder, "FROM_FILE": "project"}.items()
    headers = resolved_headers(definition(url="https://x.example", headers={"X-Root": "${cwd}"}), working_directory)
    assert headers == {"X-Root": folder}


def test_what_stands_for_the_folder_is_scanned_no_further(tmp_path: Path) -> None:
    strange = WorkingDirectory(tmp_path / "${env:TOKEN}", {"TOKEN": "wrong"})
    found = process_parameters("up", definition(command="x", args=["${cwd}"]), strange)
    assert found.args == [str(strange.folder)]


def test_a_folder_that_is_gone_keeps_no_server_from_starting(tmp_path: Path) -> None:
    gone = WorkingDirectory(tmp_path / "gone", {"PATH": "/bin"})
    assert process_parameters("up", definition(command="x"), gone).cwd == Path("/")


def test_what_a_start_depends_on_is_looked_at_in_the_workplace(working_directory: WorkingDirectory) -> None:
    given = definition(command="later", env={"A": "${env:LATER:-}"})
    before = surroundings("up", given, working_directory)
    assert surroundings("up", given, working_directory) == before
    assert (
        surroundings(
            "up", given, WorkingDirectory(working_directory.folder, {**working_directory.environ, "LATER": "x"})
        )
        != before
    )
    later = working_directory.folder / "bin" / "later"
    later.write_text("#!/bin/sh\n", encoding="utf-8")
    assert surroundings("up", given, working_directory) == before
    later.chmod(0o755)
    assert surroundings("up", given, working_directory) != before


def test_a_workplace_shows_no_variable(working_directory: WorkingDirectory) -> None:
    assert "of-the-client" not in repr(working_directory)


async def test_a_variable_that_this_process_changes_later_restarts_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = {"calc": ScriptedServer([tool("add")])}
    settings = settings_for(servers)
    async with serving(tmp_path, servers, settings) as served:
        opened = servers["calc"].opened
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.setenv("HOME", str(tmp_path))
        await served.gateway.reload(settings)
        await served.gateway.refresh(20)
        assert servers["calc"].opened == opened
