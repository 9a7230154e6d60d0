"""What `pml connect` offers beside the connection: tools for calls by their effect, and lines for models."""

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
from pml_gateway.clients.instructions import BEGIN, END
from pml_gateway.docs import agents_lines
from tests.support.command_line import home_of_a_person, pml

BY_EFFECT = (
    "search_tools,tool_schema,call_tool_read,call_tool_write,call_tool_destructive,"
    "call_batch,execute_workflow,read_result"
)
RULES = "# Rules\n\nBe kind.\n"


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


def test_on_a_terminal_both_are_shown_and_are_made_only_on_yes(home: Path) -> None:
    rules = Path("CLAUDE.md")
    rules.write_text(RULES)

    refused = on_terminal("connect", "claude-code", answers="y\n\n\n")

    assert refused.count("[y/N]") == 2
    assert "PML_GATEWAY__META_TOOLS" in refused
    assert f"+{BEGIN}" in refused
    assert "env" not in entry(home)
    assert rules.read_text() == RULES

    told = on_terminal("connect", "claude-code", answers="y\ny\n")

    assert entry(home)["env"] == {"PML_GATEWAY__META_TOOLS": BY_EFFECT}
    assert '"mcp__pml__call_tool_read" in permissions.allow of ~/.claude/settings.json' in " ".join(told.split())
    assert rules.read_text() == f"{RULES}\n{BEGIN}\n{agents_lines()}{END}\n"
    assert "[y/N]" not in on_terminal("connect", "claude-code", answers="")

    pml("disconnect", "claude-code", "--yes")

    assert rules.read_text() == RULES
    assert not (home / ".claude.json").exists()


def test_nothing_is_offered_where_the_connection_is_refused(home: Path) -> None:
    Path("CLAUDE.md").write_text(RULES)
    told = on_terminal("connect", "claude-code", answers="n\ny\ny\n")
    assert "nothing was written" in told
    assert not (home / ".claude.json").exists()
    assert Path("CLAUDE.md").read_text() == RULES


def test_a_script_gets_only_what_its_flags_name(home: Path) -> None:
    Path("AGENTS.md").write_text(RULES)
    pml("connect", "codex", "--yes")
    config = home / ".codex" / "config.toml"
    assert "META_TOOLS" not in config.read_text()
    assert Path("AGENTS.md").read_text() == RULES

    preview = pml("connect", "codex", "--calls-by-effect", "--agents-md", "--dry-run").stdout
    assert "META_TOOLS" not in config.read_text()
    assert Path("AGENTS.md").read_text() == RULES
    assert "call_tool_read" in preview and f"+{BEGIN}" in preview

    done = json.loads(pml("connect", "codex", "--calls-by-effect", "--agents-md", "--yes", "--json").stdout)
    assert done["instructions"]["written"]
    assert tomllib.loads(config.read_text())["mcp_servers"]["pml"]["env"] == {"PML_GATEWAY__META_TOOLS": BY_EFFECT}
    assert BEGIN in Path("AGENTS.md").read_text()

    pml("connect", "codex", "--yes")
    assert "META_TOOLS" in config.read_text()
    pml("connect", "codex", "--call-tool", "--yes")
    assert "META_TOOLS" not in config.read_text()

    undone = json.loads(pml("disconnect", "codex", "--yes", "--json").stdout)
    assert [each["written"] for each in undone["instructions"]] == [True]
    assert Path("AGENTS.md").read_text() == RULES
    assert not config.exists()


def test_without_a_terminal_the_lines_need_a_yes_as_well(home: Path) -> None:
    Path("AGENTS.md").write_text(RULES)
    pml("connect", "codex", "--yes")
    told = pml("connect", "codex", "--agents-md", code=ExitCode.USAGE)
    assert f"+{BEGIN}" in told.stdout
    assert "--yes" in told.stderr
    assert Path("AGENTS.md").read_text() == RULES


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


def test_lines_stay_for_a_client_that_still_needs_them(home: Path) -> None:
    Path("AGENTS.md").write_text(RULES)
    for client in ("codex", "zed"):
        pml("connect", client, "--agents-md", "--yes")
    assert Path("AGENTS.md").read_text().count(BEGIN) == 1

    assert "stay for zed" in pml("disconnect", "codex", "--yes").stderr
    assert BEGIN in Path("AGENTS.md").read_text()
    pml("disconnect", "zed", "--yes")
    assert Path("AGENTS.md").read_text() == RULES


def test_lines_go_from_every_project_once_the_client_is_connected_nowhere(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("AGENTS.md").write_text(RULES)
    here = Path("AGENTS.md").resolve()
    pml("connect", "codex", "--agents-md", "--yes")
    pml("connect", "codex", "--scope", "project", "--yes")
    pml("disconnect", "codex", "--scope", "project", "--yes")
    assert BEGIN in here.read_text()

    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert f"-{BEGIN}" in pml("disconnect", "codex", "--dry-run").stdout
    assert BEGIN in here.read_text()
    pml("disconnect", "codex", "--yes")
    assert here.read_text() == RULES


def test_damaged_lines_are_named_and_do_not_keep_the_client_connected(home: Path) -> None:
    rules = Path("AGENTS.md")
    rules.write_text(RULES)
    pml("connect", "codex", "--agents-md", "--yes")
    damaged = rules.read_text().replace(END, "")
    rules.write_text(damaged)

    assert "line 5: begin" in pml("connect", "codex", "--agents-md", "--yes", code=ExitCode.CONFIGURATION).stderr
    told = pml("disconnect", "codex", "--yes", code=ExitCode.CONFIGURATION)

    assert "line 5: begin" in told.stderr
    assert not (home / ".codex" / "config.toml").exists()
    assert rules.read_text() == damaged

    rules.write_text(damaged + END + "\n")
    pml("disconnect", "codex", "--yes")
    assert rules.read_text().rstrip() == RULES.rstrip()


def test_a_file_that_was_deleted_since_needs_nothing(home: Path) -> None:
    Path("AGENTS.md").write_text(RULES)
    pml("connect", "codex", "--agents-md", "--yes")
    Path("AGENTS.md").unlink()
    pml("disconnect", "codex", "--yes")
    assert json.loads(pml("disconnect", "codex", "--yes", "--json").stdout)["instructions"] == []


@pytest.mark.parametrize(
    ("client", "told"),
    [("codex", "there is no AGENTS.md in"), ("gemini-cli", "reads no AGENTS.md by itself")],
)
def test_lines_without_a_file_that_the_client_reads_are_refused_before_anything_is_written(
    home: Path, client: str, told: str
) -> None:
    Path("CLAUDE.md").write_text(RULES)
    assert told in pml("connect", client, "--agents-md", "--yes", code=ExitCode.CONFIGURATION).stderr
    assert not (home / ".codex").exists() and not (home / ".gemini").exists()
