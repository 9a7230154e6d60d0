from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.clients.discover import client_files, read_named
from pml_gateway.clients.model import System
from pml_gateway.errors import ConfigurationError, SecretError
from pml_gateway.secrets.env_file import parse_env_text, store_variables, stored_variables
from pml_gateway.secrets.references import resolve

from .machine import Machine, imported

TOKEN = "ghp_0123456789abcdefghijABCDEFGHIJ012345"


@pytest.mark.parametrize(
    ("system", "environ", "expected"),
    [
        (
            System.LINUX,
            {},
            {
                "home/.claude.json",
                "home/.config/Claude/claude_desktop_config.json",
                "home/.config/Code/User/mcp.json",
                "home/.config/zed/settings.json",
                "home/.codeium/windsurf/mcp_config.json",
                "home/.gemini/settings.json",
                "home/.codex/config.toml",
                "home/.cursor/mcp.json",
                "project/.mcp.json",
                "project/.vscode/mcp.json",
            },
        ),
        (
            System.LINUX,
            {"XDG_CONFIG_HOME": "xdg", "CLAUDE_CONFIG_DIR": "claude", "CODEX_HOME": "codex"},
            {"claude/.claude.json", "codex/config.toml", "xdg/Code/User/mcp.json", "xdg/zed/settings.json"},
        ),
        (
            System.MACOS,
            {},
            {
                "home/Library/Application Support/Claude/claude_desktop_config.json",
                "home/Library/Application Support/Code/User/mcp.json",
                "home/.config/zed/settings.json",
                "home/.claude.json",
            },
        ),
        (
            System.WINDOWS,
            {"APPDATA": "roaming", "USERPROFILE": "profile"},
            {
                "roaming/Claude/claude_desktop_config.json",
                "roaming/Code/User/mcp.json",
                "roaming/zed/settings.json",
                "profile/.claude.json",
                "profile/.cursor/mcp.json",
                "profile/.codex/config.toml",
            },
        ),
    ],
)
def test_files_are_looked_for_where_each_system_keeps_them(
    tmp_path: Path, system: System, environ: dict[str, str], expected: set[str]
) -> None:
    machine = Machine(tmp_path, system, {name: str(tmp_path / value) for name, value in environ.items()})

    paths = {str(file.path.relative_to(tmp_path)) for file in client_files(machine.surroundings)}

    assert expected <= paths


def test_claude_code_is_read_in_all_three_scopes(machine: Machine) -> None:
    project = str(machine.project)
    machine.write(
        "home/.claude.json",
        {
            "numStartups": 3,
            "mcpServers": {
                "files": {"type": "stdio", "command": "npx", "args": ["-y", "files", "${HOME}/docs"], "env": {}},
                "linear": {"type": "http", "url": "https://linear.test/mcp"},
            },
            "projects": {
                project: {"mcpServers": {"db": {"command": "./db.sh", "env": {"MODE": "${MODE:-dev}"}}}},
                "/elsewhere": {"mcpServers": {"other": {"command": "x"}}},
            },
        },
    )
    machine.write("project/.mcp.json", {"mcpServers": {"team": {"type": "sse", "url": "${BASE}/events"}}})

    plan = machine.plan()

    assert plan.additions == {
        "files": {"command": "npx", "args": ["-y", "files", f"{machine.home}/docs"]},
        "linear": {"url": "https://linear.test/mcp"},
        "db": {"command": "./db.sh", "env": {"MODE": "${env:MODE:-dev}"}, "cwd": project},
        "team": {"transport": "sse", "url": "${env:BASE}/events"},
    }
    assert [item.variable for item in plan.missing] == ["BASE"]
    local = next(file for file in client_files(machine.surroundings) if file.elsewhere)
    assert local.elsewhere == ("/elsewhere",)


