"""`pml add`, `remove`, `enable`, `disable`, `rename`: the file as a person would have edited it, and nothing else."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pml_gateway.cli.app import app
from pml_gateway.config.document import parse
from tests.support.command_line import home_of

TOKEN = "ghp_0123456789abcdefghijABCDEFGHIJ012345"

CONFIG = """\
# mine
servers:
  # the notes
  notes: {command: python3, args: [-m, notes]}   # at work
  calc:
    command: python3
clients:
  ci:
    key: ${env:CI_KEY}
    allow: ["notes__*", "calc:add", 'notes:read']
    deny:
      - notes__delete_all   # never
      - "notes:drop"
gateway:
  blacklisted_tools: [notes__wipe]
workflows:
  w:
    description: Reads.
    steps:
      - tool: notes__read
        arguments: {}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path) -> Any:
    with home_of(tmp_path, {}) as home:
        (home / "config.yaml").write_text(CONFIG)
        yield home


def pml(*arguments: str, code: int = 0, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(app, arguments, input=stdin)
    assert result.exit_code == code, result.output
    assert TOKEN not in result.output
    return result


def pml_json(*arguments: str, code: int = 0, stdin: str | None = None) -> Any:
    command, *rest = arguments
    words = (command, *rest, "--json") if command == "config" else (command, "--json", *rest)
    return json.loads(pml(*words, code=code, stdin=stdin).stdout)


def config(home: Path) -> str:
    return (home / "config.yaml").read_text()


def servers(home: Path) -> dict[str, Any]:
    """The servers as they stand in the file."""
    found: dict[str, Any] = parse(config(home), "user", home).values["servers"]
    return found


def test_a_command_behind_two_dashes_is_a_server_with_its_own_options(home: Path) -> None:
    done = pml("add", "github", "-e", f"GITHUB_TOKEN={TOKEN}", "--no-check", "--yes", "--", "npx", "-y", "--yes", "gh")

    assert config(home).startswith(CONFIG[: CONFIG.index("clients:")])
    assert config(home).endswith(CONFIG[CONFIG.index("clients:") :])
    assert servers(home)["github"] == {
        "command": "npx",
        "args": ["-y", "--yes", "gh"],
        "env": {"GITHUB_TOKEN": "${env:GITHUB_TOKEN}"},
    }
    assert TOKEN in (home / "secrets.env").read_text()
    assert "the text before is in" in done.stderr


def test_a_url_is_a_server_with_its_headers_and_login(home: Path) -> None:
    pml("add", "lin", "https://l.test/mcp", "--header", f"Authorization: Bearer {TOKEN}", "--no-check", "--yes")
    pml("add", "acme", "https://a.test/mcp", "--client-id", "me", "--timeout", "9", "--per-client", "--disabled", "-y")
    pml("add", "codex", "https://c.test/sse", "-t", "http", "--bearer-token-env-var", "C_KEY", "--no-check", "-y")

    found = servers(home)
    assert found["lin"]["headers"] == {"Authorization": "Bearer ${env:LIN_TOKEN}"}
    assert (found["acme"]["auth"]["client_id"], found["acme"]["call_timeout"]) == ("me", 9.0)
    assert (found["acme"]["sessions"], found["acme"]["enabled"]) == ("per_client", False)
    assert found["codex"]["headers"] == {"Authorization": "Bearer ${env:C_KEY}"}
    assert found["codex"]["transport"] == "http"


def test_what_is_piped_in_or_given_as_json_is_read(home: Path) -> None:
    block = json.dumps(
        {"mcpServers": {"a": {"command": "a", "env": {"A_TOKEN": TOKEN}}, "b": {"url": "https://b.test"}}}
    )
    done = pml_json("add", "--no-check", "--yes", stdin=f"Paste this:\n```json\n{block}\n```\n")
    pml("add", "c", '{"command": "c", "args": ["${HOME}/x"]}', "--env", "X=1", "--no-check", "--yes")
    pml("add", '{"name": "d", "command": "d"}', "--no-check", "--yes")
    pml("add", "e", "--no-check", "--yes", stdin='[mcp_servers.x]\ncommand = "e"\n')

    assert [each["outcome"] for each in done["servers"]] == ["added", "added"]
    assert done["written"]
    assert [each["variable"] for each in done["secrets"]] == ["A_TOKEN"]
    found = servers(home)
    assert list(found) == ["notes", "calc", "a", "b", "c", "d", "e"]
    assert found["c"] == {"command": "c", "args": [f"{home.parent}/x"], "env": {"X": "1"}}


def test_a_url_without_a_name_or_with_more_behind_it_is_told_how_it_is_written(home: Path) -> None:
    assert "the server has no name" in pml("add", "https://a.test/mcp", "--yes", code=2, stdin="").stderr
    assert "more behind the URL: 'x'" in pml("add", "a", "https://a.test/mcp", "x", "--yes", code=2).stderr


def test_a_server_that_is_replaced_is_said_to_be(home: Path) -> None:
    assert "replaced" in pml("add", "calc", "--replace", "--no-check", "--yes", "--", "python4").stdout
    assert "replaced" not in pml("add", "other", "--replace", "--no-check", "--yes", "--", "python4").stdout


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("claude mcp add one -- npx -y server", "claude mcp add"),
        ("$ npx -y @openai/codex mcp add one -- npx -y server", "codex mcp add"),
        ("/usr/bin/gemini mcp add one npx", "gemini mcp add"),
        ('claude mcp add-json one \'{"command": "npx"}\'', "claude mcp add-json"),
        ('{"mcpServers": {"one": {"command": "npx"}}}', "pasted"),
        ('"one": {"command": "npx"}', "pasted"),
        ('{"servers": {"one": {"command": "npx"}}}', "vscode"),
    ],
)
def test_what_is_pasted_is_said_to_come_from_where_it_does(home: Path, text: str, source: str) -> None:
    shown = pml("add", "--dry-run", stdin=text).stdout
    assert any(line.startswith("one") and f" {source} " in line for line in shown.splitlines())


