"""`pml demo`: it needs nothing but the gateway, and ends with what to type next."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from pml_gateway.cli.demo import next_steps, pointing, typed_command
from pml_gateway.clients.own import pml_command
from pml_gateway.demo.walkthrough import running_demo
from tests.cli.test_every_command import parsed
from tests.index.test_models import EXTRA
from tests.support.process import environment
from tests.support.waiting import until

DEMO_SECONDS = 100


def test_a_pml_on_the_path_is_typed_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # as pipx and `uv tool` do it
    (tmp_path / "pml").symlink_to(pml_command()[0])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert typed_command() == ["pml"]


def test_a_pml_that_the_shell_would_not_find_is_typed_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert typed_command() == pml_command()
    other = tmp_path / "pml"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    assert typed_command() == pml_command(), "another installation"


def test_the_next_steps_are_commands_and_init_is_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pml").symlink_to(pml_command()[0])
    monkeypatch.setenv("PATH", str(tmp_path))
    commands = [command for _, command in next_steps()]
    assert commands == ["pml init", "pml connect claude-code"]
    for command in commands:
        parsed(command)


def test_clients_are_pointed_at_the_running_demo() -> None:
    assert all("http://127.0.0.1:4711/mcp" in how for _, how in pointing("http://127.0.0.1:4711/mcp"))


@pytest.mark.anyio
@pytest.mark.slow
async def test_a_demo_that_is_stopped_while_it_starts_ends_like_any_command(tmp_path: Path) -> None:
    async def stop() -> None:
        await until(lambda: [*tmp_path.glob("home/logs/*")])
        os.kill(os.getpid(), signal.SIGINT)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop)
        with pytest.raises(KeyboardInterrupt):
            async with running_demo(tmp_path, 0):
                pytest.fail("it started")


@pytest.mark.slow
def test_the_demo_needs_nothing_of_the_extra(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({EXTRA}))\n")
    extra = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "pml_gateway", "demo", "--json"],
        env=environment(tmp_path / "home", extra),
        capture_output=True,
        text=True,
        timeout=DEMO_SECONDS,
        check=True,
    )
    assert json.loads(done.stdout)["catalog_tools"] == 40
    assert "lexical" not in done.stdout