def test_every_client_s_own_spelling_is_understood(machine: Machine) -> None:
    machine.write("home/.config/Claude/claude_desktop_config.json", {"mcpServers": {"desk": {"command": "desk"}}})
    machine.write(
        "home/.cursor/mcp.json",
        '{\n  // mine\n  "mcpServers": {\n'
        '    "cur": {"url": "https://cur.test/${env:TENANT}/mcp", "headers": {"X": "1"}},\n  },\n}',
    )
    machine.write(
        "project/.vscode/mcp.json",
        {
            "inputs": [{"id": "perplexity-key", "type": "promptString", "description": "Key of Perplexity"}],
            "servers": {
                "pplx": {
                    "type": "stdio",
                    "command": "npx",
                    "args": ["-y", "pplx", "${workspaceFolder}/src"],
                    "env": {"PPLX_KEY": "${input:perplexity-key}"},
                    "envFile": "${workspaceFolder}/.env",
                }
            },
        },
    )
    machine.write(
        "home/.codeium/windsurf/mcp_config.json", {"mcpServers": {"surf": {"serverUrl": "https://s.test/mcp"}}}
    )
    machine.write(
        "home/.gemini/settings.json",
        {
            "theme": "x",
            "mcpServers": {
                "gem": {"httpUrl": "https://g.test/mcp", "timeout": 30000, "includeTools": ["a"]},
                "old": {"url": "https://old.test/events"},
                "shell": {"command": "run", "args": ["$GEM_DIR"], "trust": True},
            },
        },
    )
    machine.write(
        "home/.codex/config.toml",
        '[mcp_servers.dex]\ncommand = "dex"\nenv_vars = ["DEX_HOME"]\nstartup_timeout_sec = 20\n'
        '[mcp_servers.figma]\nurl = "https://figma.test/mcp"\nbearer_token_env_var = "FIGMA"\nenabled = false\n',
    )
    machine.write(
        "home/.config/zed/settings.json",
        '{"context_servers": {"zed": {"source": "custom", "command": {"path": "zed-run", "args": ["-v"]}},'
        ' "ext": {"source": "extension", "settings": {}}}}',
    )

    plan = machine.plan()

    folder = str(machine.project)
    assert plan.additions == {
        "desk": {"command": "desk"},
        "cur": {"url": "https://cur.test/${env:TENANT}/mcp", "headers": {"X": "1"}},
        "pplx": {
            "command": "npx",
            "args": ["-y", "pplx", f"{folder}/src"],
            "env": {"PPLX_KEY": "${env:PERPLEXITY_KEY}"},
            "env_file": f"{folder}/.env",
        },
        "surf": {"url": "https://s.test/mcp"},
        "gem": {"url": "https://g.test/mcp", "call_timeout": 30.0},
        "old": {"url": "https://old.test/events", "transport": "sse"},
        "shell": {"command": "run", "args": ["${env:GEM_DIR}"]},
        "dex": {"command": "dex", "env": {"DEX_HOME": "${env:DEX_HOME}"}, "connect_timeout": 20.0},
        "figma": {
            "url": "https://figma.test/mcp",
            "headers": {"Authorization": "Bearer ${env:FIGMA}"},
            "enabled": False,
        },
        "zed": {"command": "zed-run", "args": ["-v"]},
    }
    missing = {item.variable: item.about for item in plan.missing}
    assert missing.keys() == {"TENANT", "PERPLEXITY_KEY", "GEM_DIR", "DEX_HOME", "FIGMA"}
    assert missing["PERPLEXITY_KEY"] == "Key of Perplexity"
    assert "extension" in imported(plan, "ext").problems[0]
    assert "includeTools" in imported(plan, "gem").notes[0]


def test_one_server_in_several_clients_is_one_server(machine: Machine) -> None:
    github = {"command": "npx", "args": ["-y", "github"], "env": {"GITHUB_TOKEN": TOKEN}}
    machine.write("home/.claude.json", {"mcpServers": {"github": github, "notes": {"command": "notes"}}})
    machine.write(
        "home/.cursor/mcp.json",
        {
            "mcpServers": {
                "gh": github,
                "github": {"command": "gh-mcp"},
                "pml": {"command": "/x/pml", "args": ["serve"]},
            }
        },
    )

    plan = machine.plan({"notes-mcp": {"command": "notes"}})

    assert [(server.entry_name, server.outcome, server.name) for server in plan.servers] == [
        ("github", "added", "github"),
        ("notes", "present", "notes-mcp"),
        ("gh", "merged", "github"),
        ("github", "added", "github-cursor"),
        ("pml", "gateway", ""),
    ]
    assert "another server, with another definition, is 'github'" in plan.servers[3].notes[0]
    assert plan.values == {"GITHUB_TOKEN": TOKEN}


def test_two_accounts_of_one_file_stay_two_servers(machine: Machine) -> None:
    entries = {
        "work": {"command": "gh", "env": {"GITHUB_TOKEN": "one-secret"}},
        "home": {"command": "gh", "env": {"GITHUB_TOKEN": "two-secret"}},
        "none": {"command": "gh"},
    }
    machine.write("home/.cursor/mcp.json", {"mcpServers": entries})

    plan = machine.plan()

    assert list(plan.additions) == ["work", "home", "none"]
    assert plan.values == {"GITHUB_TOKEN": "one-secret", "HOME_GITHUB_TOKEN": "two-secret"}