def test_a_server_is_replaced_whatever_differs_and_however_its_name_is_written(home: Path) -> None:
    pml("add", "calc", "--replace", "--timeout", "9", "--no-check", "--yes", "--", "python3")
    assert servers(home)["calc"] == {"command": "python3", "call_timeout": 9.0}

    pml("add", "a-b", "--no-check", "--yes", "--", "one")
    assert "there is a server 'a-b' already" in pml("add", "a#b", "--no-check", "--yes", "--", "two", code=2).stderr
    pml("add", "a#b", "--replace", "--no-check", "--yes", "--", "two")
    assert servers(home)["a-b"] == {"command": "two"}

    pml("add", "a-b", "--replace", "-t", "nothing", "--no-check", "--yes", "--", "three", code=1)
    assert servers(home)["a-b"] == {"command": "two"}


def test_each_server_is_changed_in_the_section_that_has_it(home: Path) -> None:
    (home / "config.yaml").write_text(
        "servers:\n  a: {command: a}\nmcpServers:\n  b: {command: b}\n  c: {command: c}\n"
    )

    pml("disable", "a", "b", "--yes")
    pml("rename", "c", "d", "--yes")
    pml("remove", "a", "--yes")
    assert config(home).partition("mcpServers:")[2] == ("\n  b: {command: b, enabled: false}\n  d: {command: c}\n")

    pml("remove", "b", "d", "--yes")
    assert parse(config(home), "user", home).values == {"servers": None, "mcpServers": None}


