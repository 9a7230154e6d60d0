"""What a reference stands for is in no message: paths, commands and URLs are shown as they are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import home_of, run_here
from tests.support.process import run_pml, running_gateway

SECRET, SHORT, IN_FILE, DEFAULT = "correcthorsebattery", "q9zk", "hunter-in-a-file", "default-horse-1"


def settings(folder: Path) -> dict[str, Any]:
    file = folder / "secret"
    file.write_text(IN_FILE)
    (folder / SECRET).write_text("not executable")
    (folder / f"{SECRET}.env").write_text("A=b")
    (folder / f"{SECRET}.env").chmod(0o644)
    boom = "import sys; sys.stderr.write('boom ' + sys.argv[1]); sys.exit(3)"
    servers: dict[str, dict[str, Any]] = {
        "missing": {"command": "/nonexistent/${env:PML_TEST_SECRET}"},
        "short": {"command": "/nonexistent/${env:PML_TEST_SHORT}"},
        "folder": {"command": "python3", "cwd": "/nonexistent/${env:PML_TEST_SHORT}"},
        "below": {"command": f"{file}/${{env:PML_TEST_SHORT}}"},
        "mode": {"command": f"{folder}/${{env:PML_TEST_SECRET}}"},
        "whole": {"command": "${env:PML_TEST_SECRET}"},
        "default": {"command": f"/nonexistent/${{env:PML_TEST_UNSET:-{DEFAULT}}}"},
        "file": {"command": f"${{file:{file}}}"},
        "variables": {"command": "python3", "env_file": "/nonexistent/${env:PML_TEST_SHORT}.env"},
        "open": {"command": "python3", "args": ["-c", "1"], "env_file": f"{folder}/${{env:PML_TEST_SECRET}}.env"},
        "url": {"url": "http://127.0.0.1:1/${env:PML_TEST_SECRET}/mcp"},
        "no_url": {"url": "${env:PML_TEST_SHORT}"},
        "talks": {"command": "python3", "args": ["-c", boom, "${env:PML_TEST_SECRET}"]},
    }
    return {"servers": {name: {**each, "connect_timeout": 5} for name, each in servers.items()}}


VARIABLES = {"PML_TEST_SECRET": SECRET, "PML_TEST_SHORT": SHORT}


def assert_nothing_shows(text: str) -> None:
    for value in (SECRET, SHORT, IN_FILE, DEFAULT):
        assert value not in text, "\n".join(line for line in text.splitlines() if value in line)


@pytest.mark.parametrize(
    "command",
    [
        "doctor",
        "doctor --json",
        "config show",
        "config show --json",
        "config show --origin",
        "upstreams --json",
        "connect codex --dry-run",
        "init --dry-run",
        "upstreams logs talks",
    ],
)
def test_no_command_shows_what_a_reference_stands_for(tmp_path: Path, command: str) -> None:
    with home_of(tmp_path, settings(tmp_path)) as home:
        done = run_here(home, *command.split(), extra={**VARIABLES, "HOME": str(tmp_path)})
    assert_nothing_shows(done.stdout + done.stderr)
    if command == "doctor --json":
        what = {finding["subject"]: finding["what"] for finding in json.loads(done.stdout)["findings"]}
        assert what["missing"] == "command /nonexistent/${env:PML_TEST_SECRET} is not found"
        assert what["folder"] == "working directory /nonexistent/${env:PML_TEST_SHORT} does not exist"


@pytest.mark.slow
def test_no_line_of_a_gateway_shows_what_a_reference_stands_for(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running_gateway(home, settings(tmp_path), extra=VARIABLES) as gateway:
        status = run_pml(home, "refresh", "--json", extra=VARIABLES)
    assert_nothing_shows("".join(gateway.log) + status.stdout + status.stderr)