OTHER_KEYS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {"command": "gh", "env": {"GITHUB_TOKEN": "one-secret", "LOG": "debug"}},
        {"command": "gh", "env": {"GITHUB_TOKEN": "two-secret", "LOG": "debug"}},
        "env.GITHUB_TOKEN",
    ),
    (
        {"command": "gh", "args": ["--api-key", "one-secret"]},
        {"command": "gh", "args": ["--api-key", "two-secret"]},
        "args",
    ),
    (
        {"url": "https://h.test/mcp?api_key=one-secret"},
        {"url": "https://h.test/mcp?api_key=two-secret"},
        "url",
    ),
    (
        {"url": "https://h.test/mcp", "headers": {"Authorization": "Bearer one-secret"}},
        {"url": "https://h.test/mcp", "headers": {"Authorization": "Bearer two-secret"}},
        "headers.Authorization",
    ),
    (
        {"command": "gh", "env": {"A_TOKEN": "one-secret", "B_TOKEN": "b-secret"}},
        {"command": "gh", "env": {"A_TOKEN": "two-secret"}},
        "env.A_TOKEN",
    ),
]


@pytest.mark.parametrize(("stored", "written", "key"), OTHER_KEYS)
@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "lost"])
def test_a_server_of_the_same_name_with_another_key_is_the_same_server(
    machine: Machine, stored: dict[str, Any], written: dict[str, Any], key: str, is_stored: bool
) -> None:
    machine.write("home/.cursor/mcp.json", {"mcpServers": {"one": stored}})
    first = machine.plan()
    if is_stored:
        store_variables(machine.paths.secrets_file, first.values)
    machine.write("home/.cursor/mcp.json", {"mcpServers": {"one": written}})

    plan = machine.plan(first.additions)

    assert plan.additions == {}
    assert imported(plan, "one").outcome == "present"
    (note,) = imported(plan, "one").notes
    assert note.startswith(f"has another value for {key} than the gateway, which keeps its own")
    assert "pml secrets set" in note
    assert "secret" not in note.replace("secrets", "")


@pytest.mark.parametrize(
    "written",
    [
        {"command": "gh", "env": {"GITHUB_TOKEN": "two-secret", "LOG": "info"}},
        {"command": "gh", "env": {"GITHUB_TOKEN": "two-secret", "OTHER_TOKEN": "x-secret"}},
        {"command": "hub", "env": {"GITHUB_TOKEN": "two-secret"}},
        {"command": "gh", "args": ["--all"], "env": {"GITHUB_TOKEN": "two-secret"}},
    ],
)
def test_a_server_of_the_same_name_that_differs_in_more_than_keys_is_another(
    machine: Machine, written: dict[str, Any]
) -> None:
    entry = {"command": "gh", "env": {"GITHUB_TOKEN": "one-secret", "LOG": "debug"}}
    machine.write("home/.cursor/mcp.json", {"mcpServers": {"one": entry}})
    first = machine.plan()
    store_variables(machine.paths.secrets_file, first.values)
    machine.write("home/.cursor/mcp.json", {"mcpServers": {"one": written}})

    assert list(machine.plan(first.additions).additions) == ["one-cursor"]


def test_a_server_of_another_name_with_another_key_is_another_account(machine: Machine) -> None:
    machine.write("home/.cursor/mcp.json", {"mcpServers": {"work": OTHER_KEYS[0][0]}})
    first = machine.plan()
    store_variables(machine.paths.secrets_file, first.values)
    machine.write("home/.cursor/mcp.json", {"mcpServers": {"home": OTHER_KEYS[0][1]}})

    assert list(machine.plan(first.additions).additions) == ["home"]


