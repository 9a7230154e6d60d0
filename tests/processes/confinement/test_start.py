"""No repository chooses the program of a server: what looks around in its folder runs in another one."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.trust import TrustStore
from pml_gateway.errors import GatewayError, SecretError
from pml_gateway.mcp.transport import process_parameters
from pml_gateway.processes.confinement.loader_variables import is_loader_variable
from pml_gateway.processes.confinement.start import ProgramOfFolderError
from pml_gateway.working_directory import WorkingDirectory

pytestmark = pytest.mark.field("A1")


@pytest.fixture
def here(tmp_path: Path) -> WorkingDirectory:
    """A client in a repository that has something for every name that is looked up in it."""
    project, home = tmp_path / "project", tmp_path / "home"
    for folder in (project / "data" / "deep", project / "node_modules" / ".bin", project / "bin", home):
        folder.mkdir(parents=True)
    for name in ("tool", "node_modules/.bin/tool", "bin/tool", "server.py", "index.js", "hook.mjs"):
        (project / name).write_text("#!/bin/sh\necho stranger\n", encoding="utf-8")
        (project / name).chmod(0o755)
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(home), "PWD": str(project), "TOKEN": "t0ken"}
    return WorkingDirectory(project, environ)


def start(here: WorkingDirectory, line: str | list[str], **more: Any) -> tuple[list[str], Path]:
    """The arguments and the folder that a command line is started with; `/P` is the project there."""
    command, *args = shlex.split(line) if isinstance(line, str) else line
    found = process_parameters("up", UpstreamDefinition(command=command, args=tuple(args), **more), here)
    project = str(here.folder)
    return [each.replace(project, "/P") for each in found.args], Path(str(found.cwd))


@pytest.mark.parametrize(
    "line",
    [
        ["python3", "-c", "\nfrom pathlib import Path\nprint(Path('a') / 'b')\n", "/var/notes"],
        ["python3", "-Ic", "import sys; sys.exit(1 / 2)"],
        ["node", "-e", "require('./' + 'x'); 1 / 2", "/var/notes"],
        ["node", "-p", "a / b"],
        ["env", "A=1", "perl", "-e", "print 1 / 2"],
    ],
)
def test_code_on_the_command_line_is_no_path_and_runs_at_home(here: WorkingDirectory, line: list[str]) -> None:
    args, folder = start(here, line)
    assert args == line[1:]
    assert folder == Path(here.environ["HOME"])


@pytest.mark.parametrize("options", ["-S -E", "-I", "-u -W error", "-P -s"])
def test_options_of_python_that_run_nothing_leave_a_script_in_the_folder(here: WorkingDirectory, options: str) -> None:
    _, folder = start(here, f"python3 {options} /srv/server.py ./notes.txt")
    assert folder == here.folder


RUNNERS = {
    "npx": "npx -y PKG .",
    "npx, a version": "npx -y PKG@1.2.3 .",
    "npx, a scope": "npx --yes @scope/PKG .",
    "npx, a package that is named": "npx --package=PKG PKG .",
    "npx, in two words": "npx -p PKG PKG .",
    "npx by its path": "/usr/bin/npx -y PKG .",
    "npx of Windows": "npx.cmd -y PKG .",
    "npm exec": "npm exec -y -- PKG .",
    "npm exec behind an option": "npm --silent exec -- PKG .",
    "npm x": "npm x -y -- PKG .",
    "uvx": "uvx PKG .",
    "uvx from": "uvx --from PKG==1 PKG .",
    "uv tool run": "uv tool run PKG .",
    "uv tool run behind an option": "uv --offline tool run PKG .",
    "uvx with a value": "uvx --index-url https://i.example --python 3.12 PKG .",
    "bunx": "bunx PKG .",
    "bun x": "bun x PKG .",
    "pnpm dlx": "pnpm dlx PKG .",
    "pnpm dlx, silent": "pnpm --silent dlx PKG .",
    "yarn dlx": "yarn dlx PKG .",
    "pipx": "pipx run PKG .",
    "pipx, a specification": "pipx run --spec PKG==1 PKG .",
    "python -m": "python3 -m PKG .",
    "python, options first": "python3.11 -I -X dev -m PKG .",
    "python, options together": "python -Im PKG .",
    "python by its path": "/usr/bin/python3 -u -m PKG .",
    "python of Windows": "python.exe -m PKG .",
    "pypy": "pypy3 -m PKG .",
    "python -c": "python3 -c 'import PKG' .",
    "node --import": "node --import PKG /srv/index.js .",
    "node --require": "node --require=PKG /srv/index.js .",
    "node -r": "node -r PKG /srv/index.js .",
    "node -e": "node -e 'import(1)' .",
    "deno": "deno run -A npm:PKG .",
    "deno, a module": "deno run -A https://x.example/mod.ts .",
    "bun, a script": "bun /srv/index.ts .",
    "bun run": "bun run /srv/index.ts .",
    "tsx": "tsx /srv/index.ts .",
    "java": "java -cp /srv/x.jar Main .",
    "go run": "go run example.com/PKG@latest .",
    "uv run, an absolute script": "uv run --with PKG /srv/server.py .",
    "env": "env A=1 npx -y PKG .",
    "env with options": "env -u B npx -y PKG .",
    "cmd": "cmd /c npx -y PKG .",
    "timeout": "timeout 30 uvx PKG .",
    "nice": "nice -n 5 npx -y PKG .",
    "a manager of secrets": "op run -- npx -y PKG .",
    "an unknown starter": "/opt/bin/wrap --quiet -- npx -y PKG .",
    "an unknown one without dashes": "/opt/bin/wrap npx -y PKG .",
    "npx by its script": "node /opt/npm/bin/npx-cli.js -y PKG .",
    "uv as a module": "python3 -m uv tool run PKG .",
    "a scope, and a known name": "npx -y @PKG/mcp@latest .",
    "nvm": "nvm exec 20 npx -y PKG .",
}


@pytest.mark.parametrize("line", RUNNERS.values(), ids=RUNNERS)
def test_what_looks_for_its_program_runs_at_home_and_still_serves_the_project(
    here: WorkingDirectory, line: str
) -> None:
    args, cwd = start(here, line)
    assert cwd == here.home
    assert args == [*shlex.split(line)[1:-1], "/P"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["sh", "-c", "npx -y PKG ."], "npx -y PKG /P"),
        (["bash", "-lc", "exec uvx PKG --repository ./data"], "exec uvx PKG --repository /P/data"),
        (["env", "A=1", "sh", "-c", "A=1 npx -y PKG notes.db"], "A=1 npx -y PKG /P/notes.db"),
        (["mcp-proxy", "--stdio", "npx -y PKG ."], "npx -y PKG /P"),
        (["env", "-S", "npx -y PKG ."], "npx -y PKG /P"),
    ],
)
def test_a_plain_line_of_a_shell_is_read_as_well(here: WorkingDirectory, line: list[str], expected: str) -> None:
    args, cwd = start(here, line)
    assert (args[-1], cwd) == (expected, here.home)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("./data", "/P/data"),
        ("./", "/P"),
        ("--repository .", "--repository /P"),
        ("--dir=./data", "--dir=/P/data"),
        ("--dirs=./data,/abs,../x", "--dirs=/P/data,/abs,/P/../x"),
        ("-d./data", "-d/P/data"),
        ("./data:./bin", "/P/data:/P/bin"),
        ("@./data/x.json", "@/P/data/x.json"),
        ("notes.db", "/P/notes.db"),
        ("--db notes.db", "--db /P/notes.db"),
        ("data/", "/P/data"),
        ("sqlite:///notes.db", "sqlite:////P/notes.db"),
        ("'./my notes'", "'/P/my notes'"),
        ("${cwd}/data", "/P/data"),
        ("${env:PWD}", "/P"),
        ("owner/name", "owner/name"),
        ("https://x.example/a/b", "https://x.example/a/b"),
        ("serve", "serve"),
        ("/abs ~/notes", "/abs ~/notes"),
    ],
)
def test_paths_begin_in_the_clients_folder_wherever_the_server_runs(
    here: WorkingDirectory, given: str, expected: str
) -> None:
    args, cwd = start(here, f"npx -y PKG {given}")
    above = str(here.folder.parent)
    assert [each.replace("/P/..", above) for each in shlex.split(expected)] == args[2:]
    assert cwd == here.home


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("docker run -i --rm -v ./data:/y image /z", "-v /P/data:/y"),
        ("docker run -v .:/y:ro image", "-v /P:/y:ro"),
        ("podman run --volume=.:/y image", "--volume=/P:/y"),
        ("docker run --mount type=bind,source=.,target=/y image", "--mount type=bind,source=/P,target=/y"),
        ("docker run --mount type=bind,src=data,dst=/y image", "--mount type=bind,src=/P/data,dst=/y"),
        ("docker run -v./data:/y image", "-v/P/data:/y"),
        ("docker run -itv ./data:/y image", "-itv /P/data:/y"),
        ("nerdctl run -v ${cwd}:/y image", "-v /P:/y"),
        ("docker run -v data:/y image", "-v data:/y"),
        ("docker run -e DB=./x.db -v /srv:/y image --db ./x.db", "-e DB=./x.db -v /srv:/y image --db ./x.db"),
    ],
)
def test_bind_mounts_begin_in_the_clients_folder(here: WorkingDirectory, line: str, expected: str) -> None:
    args, cwd = start(here, line)
    assert expected in " ".join(args)
    assert cwd == here.home


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"DB": "./x.db"}, {"DB": "/P/x.db"}),
        ({"DATA_DIR": "data/"}, {"DATA_DIR": "/P/data"}),
        ({"URL": "sqlite:///notes.db"}, {"URL": "sqlite:////P/notes.db"}),
        ({"NODE_ENV": "data", "TZ": "Europe/Berlin"}, {"NODE_ENV": "data", "TZ": "Europe/Berlin"}),
    ],
)
def test_paths_in_variables_begin_there_too(
    here: WorkingDirectory, env: dict[str, str], expected: dict[str, str]
) -> None:
    found = process_parameters("up", UpstreamDefinition(command="npx", args=("-y", "PKG"), env=env), here)
    assert found.env is not None
    assert {name: found.env[name].replace(str(here.folder), "/P") for name in env} == expected


REFUSED: dict[str, dict[str, Any]] = {
    "a word that may be a folder": {"command": "npx", "args": ["-y", "PKG", "data"]},
    "one behind an option": {"command": "uvx", "args": ["PKG", "--dir", "data"]},
    "a deep one": {"command": "npx", "args": ["-y", "PKG", "data/of/mine"]},
    "a variable that may be one": {"command": "npx", "args": ["-y", "PKG"], "env": {"DATA_DIR": "data"}},
    "a shell that goes there": {"command": "sh", "args": ["-c", 'cd "$PWD" && npx -y PKG']},
    "a shell with more than a command": {"command": "sh", "args": ["-c", "cd data && npx -y PKG"]},
    "a shell with a reference": {"command": "sh", "args": ["-c", "cd ${cwd} && npx -y PKG"]},
    "a shell with a variable of the client": {"command": "sh", "args": ["-c", "cd ${env:PWD}; uvx PKG"]},
    "a command of the folder": {"command": "./tool"},
    "one named by a reference": {"command": "${workspaceFolder}/tool"},
    "one named by a variable": {"command": "${env:PWD}/tool"},
    "a script": {"command": "python3", "args": ["server.py"]},
    "a script without an ending": {"command": "node", "args": ["tool"]},
    "a script named by a reference": {"command": "node", "args": ["${cwd}/index.js"]},
    "a script of a shell": {"command": "sh", "args": ["tool"]},
    "a script behind env": {"command": "env", "args": ["A=1", "./tool"]},
    "a script behind exec": {"command": "sh", "args": ["-c", "exec ./tool"]},
    "a script behind sudo": {"command": "sudo", "args": ["-u", "me", "./tool"]},
    "a script behind a starter": {"command": "op", "args": ["run", "--", "./tool"]},
    "a module to import": {"command": "node", "args": ["--import", "./hook.mjs", "/srv/index.js"]},
    "a module to require": {"command": "node", "args": ["--require=./index.js", "/srv/index.js"]},
    "variables for node": {"command": "node", "args": ["--env-file=.env", "/srv/index.js"]},
    "a package in the folder": {"command": "npx", "args": ["-y", "./tool"]},
    "another": {"command": "uvx", "args": ["--from", ".", "tool"]},
    "an archive": {"command": "uvx", "args": ["--from", "dist/tool.whl", "tool"]},
    "a prefix of npm": {"command": "npx", "args": ["--prefix", "./data", "PKG"]},
    "a folder of env": {"command": "env", "args": ["-C", "./data", "npx", "-y", "PKG"]},
    "an option that may take the package": {"command": "uvx", "args": ["--new-option", "PKG", "./tool"]},
    "a configuration of uv": {"command": "uvx", "args": ["--config-file", "${cwd}/uv.toml", "PKG"]},
    "uv run": {"command": "uv", "args": ["run", "tool"]},
    "uv run of a script": {"command": "uv", "args": ["run", "server.py"]},
    "uv run elsewhere in the folder": {"command": "uv", "args": ["--directory", "./data", "run", "server.py"]},
    "uv run by a reference": {"command": "uv", "args": ["--directory", "${cwd}", "run", "server.py"]},
    "poetry": {"command": "poetry", "args": ["run", "tool"]},
    "npm start": {"command": "npm", "args": ["start"]},
    "npm run": {"command": "npm", "args": ["run", "serve"]},
    "make": {"command": "make", "args": ["serve"]},
    "cargo": {"command": "cargo", "args": ["run", "--quiet"]},
    "compose": {"command": "docker", "args": ["compose", "run", "tool"]},
    "compose of a file": {"command": "docker", "args": ["compose", "-f", "./compose.yaml", "run", "tool"]},
    "a container that runs the folder": {"command": "docker", "args": ["run", "-v", ".:/w", "node:20", "node", "/w/x"]},
    "one that works there": {"command": "docker", "args": ["run", "-v", ".:/w", "-w", "/w", "image"]},
    "one that runs a package there": {"command": "docker", "args": ["run", "-v", ".:/w", "node:20", "npx", "PKG"]},
    "variables for a container": {"command": "docker", "args": ["run", "--env-file", ".env", "image"]},
    "a runner in the folder by cwd": {"command": "npx", "args": ["-y", "PKG"], "cwd": "${workspaceFolder}"},
    "by a relative cwd": {"command": "uvx", "args": ["PKG"], "cwd": "data"},
    "by a variable": {"command": "python3", "args": ["-m", "PKG"], "cwd": "${env:PWD}"},
    "a path of modules": {"command": "/opt/tool", "env": {"PYTHONPATH": "."}},
    "an empty entry": {"command": "python3", "args": ["/srv/x.py"], "env": {"PYTHONPATH": "/srv:"}},
    "a reference in one": {"command": "/opt/tool", "env": {"NODE_PATH": "${workspaceFolder}/lib"}},
    "options of node": {"command": "/opt/tool", "env": {"NODE_OPTIONS": "--require ./index.js"}},
    "a library": {"command": "/opt/tool", "env": {"LD_PRELOAD": "${cwd}/x.so"}},
    "a configuration of npm": {"command": "npx", "args": ["PKG"], "env": {"npm_config_userconfig": "./.npmrc"}},
    "a path of programs": {"command": "tool", "env": {"PATH": "bin:/usr/bin"}},
    "a path of programs with a reference": {"command": "tool", "env": {"PATH": "${cwd}/bin:/usr/bin"}},
    "a runner's own script": {"command": "node", "args": ["/opt/npm/bin/npx-cli.js", "-y", "./tool"]},
    "a runner as a module": {"command": "python3", "args": ["-m", "uv", "tool", "run", "--from", ".", "tool"]},
    "another as a module": {"command": "python3", "args": ["-m", "pipx", "run", "./tool"]},
    "a package that runs scripts": {"command": "npx", "args": ["-y", "tsx", "./server"]},
    "one of a version": {"command": "npx", "args": ["-y", "tsx@4", "src/index.ts"]},
    "one of a scope": {"command": "npx", "args": ["@modelcontextprotocol/inspector", "./tool"]},
    "one of Python": {"command": "uvx", "args": ["fastmcp[cli]==2", "run", "./server"]},
    "a program that runs scripts": {"command": "fastmcp", "args": ["run", "server.py"]},
    "a package that is told a script": {"command": "npx", "args": ["-y", "PKG", "--config", "./x.config.mjs"]},
    "a package that is told a command": {"command": "npx", "args": ["-y", "PKG", "--", "./tool"]},
    "a package that is told a line": {"command": "npx", "args": ["-y", "supergateway", "--stdio", "npx -y PKG ."]},
    "a module that is told a script": {"command": "python3", "args": ["-m", "runpy", "server.py"]},
    "an interpreter behind an unknown program": {"command": "/opt/wrap", "args": ["python3", "server.py"]},
    "a project behind one": {"command": "/opt/wrap", "args": ["-q", "uv", "run", "tool"]},
    "words behind a line": {"command": "sh", "args": ["-c", 'exec "$@"', "x", "./tool"]},
    "a container whose programs are covered": {"command": "docker", "args": ["run", "-v", ".:/app", "image"]},
    "a container, glued": {"command": "docker", "args": ["run", "-v.:/w", "-w/w", "image"]},
    "a program for a package": {"command": "npx", "args": ["-y", "PKG", "--exec", "./hook"]},
    "a program for another": {"command": "uvx", "args": ["PKG", "--server-command=./hook"]},
    "a script behind a package": {"command": "uvx", "args": ["PKG", "python", "./hook"]},
    "a file that can be run": {"command": "npx", "args": ["-y", "PKG", "./tool"]},
    "a script of bash": {"command": "bash", "args": ["./tool"]},
    "a script that is sourced": {"command": "bash", "args": ["-c", ". ./tool"]},
    "a line that is evaluated": {"command": "sh", "args": ["-c", "eval ./tool"]},
    "a loader": {"command": "/lib64/ld-linux-x86-64.so.2", "args": ["./tool"]},
    "a program that is watched": {"command": "watch", "args": ["./tool"]},
    "variables of env for a plain program": {"command": "env", "args": ["NODE_OPTIONS=-r ./index.js", "/usr/bin/tool"]},
    "programs of env for a plain program": {"command": "env", "args": ["PATH=.:/bin", "tool"]},
    "a program by a reference": {"command": "npx", "args": ["-y", "PKG", "--exec", "${cwd}/hook"]},
    "a script by a reference": {"command": "uvx", "args": ["PKG", "${workspaceFolder}/server.py"], "cwd": "/"},
    "gradle": {"command": "gradle", "args": ["run"]},
    "composer": {"command": "composer", "args": ["run", "x"]},
    "a container whose entry is covered": {"command": "docker", "args": ["run", "-v", "./x:/entrypoint.sh", "image"]},
    "one whose commands are": {"command": "docker", "args": ["run", "-v", ".:/usr/./local/bin/", "image"]},
    "variables of env": {"command": "env", "args": ["PYTHONPATH=.", "python3", "-m", "PKG"]},
}


@pytest.mark.parametrize("entry", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_told_apart_is_refused_with_the_remedy(here: WorkingDirectory, entry: dict[str, Any]) -> None:
    definition = UpstreamDefinition.model_validate(entry)
    with pytest.raises(ProgramOfFolderError) as caught:
        process_parameters("up", definition, here)
    for remedy in ("servers.up.sessions to per_folder", "pml trust project"):
        assert remedy in caught.value.hint
    assert "NAME" not in caught.value.hint
    assert "t0ken" not in str(caught.value)


@pytest.mark.parametrize("entry", REFUSED.values(), ids=REFUSED)
def test_who_writes_per_folder_gets_the_folder(here: WorkingDirectory, entry: dict[str, Any]) -> None:
    definition = UpstreamDefinition.model_validate({**entry, "sessions": "per_folder"})
    (here.folder / ".env").touch()
    found = process_parameters("up", definition, here)
    assert Path(str(found.cwd)).is_relative_to("/" if entry.get("cwd") == "/" else here.folder)


@pytest.mark.parametrize("line", RUNNERS.values(), ids=RUNNERS)
def test_an_approved_project_is_run_in_until_its_file_changes(here: WorkingDirectory, line: str) -> None:
    file = here.folder / ".pml.yaml"
    file.write_text("gateway: {intent: x}\n", encoding="utf-8")
    TrustStore(here.home / ".pml" / "trust.json").trust(file, file.read_bytes())
    assert start(here, line) == (shlex.split(line)[1:], here.folder)
    file.write_text("gateway: {intent: y}\n", encoding="utf-8")
    assert start(here, line)[1] == here.home


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "/opt/tool", "args": ["./data"]},
        {"command": "tool", "args": ["--dir", "data"]},
        {"command": "/opt/tool", "cwd": "${cwd}"},
        {"command": "python3", "args": ["/srv/server.py", "."]},
        {"command": "node", "args": ["--enable-source-maps", "/srv/index.js", "data"]},
    ],
)
def test_a_program_that_takes_nothing_from_its_folder_runs_there(here: WorkingDirectory, entry: dict[str, Any]) -> None:
    definition = UpstreamDefinition.model_validate(entry)
    found = process_parameters("up", definition, here)
    assert (found.cwd, tuple(found.args)) == (here.folder, definition.args)


def test_a_script_of_a_shell_may_start_anything(here: WorkingDirectory, tmp_path: Path) -> None:
    script = tmp_path / "wrapper"
    script.write_text('#!/usr/bin/env bash\nexec npx -y PKG "$@"\n', encoding="utf-8")
    assert start(here, [str(script), "."]) == (["/P"], here.home)
    script.chmod(0o755)
    found = WorkingDirectory(here.folder, {**here.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert start(found, "wrapper --dir ./data") == (["--dir", "/P/data"], here.home)
    with pytest.raises(ProgramOfFolderError):
        start(here, [str(script), "data"])


@pytest.mark.parametrize("target", ["/opt/npm/bin/npx-cli.js", "/opt/bin/mise", "/opt/bin/volta-shim", "/opt/bin/uvx"])
def test_a_link_is_what_it_leads_to(here: WorkingDirectory, tmp_path: Path, target: str) -> None:
    link = tmp_path / "node"
    link.symlink_to(target)
    assert start(here, [str(link), "/srv/index.js", "."]) == (["/srv/index.js", "/P"], here.home)


@pytest.mark.parametrize("cwd", ["/", "~"])
def test_a_folder_that_the_owner_names_is_left_alone(here: WorkingDirectory, cwd: str) -> None:
    args, folder = start(here, "npx -y PKG ./data", cwd=cwd)
    assert (args, folder) == (["-y", "PKG", "./data"], here.path(cwd))


@pytest.mark.parametrize("line", ["uv run tool", "npx -y PKG data", "python3 server.py", "./tool"])
def test_the_home_directory_and_the_root_are_no_repositories(here: WorkingDirectory, line: str) -> None:
    for folder in (here.home, Path("/")):
        args, cwd = start(WorkingDirectory(folder, here.environ), line)
        assert (args, cwd) == (shlex.split(line)[1:], folder)


def test_shared_words_are_no_paths_whatever_they_look_like(here: WorkingDirectory) -> None:
    assert start(here, "npx -y PKG data ./x", sessions="shared") == (["-y", "PKG", "data", "./x"], here.home)


@pytest.mark.parametrize(
    "path",
    [
        "{P}/node_modules/.bin:{U}",
        "./node_modules/.bin:{U}",
        "node_modules/.bin:{U}",
        ".:{U}",
        ":{U}",
        "{U}:",
        "/usr/bin::/bin",
    ],
)
def test_programs_are_not_looked_up_in_the_clients_folder(here: WorkingDirectory, path: str) -> None:
    found_path = path.format(P=here.folder, U="/usr/bin:/bin")
    working_directory = WorkingDirectory(here.folder, {**here.environ, "PATH": found_path})
    found = process_parameters("up", UpstreamDefinition(command="tool"), working_directory)
    assert found.env is not None
    assert (found.command, found.env["PATH"]) == ("tool", "/usr/bin:/bin")
    allowed = process_parameters("up", UpstreamDefinition(command="tool", sessions="per_folder"), working_directory)
    assert allowed.env is not None
    assert allowed.env["PATH"] == found_path


def test_folders_of_programs_that_the_shell_has_entered_count(here: WorkingDirectory) -> None:
    path = f"{here.folder}/.venv/bin:/usr/bin"
    environ = {**here.environ, "PATH": path}
    found = process_parameters("up", UpstreamDefinition(command="tool"), WorkingDirectory(here.folder, environ))
    assert found.env is not None
    assert found.env["PATH"] == path


LOADERS = [
    "PATH",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTHONHOME",
    "PYTHONINSPECT",
    "NODE_OPTIONS",
    "NODE_PATH",
    "NODE_EXTRA_CA_CERTS",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "DYLD_INSERT_LIBRARIES",
    "BASH_ENV",
    "ENV",
    "SHELLOPTS",
    "BASHOPTS",
    "PS4",
    "IFS",
    "GIT_SSH_COMMAND",
    "GIT_CONFIG_GLOBAL",
    "npm_config_registry",
    "NPM_CONFIG_USERCONFIG",
    "UV_INDEX_URL",
    "UV_DEFAULT_INDEX",
    "PIP_INDEX_URL",
    "RUBYOPT",
    "RUBYLIB",
    "GEM_PATH",
    "BUNDLE_GEMFILE",
    "PERL5OPT",
    "PERL5LIB",
    "PERLLIB",
    "JAVA_TOOL_OPTIONS",
    "_JAVA_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "CLASSPATH",
    "DOTNET_STARTUP_HOOKS",
    "CORECLR_PROFILER",
    "COMPlus_x",
    "PHPRC",
    "PHP_INI_SCAN_DIR",
    "LUA_PATH",
    "LUA_INIT",
    "R_PROFILE_USER",
    "DOCKER_HOST",
    "DENO_DIR",
    "BUN_INSTALL",
    "HTTPS_PROXY",
    "https_proxy",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "HOME",
    "XDG_CONFIG_HOME",
    "EDITOR",
    "PAGER",
    "GOFLAGS",
    "GOPROXY",
    "RUSTC_WRAPPER",
    "CARGO_HOME",
    "ERL_FLAGS",
    "MAVEN_OPTS",
    "OPENSSL_CONF",
    "BASH_FUNC_ls%%",
    "PML_HOME",
    "PUPPETEER_EXECUTABLE_PATH",
    "ASPNETCORE_HOSTINGSTARTUPASSEMBLIES",
]


def test_an_env_file_of_a_repository_gives_no_loader_variables(
    here: WorkingDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    names = [name for name in LOADERS if name.isidentifier()]
    lines = [f"{name}=stranger" for name in names]
    (here.folder / ".env").write_text("\n".join(["API_KEY=k", "DB_HOST=h", *lines]), encoding="utf-8")
    for file, server in ((".env", "a"), ("${workspaceFolder}/.env", "b"), ("${cwd}/data/../.env", "c")):
        definition = UpstreamDefinition(command="/opt/tool", env_file=file, env={"OWN": "1"})
        found = process_parameters(server, definition, here)
        assert found.env is not None
        assert "stranger" not in found.env.values()
        assert (found.env["API_KEY"], found.env["DB_HOST"], found.env["OWN"]) == ("k", "h", "1")
    assert "NODE_OPTIONS" in caplog.text
    assert "stranger" not in caplog.text


def test_per_folder_does_not_lift_that_and_an_approval_does(here: WorkingDirectory) -> None:
    (here.folder / ".env").write_text("NODE_OPTIONS=x\n", encoding="utf-8")
    definition = UpstreamDefinition(command="/opt/tool", env_file=".env", sessions="per_folder")
    assert "NODE_OPTIONS" not in (process_parameters("up", definition, here).env or {})
    file = here.folder / ".pml.yaml"
    file.write_text("{}\n", encoding="utf-8")
    TrustStore(here.home / ".pml" / "trust.json").trust(file, file.read_bytes())
    assert (process_parameters("up", definition, here).env or {})["NODE_OPTIONS"] == "x"


def test_an_env_file_of_another_repository_is_no_better_than_one_of_this(
    here: WorkingDirectory, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    (other / ".git").mkdir(parents=True)
    (other / ".env").write_text("NODE_OPTIONS=x\nA=1\n", encoding="utf-8")
    definition = UpstreamDefinition(command="/opt/tool", env_file=str(other / ".env"))
    found = process_parameters("up", definition, here).env or {}
    assert ("NODE_OPTIONS" in found, found["A"]) == (False, "1")


def test_an_env_file_of_the_owner_is_used_as_it_is(here: WorkingDirectory) -> None:
    (here.home / "own.env").write_text("NODE_OPTIONS=x\n", encoding="utf-8")
    definition = UpstreamDefinition(command="/opt/tool", env_file="~/own.env")
    assert (process_parameters("up", definition, here).env or {})["NODE_OPTIONS"] == "x"


def test_an_env_file_that_is_a_pipe_is_not_waited_for(here: WorkingDirectory) -> None:
    os.mkfifo(here.folder / ".env")
    with pytest.raises(SecretError, match="not a regular file"):
        process_parameters("up", UpstreamDefinition(command="/opt/tool", env_file=".env"), here)


@pytest.mark.parametrize("name", LOADERS)
def test_loader_variables_are_known(name: str) -> None:
    assert is_loader_variable(name)


@pytest.mark.parametrize(
    "name",
    [
        "API_KEY",
        "TOKEN",
        "DATABASE_URL",
        "DB_PATH",
        "DATA_DIR",
        "GITHUB_TOKEN",
        "GOOGLE_API_KEY",
        "LOG_LEVEL",
        "PORT",
        "HOST",
        "SSH_HOST",
        "TZ",
        "MODEL_PATH",
        "AWS_REGION",
        "OPENAI_BASE_URL",
        "pg_password",
    ],
)
def test_what_servers_are_told_is_none(name: str) -> None:
    assert not is_loader_variable(name)


MARK = "import os, pathlib; pathlib.Path(os.environ['MARK']).touch()"


@pytest.fixture
def mark(here: WorkingDirectory, tmp_path: Path) -> Iterator[Path]:
    """Touched by whatever the repository gets to run."""
    (here.folder / "stranger.py").write_text(MARK, encoding="utf-8")
    (here.folder / "sitecustomize.py").write_text(MARK, encoding="utf-8")
    (here.folder / "json.py").write_text(MARK, encoding="utf-8")
    package = here.folder / "node_modules" / "stranger"
    package.mkdir(parents=True)
    (package / "index.js").write_text("require('fs').writeFileSync(process.env.MARK, '')", encoding="utf-8")
    (package / "package.json").write_text(
        '{"name": "stranger", "version": "1.0.0", "main": "index.js", "bin": {"stranger": "index.js"}}',
        encoding="utf-8",
    )
    command = here.folder / "node_modules" / ".bin" / "stranger"
    command.write_text('#!/bin/sh\n: > "$MARK"\n', encoding="utf-8")
    command.chmod(0o755)
    (here.folder / ".env").write_text(f"PYTHONPATH={here.folder}\n", encoding="utf-8")
    yield tmp_path / "mark"


def run(here: WorkingDirectory, mark: Path, entry: dict[str, Any]) -> bool:
    """Whether the repository's code runs, with the programs of this machine."""
    env = {"MARK": str(mark), **entry.get("env", {})}
    environ = {**here.environ, "PATH": os.environ["PATH"]}
    definition = UpstreamDefinition.model_validate({**entry, "env": env})
    try:
        found = process_parameters("up", definition, WorkingDirectory(here.folder, environ))
    except GatewayError:
        return False
    subprocess.run(
        [found.command, *found.args],
        cwd=found.cwd,
        env=found.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return mark.exists()


OFFLINE = {"npm_config_offline": "true", "npm_config_update_notifier": "false"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry",
    [
        {"command": sys.executable, "args": ["-m", "stranger"]},
        {"command": sys.executable, "args": ["-m", "json.tool", "."]},
        {"command": sys.executable, "args": ["-c", "import stranger", "."]},
        {"command": "python3", "args": ["-um", "stranger", "./data"]},
        {"command": "env", "args": ["A=1", sys.executable, "-m", "stranger", "."]},
        {"command": "sh", "args": ["-c", f"exec {sys.executable} -m stranger ."]},
        {"command": "npx", "args": ["-y", "stranger", "."], "env": OFFLINE},
        {"command": "npx", "args": ["-y", "--package=stranger", "stranger", "."], "env": OFFLINE},
        {"command": "npm", "args": ["exec", "--", "stranger", "."], "env": OFFLINE},
        {"command": "node", "args": ["--require", "stranger", "-e", "1", "."]},
        {"command": "node", "args": ["-e", "require('stranger')", "."]},
        {"command": "node", "args": ["--import", "stranger", "-e", "1"]},
        {"command": "node", "args": ["-e", "1", "."], "env": {"NODE_OPTIONS": "--require stranger"}},
        {"command": "stranger", "env": {"PATH": f"node_modules/.bin:{os.environ['PATH']}"}},
    ],
    ids=lambda entry: " ".join(entry["args"]) if "args" in entry else entry["command"],
)
def test_a_repository_runs_nothing_of_its_own(here: WorkingDirectory, mark: Path, entry: dict[str, Any]) -> None:
    """With per_folder it does: the attack is a real one."""
    assert not run(here, mark, entry)
    assert run(here, mark, {**entry, "sessions": "per_folder"})


@pytest.mark.slow
def test_a_repository_runs_nothing_by_its_variables(here: WorkingDirectory, mark: Path) -> None:
    entry = {"command": sys.executable, "args": ["/dev/null"], "env_file": "${workspaceFolder}/.env"}
    assert not run(here, mark, entry)
    file = here.folder / ".pml.yaml"
    file.write_text("{}\n", encoding="utf-8")
    TrustStore(here.home / ".pml" / "trust.json").trust(file, file.read_bytes())
    assert run(here, mark, entry)