def test_what_somebody_else_adds_meanwhile_is_not_written_over(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow_preview(diff: str) -> None:
        with monkeypatch.context() as context:
            context.setattr("pml_gateway.cli.servers.print_diff", lambda _diff: None)
            pml("add", "new", "--no-check", "--yes", "--", "theirs")

    monkeypatch.setattr("pml_gateway.cli.servers.print_diff", slow_preview)

    done = pml("add", "new", "--no-check", "--yes", "--", "mine", code=78)

    assert "another program has added new just now" in done.stderr
    assert servers(home)["new"] == {"command": "theirs"}


def test_what_a_new_name_opens_is_said_before_it_is_asked_for(home: Path) -> None:
    (home / "config.yaml").write_text(CONFIG.replace('"calc:add"', '"memo*"'))

    shown = pml("rename", "notes", "memo", "--yes").output
    assert "calls to notes__... now fail" in shown

    warning = shown.index("clients.ci.allow: 'memo*' gives tools of this server under its new name")
    assert warning < shown.index("+  memo:") < shown.index("wrote ")


def test_a_name_in_use_is_refused_with_the_remedy(home: Path) -> None:
    assert "--replace" in pml("add", "calc", "--yes", "--", "other", code=2).stderr
    assert config(home) == CONFIG
    assert pml_json("add", "calc", "--yes", "--", "python3")["changed"] is False

    pml("add", "calc", "--replace", "--no-check", "--yes", "--", "other")

    assert servers(home)["calc"] == {"command": "other"}
    assert config(home).replace("command: other", "command: python3") == CONFIG


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "x", "npx", "-y", "foo"), "pml add x -- npx"),
        (("add", "x", "--env", "SECRET", "--", "y"), "names no value"),
        (("add", "x", "--"), "pml add x -- COMMAND"),
        (("add", "x", "https://x.test", "--", "y"), "not clear"),
        (("add", "x", "{}"), "no server"),
        (("remove", "calk"), "did you mean calc"),
        (("enable", "calk"), "did you mean calc"),
        (("disable", "nothing"), "known are notes, calc"),
        (("rename", "calk", "x"), "did you mean calc"),
        (("rename", "calc", "notes"), "pml remove notes"),
        (("rename", "calc", "a:b"), "'a-b'"),
        (("rename", "calc", "workflows"), "workflows have the name"),
        (("add", "own", "--", "pml", "serve"), "this gateway itself"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(
    home: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert message in pml(*arguments, code=2).stderr
    assert config(home) == CONFIG


@pytest.mark.slow
def test_nothing_is_written_where_nobody_can_be_asked(home: Path) -> None:
    for arguments in (("remove", "calc"), ("disable", "calc"), ("rename", "calc", "sums")):
        assert "--yes" in pml(*arguments, code=2).stderr
        assert "@@" in pml(*arguments, "--dry-run").stdout
        assert pml_json(*arguments, "--dry-run")["written"] is False
    assert "--yes" in pml("add", "x", "--", "y", code=2).stderr
    assert config(home) == CONFIG


def test_a_server_goes_with_its_lines_and_what_still_names_it_is_said(home: Path) -> None:
    done = pml("remove", "notes", "--yes")

    assert config(home) == CONFIG.replace("  notes: {command: python3, args: [-m, notes]}   # at work\n", "")
    assert "clients.ci.deny[0]" in done.stderr
    assert "workflows.w.steps[0].tool" in done.stderr


def test_a_server_is_switched_off_and_on(home: Path) -> None:
    pml("disable", "calc", "notes", "--yes")
    assert not any(each["enabled"] for each in servers(home).values())
    assert "disabled already" in pml("disable", "calc", "--yes").stderr

    pml("enable", "calc", "notes", "--yes")

    assert config(home) == CONFIG
    assert "enabled already" in pml("enable", "calc", "--yes").stderr


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{command: a, enabled: false}", "{command: a}"),
        ("{disabled: true, command: a}", "{command: a}"),
        ("{command: a, enabled: false}  # slow", "{command: a}  # slow"),
        ("\n    command: a\n    # slow\n    enabled: false", "\n    command: a\n    # slow\n    enabled: true"),
        ("\n    command: a\n    enabled: false  # slow", "\n    command: a\n    enabled: true   # slow"),
        ("\n    <<: {command: a, enabled: false}", "\n    <<: {command: a, enabled: false}\n    enabled: true"),
    ],
)
def test_a_server_that_is_enabled_again_stands_there_as_if_it_never_was_disabled(
    home: Path, before: str, after: str
) -> None:
    (home / "config.yaml").write_text(f"servers:\n  a: {before}\nlog: {{level: info}}\n")
    pml("enable", "a", "--yes")
    assert config(home) == f"servers:\n  a: {after}\nlog: {{level: info}}\n"


def test_what_else_is_said_of_tools_stays_when_one_is_enabled(home: Path) -> None:
    tools = "{erase: {effect: destructive}, look: {enabled: false}}"
    (home / "config.yaml").write_text(f"servers:\n  a: {{command: a, tools: {tools}}}\n")
    pml("enable", "a:look", "a__look", "--yes")
    assert servers(home)["a"]["tools"] == {"erase": {"effect": "destructive"}}
    (home / "config.yaml").write_text("servers:\n  a:\n    command: a\n    tools: {}\n")
    pml("disable", "a:look", "--yes")
    assert servers(home)["a"]["tools"] == {"look": {"enabled": False}}