def test_every_place_a_credential_can_stand_is_found(machine: Machine) -> None:
    machine.environ["SLACK_TOKEN"] = "xoxb-same-value"
    machine.environ["OTHER_TOKEN"] = "something else"
    entries = {
        "env": {"command": "a", "env": {"SLACK_TOKEN": "xoxb-same-value", "OTHER_TOKEN": "mine", "LOG": "debug"}},
        "arg": {
            "command": "a",
            "args": ["--api-key=sekret-1", "--token", "sekret-2", "-e", "PASSWORD=sekret-3", TOKEN],
        },
        "header": {
            "url": "https://h.test/mcp",
            "headers": {"Authorization": "Bearer sekret-4", "X-API-Key": "sekret-5"},
        },
        "url": {"url": "https://me:sekret-6@u.test/mcp?api_key=sekret-7&page=2"},
        "path": {"url": "https://p.test/mcp/a1b2c3d4e5f6a7b8c9d0/sse"},
        "db": {"command": "a", "env": {"DATABASE": "postgres://u:sekret-8@db.test/x"}},
        "default": {"command": "a", "env": {"K": "x"}, "args": ["-H", "X-Auth-Token: sekret-9"]},
        "todo": {"command": "a", "env": {"A_TOKEN": "<your token>", "B_TOKEN": ""}},
    }
    machine.write("home/.cursor/mcp.json", {"mcpServers": entries})

    plan = machine.plan()

    assert plan.values == {
        "SLACK_TOKEN": "xoxb-same-value",
        "ENV_OTHER_TOKEN": "mine",
        "ARG_API_KEY": "sekret-1",
        "ARG_TOKEN": "sekret-2",
        "ARG_PASSWORD": "sekret-3",
        "ARG_KEY": TOKEN,
        "HEADER_TOKEN": "sekret-4",
        "HEADER_API_KEY": "sekret-5",
        "URL_PASSWORD": "sekret-6",
        "URL_API_KEY": "sekret-7",
        "PATH_KEY": "a1b2c3d4e5f6a7b8c9d0",
        "DB_DATABASE_PASSWORD": "sekret-8",
        "DEFAULT_AUTH_TOKEN": "sekret-9",
    }
    added = plan.additions
    assert added["env"]["env"] == {
        "SLACK_TOKEN": "${env:SLACK_TOKEN}",
        "OTHER_TOKEN": "${env:ENV_OTHER_TOKEN}",
        "LOG": "debug",
    }
    assert added["arg"]["args"][4] == "PASSWORD=${env:ARG_PASSWORD}"
    assert added["url"]["url"] == "https://me:${env:URL_PASSWORD}@u.test/mcp?api_key=${env:URL_API_KEY}&page=2"
    assert added["path"]["url"] == "https://p.test/mcp/${env:PATH_KEY}/sse"
    assert {item.variable for item in plan.missing} == {"A_TOKEN", "B_TOKEN"}
    assert not [secret for secret in plan.values.values() if secret in repr(plan) or secret in str(added)]
    # With the values stored, everything says what it said before.
    store_variables(machine.paths.secrets_file, plan.values)
    assert resolve(added["header"]["headers"]["Authorization"], machine.environ) == "Bearer sekret-4"
    assert resolve(added["db"]["env"]["DATABASE"], machine.environ) == entries["db"]["env"]["DATABASE"]  # type: ignore[index]


def test_commands_that_are_not_there_are_named_with_the_likely_one(machine: Machine, tmp_path: Path) -> None:
    runner = machine.write("bin/npx", "#!/bin/sh\n")
    runner.chmod(0o755)
    machine.environ["PATH"] = str(tmp_path / "bin")
    machine.write("home/.claude.json", {"mcpServers": {"typo": {"command": "npxx"}, "gone": {"command": "/no/such"}}})

    plan = machine.plan()

    assert imported(plan, "typo").problems == [
        "command npxx is not found; did you mean npx? set servers.typo.command: npx"
    ]
    assert "/no/such is not found" in imported(plan, "gone").problems[0]
    assert set(plan.additions) == {"typo", "gone"}


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("text", "should be the settings of a server"),
        ({"args": ["x"]}, "names neither a command nor a url"),
        ({"command": "x", "url": "https://x.test"}, "either `command` (stdio) or `url`"),
        ({"url": "ftp://secret-host"}, "`url` must start with http"),
        ({"command": "x", "type": "carrier-pigeon"}, "unknown transport"),
        ({"command": "x", "args": [["nested"]]}, "args[0]: a list should be a text"),
    ],
)
def test_entries_that_mean_nothing_are_skipped_with_a_reason(machine: Machine, entry: object, problem: str) -> None:
    machine.write("home/.cursor/mcp.json", {"mcpServers": {"bad": entry, "good": {"command": "good"}}})

    plan = machine.plan()

    assert list(plan.additions) == ["good"]
    assert problem in imported(plan, "bad").problems[0]


