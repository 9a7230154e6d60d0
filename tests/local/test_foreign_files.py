"""`pml serve` in a folder where others have put pipes: it serves, and waits for none of them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from pml_gateway.local.entry import may_be_off
from tests.support.process import SERVE, end_gateway, environment, serve_alone, write_settings

pytestmark = pytest.mark.field("A4")

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("place", ["project", "above", "git root", "link"])
def test_a_pipe_in_the_place_of_a_project_file_stops_nothing(tmp_path: Path, alone: bool, place: str) -> None:
    shared = tmp_path / "shared"
    project = shared / "project"
    project.mkdir(parents=True)
    pipe = (shared if place in ("above", "git root") else project) / ".pml.yaml"
    if place == "git root":
        (shared / ".git").mkdir()
    if place == "link":
        os.mkfifo(tmp_path / "pipe")
        pipe.symlink_to(tmp_path / "pipe")
    else:
        os.mkfifo(pipe)
    home = tmp_path / "home"
    write_settings(home, {"servers": {"off": {"command": "x", "enabled": False}}})
    try:
        done = subprocess.run(
            serve_alone() if alone else SERVE,
            cwd=project,
            env=environment(home),
            input=json.dumps(INITIALIZE) + "\n",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        if not alone:
            end_gateway(home)
    assert json.loads(done.stdout.splitlines()[0])["result"]["serverInfo"]["name"], done.stderr


def test_only_files_of_the_project_can_switch_bridges_off(tmp_path: Path) -> None:
    project = tmp_path / "shared" / "project"
    project.mkdir(parents=True)
    options: dict[str, str | None] = {"config": None, "mode": None, "preset": None}
    environ = {"HOME": str(tmp_path)}
    (tmp_path / "shared" / ".pml.yaml").write_text("local: {attach: false}\n", encoding="utf-8")
    assert not may_be_off(options, environ, str(project))
    (tmp_path / "shared" / ".git").mkdir()
    assert may_be_off(options, environ, str(project))