def test_a_rename_rewrites_the_rules_and_workflows_that_name_the_server(home: Path) -> None:
    done = pml_json("rename", "notes", "diary", "--yes")

    assert config(home) == (
        CONFIG.replace("notes: {command", "diary: {command")
        .replace('"notes__*"', '"diary__*"')
        .replace("'notes:read'", '"diary:read"')
        .replace("- notes__delete_all", "- diary__delete_all")
        .replace('"notes:drop"', '"diary:drop"')
        .replace("[notes__wipe]", "[diary__wipe]")
        .replace("tool: notes__read", "tool: diary__read")
    )
    assert done["rewritten"] == [
        *("clients.ci.allow[0]", "clients.ci.allow[2]", "clients.ci.deny[0]", "clients.ci.deny[1]"),
        *("gateway.blacklisted_tools[0]", "workflows.w.steps[0].tool"),
    ]
    assert done["also_given_by"] == []
    assert "no server 'notes'" in pml("rename", "notes", "x", "--yes", code=2).stderr

    pml("add", "notes", "--no-check", "--yes", "--", "other")
    assert servers(home)["notes"] == {"command": "other"}


def test_a_glob_that_fits_the_old_name_alone_goes_on_fitting_the_server(home: Path) -> None:
    text = CONFIG.replace('"calc:add"', '"no*"').replace("[notes__wipe]", "['n?tes__w*', '*__wipe']")
    (home / "config.yaml").write_text(text)

    pml("rename", "notes", "diary", "--yes")

    assert '"diary:*", "no*", ' in config(home)
    assert "blacklisted_tools: [\"diary__w*\", 'n?tes__w*', '*__wipe']" in config(home)


def test_a_rule_that_gives_more_by_the_new_name_is_named(home: Path) -> None:
    (home / "config.yaml").write_text(CONFIG.replace('"calc:add"', '"d*"'))
    assert "clients.ci.allow: 'd*'" in pml("rename", "notes", "diary", "--dry-run").stderr


def test_a_server_that_cannot_be_started_says_why(home: Path) -> None:
    done = pml_json("add", "ghost", "--yes", "--", "pml-no-such-command")

    assert done["written"]
    assert done["checks"]["ghost"]["state"] == "failed"
    assert "pml-no-such-command" in done["checks"]["ghost"]["error"]


@pytest.mark.slow
def test_a_server_that_works_says_what_it_offers(home: Path) -> None:
    done = pml("add", "sums", "--yes", "--", sys.executable, "-m", "pml_gateway.demo.servers.calc")

    assert "sums works: 14 tools" in done.stdout
    assert re.search(r"sums +14 tools, seen \d+ s ago", pml("status").stdout)


@pytest.mark.parametrize("name", ["calc:add", "calc__add"])
def test_a_tool_is_switched_off_and_on_by_name(home: Path, name: str) -> None:
    pml("disable", name, "--yes")
    text = (home / "config.yaml").read_text()
    assert parse(text, "user", home / "config.yaml").values["servers"]["calc"]["tools"] == {"add": {"enabled": False}}
    assert "# the notes" in text
    assert "disabled already" in pml("disable", name, "--yes").output
    pml("disable", "calc:sub", "--yes")
    pml("enable", name, "--yes")
    assert servers(home)["calc"]["tools"] == {"sub": {"enabled": False}}
    pml("enable", "calc:sub", "--yes")
    assert config(home) == CONFIG
    assert "enabled already" in pml("enable", name, "--yes").output


@pytest.mark.parametrize("name", ["nosuch:add", "nosuch", "calcs:add"])
def test_a_tool_of_a_server_that_there_is_not_cannot_be_switched(name: str) -> None:
    assert "no server" in pml("disable", name, "--yes", code=2).output


def test_servers_and_tools_are_switched_together(home: Path) -> None:
    pml("disable", "notes", "calc:add", "notes:read", "--yes")
    servers = parse((home / "config.yaml").read_text(), "user", home / "config.yaml").values["servers"]
    assert servers["notes"] == {
        "command": "python3",
        "args": ["-m", "notes"],
        "enabled": False,
        "tools": {"read": {"enabled": False}},
    }
    assert servers["calc"]["tools"] == {"add": {"enabled": False}}
