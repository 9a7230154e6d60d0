"""The offer of `pml connect` after the connection: tools for calls by their effect."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.cli.output import ExitCode
from tests.support.command_line import home_of_a_person, pml

BY_EFFECT = (
    "search_tools,tool_schema,call_tool_read,call_tool_write,call_tool_destructive,"
    "call_batch,execute_workflow,read_result"
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = home_of_a_person(tmp_path, monkeypatch)
    configure(home)
    return home


def configure(home: Path, **settings: Any) -> None:
    (home / ".pml").mkdir(exist_ok=True)
    servers = {"files": {"command": "no-such-command-of-pml"}}
    (home / ".pml" / "config.yaml").write_text(json.dumps({"servers": servers, **settings}))


def entry(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / ".claude.json").read_text())["mcpServers"]["pml"]
    return found


def on_terminal(*words: str, answers: str) -> str:
    """Run a command with a terminal as its input, on which these answers are typed ahead; return what it printed."""
    keyboard, terminal = pty.openpty()
    try:
        os.write(keyboard, answers.encode())
        done = subprocess.run(
            [sys.executable, "-m", "pml_gateway", *words],
            stdin=terminal,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PML_LOCAL__ATTACH": "false"},
        )
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_on_a_terminal_it_is_shown_and_made_only_on_yes(home: Path) -> None:
    refused = on_terminal("connect", "claude-code", answers="y\n\n")

    assert refused.count("[y/N]") == 1
    assert "PML_GATEWAY__META_TOOLS" in refused
    assert "env" not in entry(home)

    told = on_terminal("connect", "claude-code", answers="y\n")

    assert entry(home)["env"] == {"PML_GATEWAY__META_TOOLS": BY_EFFECT}
    assert '"mcp__pml__call_tool_read" in permissions.allow of ~/.claude/settings.json' in " ".join(told.split())
    assert "[y/N]" not in on_terminal("connect", "claude-code", answers="")

    pml("disconnect", "claude-code", "--yes")

    assert not (home / ".claude.json").exists()


def test_nothing_is_offered_where_the_connection_is_refused(home: Path) -> None:
    told = on_terminal("connect", "claude-code", answers="n\ny\n")
    assert "nothing was written" in told
    assert not (home / ".claude.json").exists()


def test_a_script_gets_only_what_its_flags_name(home: Path) -> None:
    pml("connect", "codex", "--yes")
    config = home / ".codex" / "config.toml"
    assert "META_TOOLS" not in config.read_text()

    preview = pml("connect", "codex", "--calls-by-effect", "--dry-run").stdout
    assert "META_TOOLS" not in config.read_text()
    assert "call_tool_read" in preview

    pml("connect", "codex", "--calls-by-effect", "--yes")
    assert tomllib.loads(config.read_text())["mcp_servers"]["pml"]["env"] == {"PML_GATEWAY__META_TOOLS": BY_EFFECT}

    pml("connect", "codex", "--yes")
    assert "META_TOOLS" in config.read_text()
    pml("connect", "codex", "--call-tool", "--yes")
    assert "META_TOOLS" not in config.read_text()

    pml("disconnect", "codex", "--yes")
    assert not config.exists()


def test_variables_that_somebody_gave_the_entry_stay_and_are_masked(home: Path) -> None:
    secret = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
    pml("connect", "claude-code", "--yes")
    file = home / ".claude.json"
    found = json.loads(file.read_text())
    found["mcpServers"]["pml"]["env"] = {"GITHUB_TOKEN": secret, "PML_GATEWAY__INTENT": "triage"}
    file.write_text(json.dumps(found))

    told = pml("connect", "claude-code", "--calls-by-effect", "--yes")

    assert secret not in told.output
    assert entry(home)["env"] == {
        "GITHUB_TOKEN": secret,
        "PML_GATEWAY__INTENT": "triage",
        "PML_GATEWAY__META_TOOLS": BY_EFFECT,
    }


@pytest.mark.parametrize(
    ("gateway", "reason"),
    [
        ({"meta_tools": ["search_tools", "call_tool_read"]}, "names such tools already"),
        ({"meta_tools": ["search_tools"]}, "does not name call_tool"),
        ({"style": "namespaces"}, "namespaces"),
        ({"tools_exposure": "full_proxy"}, "full_proxy"),
    ],
)
def test_tools_by_effect_that_no_client_would_get_are_refused_with_the_reason(
    home: Path, gateway: dict[str, Any], reason: str
) -> None:
    configure(home, gateway=gateway)
    assert reason in pml("connect", "claude-code", "--calls-by-effect", "--yes", code=ExitCode.USAGE).stderr
    assert not (home / ".claude.json").exists()


def test_over_http_the_setting_of_all_clients_is_named(home: Path) -> None:
    told = pml("connect", "claude-code", "--http", "--calls-by-effect", "--yes", code=ExitCode.USAGE)
    assert "gateway.meta_tools" in told.stderr