def test_variables_of_the_client_alone_are_problems(machine: Machine) -> None:
    machine.write("home/.cursor/mcp.json", {"mcpServers": {"x": {"command": "x", "args": ["${lineNumber}"]}}})

    assert "means something in the client only" in imported(machine.plan(), "x").problems[0]


def test_the_folder_of_the_client_stays_a_reference_where_every_project_has_its_own(machine: Machine) -> None:
    entries = {
        "args": {"command": "sh", "args": ["${workspaceFolder}", "${workspaceRoot}/a", "${cwd}"]},
        "cwd": {"command": "sh", "args": ["./x"], "cwd": "${workspaceFolder}"},
    }
    machine.write("home/.cursor/mcp.json", {"mcpServers": entries})

    plan = machine.plan()

    assert plan.additions["args"]["args"] == ["${workspaceFolder}", "${workspaceFolder}/a", "${cwd}"]
    assert plan.additions["cwd"]["cwd"] == "${workspaceFolder}"
    assert not imported(plan, "args").problems
    assert "the folder that the client starts the gateway in" in imported(plan, "args").notes[0]


def test_a_server_that_keeps_something_for_one_client_is_told_to_be_started_for_each(machine: Machine) -> None:
    entries = {
        "web": {"command": "npx", "args": ["-y", "@playwright/mcp"]},
        "files": {"command": "npx", "args": ["-y", "files"]},
    }
    machine.write("home/.cursor/mcp.json", {"mcpServers": entries})

    plan = machine.plan()

    [note] = imported(plan, "web").notes
    assert "keeps a browser" in note
    assert "servers.web.sessions: shared" in note
    assert not imported(plan, "files").notes
    assert "sessions" not in plan.additions["web"]


def test_what_a_client_does_not_fill_in_is_no_reference_here_either(machine: Machine) -> None:
    entry = {"command": "sh", "args": ["${cwd}", "${workspaceFolder}"]}
    machine.write("home/.config/Claude/claude_desktop_config.json", {"mcpServers": {"x": entry}})

    assert machine.plan().additions["x"]["args"] == ["$${cwd}", "$${workspaceFolder}"]


def test_a_named_file_is_recognised_by_what_it_says(machine: Machine) -> None:
    zed = machine.write("copy/zed.json", {"context_servers": {"a": {"command": {"path": "x"}}}})
    codex = machine.write("copy/mine.toml", "[mcp_servers.a]\ncommand = 'x'\n")
    plain = machine.write("copy/plain.json", {"mcpServers": {"a": {"command": "x"}}})
    code = machine.write("copy/code.json", {"servers": {"a": {"command": "x"}}})

    names = [read_named(path, machine.surroundings)[0].client.name for path in (zed, codex, plain, code)]

    assert names == ["zed", "codex", "claude-code", "vscode"]
    with pytest.raises(ConfigurationError, match="names no servers"):
        read_named(machine.write("copy/none.json", "{}"), machine.surroundings)


@given(st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True), st.text(min_size=1), max_size=5))
def test_stored_values_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, values: dict[str, str]) -> None:
    path = tmp_path_factory.mktemp("home") / "secrets.env"
    values = {name: value.replace("\x00", "") or "x" for name, value in values.items() if name != "LATER"}

    store_variables(path, values)
    store_variables(path, values | {"LATER": "$HOME #x"})

    text = path.read_text()
    assert parse_env_text(text) == values | {"LATER": "$HOME #x"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(text.splitlines()) >= len(values)


def test_a_value_that_is_stored_is_not_taken_for_another_of_the_same_name(machine: Machine) -> None:
    path = machine.paths.secrets_file
    store_variables(path, {"A_TOKEN": "of one server"})
    before = path.read_text()

    with pytest.raises(ConfigurationError, match="has another value of A_TOKEN by now") as refused:
        store_variables(path, {"B": "x", "A_TOKEN": "of another"})

    assert path.read_text() == before
    assert "of another" not in str(refused.value)


def test_a_stored_value_wins_over_the_environment(machine: Machine) -> None:
    store_variables(machine.paths.secrets_file, {"A": "stored", "B": "stored"})

    environ = machine.environ | {"A": "of another project", "B": ""}

    assert resolve("${env:A} ${env:B} ${env:C:-none}", environ) == "stored stored none"
    assert stored_variables({}) == {}
    with pytest.raises(SecretError, match="C is not set"):
        resolve("${env:C}", environ)
