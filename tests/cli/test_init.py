from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pml_gateway.cli.app import app
from pml_gateway.cli.output import ExitCode
from pml_gateway.clients.known import CLIENTS
from pml_gateway.config.load import load_user_settings
from pml_gateway.paths import Paths
from tests.support.command_line import home_of_a_person
from tests.support.scripted_machine import STATUS, scripted_machine

SECRETS = ("hunter2-hunter2", "lin_api_abc123def456", "ghp_0123456789abcdefghijABCDEFGHIJ012345")
DEMO = "pml_gateway.demo.servers"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a project of their own, and none of this machine's clients."""
    return home_of_a_person(tmp_path, monkeypatch)


def claude_code(home: Path) -> Path:
    """Eight servers: five work, one has a slip in its command, one wants a variable, one is HTTP."""
    python = sys.executable
    servers: dict[str, Any] = {
        "calc": {"type": "stdio", "command": python, "args": ["-m", f"{DEMO}.calc"], "env": {}},
        "notes": {
            "command": python,
            "args": ["-m", f"{DEMO}.notes", str(home / "n.db")],
            "env": {"A_TOKEN": SECRETS[0]},
        },
        "files": {"command": python, "args": ["-m", f"{DEMO}.files", str(home)]},
        "diary": {"command": python, "args": ["-m", f"{DEMO}.notes", "${HOME}/diary.db"]},
        "sums": {"command": python, "args": ["-m", f"{DEMO}.calc"], "env": {"GH_TOKEN": SECRETS[2]}},
        "typo": {"command": "pythonn3", "args": ["-m", "nothing"]},
        "github": {"command": python, "args": ["-m", f"{DEMO}.calc"], "env": {"GITHUB_TOKEN": "${GITHUB_PAT}"}},
        "linear": {
            "type": "http",
            "url": "https://127.0.0.1:1/mcp",
            "headers": {"Authorization": f"Bearer {SECRETS[1]}"},
        },
    }
    file = home / ".claude.json"
    file.write_text(
        json.dumps({"numStartups": 4, "mcpServers": servers, "oauthAccount": {"token": SECRETS[0]}}, indent=2)
    )
    return file


def pml(*arguments: str, code: int = 0) -> Result:
    """Run the command; nothing it prints may hold a secret, or be wider than the terminal unless it has to be."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    for secret in SECRETS:
        assert secret not in result.output
    return result


def pml_json(*arguments: str, code: int = 0) -> Any:
    return json.loads(pml(*arguments, "--json", code=code).stdout)


def test_a_new_user_has_a_gateway_after_two_commands_and_is_back_after_one(home: Path) -> None:
    file = claude_code(home)
    before = file.read_bytes()

    preview = pml("init", "--dry-run")
    done = pml("init", "--yes")

    # What was shown is what is written, and a path that is not there yet is said to be.
    shown = "".join(line[1:] for line in preview.stdout.splitlines(keepends=True) if line[0] == "+" != line[1])
    assert shown == (home / ".pml" / "config.yaml").read_text()
    assert f"{home}/.pml/config.yaml is not there yet and will be made" in preview.stderr
    assert f"{home}/.pml/secrets.env, which will be made" in preview.stderr
    assert "command pythonn3 is not found; did you mean python3?" in done.stderr
    assert "pml secrets set GITHUB_PAT" in done.stderr
    assert "${env:A_TOKEN}" in done.stderr
    assert "next: pml connect claude-code" in done.stderr
    assert "share one gateway" in done.stderr
    shown = pml_json("config", "show")["settings"]["servers"]
    assert list(shown) == ["calc", "notes", "files", "diary", "sums", "typo", "github", "linear"]
    assert shown["linear"]["headers"] == {"Authorization": "Bearer ${env:LINEAR_TOKEN}"}
    config, secrets = home / ".pml" / "config.yaml", home / ".pml" / "secrets.env"
    assert {stat.S_IMODE(path.stat().st_mode) for path in (config, secrets)} == {0o600}
    assert not [secret for secret in SECRETS if secret in config.read_text()]
    assert [secret for secret in SECRETS if secret in secrets.read_text()] == list(SECRETS)
    validated = pml_json("config", "validate")
    assert [warning for warning in validated["warnings"] if "servers." in warning and "GITHUB_PAT" not in warning] == []

    connected = pml("connect", "claude-code", "--take-all", "--yes")

    assert '+    "pml": {' in connected.stdout
    assert "it shares one gateway" in connected.stderr
    assert set(json.loads(file.read_text())["mcpServers"]) == {"pml"}
    assert [row["state"] for row in pml_json("clients")["clients"] if row["exists"]] == ["connected", "empty"]
    assert "is connected already" in pml("connect", "claude-code", "--take-all", "--yes").stderr

    pml("config", "--preset", "full_proxy")
    assert "`pml connect claude-code` again to have them deferred" in pml("clients").stderr
    pml("connect", "claude-code", "--take-all", "--yes")
    assert "alwaysLoad" not in json.loads(file.read_text())["mcpServers"]["pml"]
    assert "again" not in pml("clients").stderr

    pml("disconnect", "claude-code", "--yes")

    assert file.read_bytes() == before
    assert "is not connected" in pml("disconnect", "claude-code", "--yes").stderr


def test_clients_say_which_gateway_they_have_and_who_is_there_now(home: Path) -> None:
    claude_code(home)
    pml("init", "--yes")
    pml("connect", "claude-code", "--take-all", "--yes")
    assert "which the first of them starts" in pml("clients").stderr

    there = [{"name": name} for name in ("claude-code 2.1.330", "claude-code 2.1.330", "claude-ai 0.1.0", "")]
    with scripted_machine(home / ".pml", {"status": {**STATUS, "clients": there}}):
        told = pml_json("clients")
        assert "share the gateway of this machine (process 4711)" in pml("clients").stderr
    (row,) = (row for row in told["clients"] if row["state"] == "connected")
    assert (told["gateway"], row["shares_gateway"], row["sessions"]) == (4711, True, 2)

    assert told["without_file"] == {"claude-ai 0.1.0": 1, "not known yet": 1}

    file = home / ".claude.json"
    file.write_text(file.read_text().replace('"serve"', '"serve", "--alone"'))
    assert "claude-code (user) starts a gateway of its own (--alone)" in pml("clients").stderr


def test_clients_without_a_file_that_share_the_gateway_are_named(home: Path) -> None:
    there = [{"name": name} for name in ("own-agent 1", "cursor 1.10", "own-agent 1")]
    with scripted_machine(home / ".pml", {"status": {**STATUS, "clients": there}}):
        told = pml("clients").stderr
    assert "no client has a file here" in told
    assert "share the gateway of this machine (process 4711) without a file here: own-agent 1 (2), cursor 1.10" in told


def test_a_client_that_defers_the_gateways_tools_is_told_unless_somebody_wrote_its_entry_to_be_alone(
    home: Path,
) -> None:
    entry = {"command": sys.executable, "args": ["-m", "pml_gateway", "serve"]}
    advice = "claude-code (user) defers the gateway's tools; `pml connect claude-code` again to have them loaded"
    for words, is_told in ((["serve"], True), (["serve", "--alone"], False)):
        own = {**entry, "args": ["-m", "pml_gateway", *words]}
        (home / ".claude.json").write_text(json.dumps({"mcpServers": {"pml": own}}))
        assert (advice in pml("clients").stderr) is is_told


@pytest.mark.parametrize(
    ("name", "client"),
    [
        ("claude-code 2.1.330", "claude-code"),
        ("claude-ai 0.1.0", "claude-desktop"),
        ("cursor-vscode 1.0", "cursor"),
        ("Visual Studio Code 1.110", "vscode"),
        ("Visual-Studio-Code 1.110", "vscode"),
        ("windsurf-client 1.0", "windsurf"),
        ("gemini-cli-mcp-client-pml 0.1", "gemini-cli"),
        ("codex-mcp-client 0.169", "codex"),
        ("Zed 0.2", "zed"),
        ("something else 1", None),
    ],
)
def test_clients_are_known_by_the_name_that_they_tell(name: str, client: str | None) -> None:
    assert [each.name for each in CLIENTS if each.is_called(name)] == ([client] if client else [])


def test_what_is_connected_elsewhere_is_named_and_left_to_be_undone_there(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claude_code(home)
    (home.parent / "project" / ".mcp.json").write_text('{"mcpServers": {"calc": {"command": "python3"}}}')
    pml("init", "--yes", "--project")
    pml("connect", "claude-code", "--all-scopes", "--take-all", "--yes")
    (other := home.parent / "other").mkdir()
    monkeypatch.chdir(other)

    shown = pml("disconnect", "claude-code", "--all-scopes", "--yes").stderr
    assert f"still connected: {home.parent}/project/.mcp.json; run this again in its project" in shown.replace("\n", "")

    pml("connect", "claude-code", "--take-all", "--yes")
    monkeypatch.setenv("PML_HOME", str(home / "elsewhere"))
    shown = pml("disconnect", "claude-code", "--yes").stderr
    assert "pml leads to a gateway elsewhere, which undoes it: without PML_HOME" in shown
    assert "pml" in json.loads((home / ".claude.json").read_text())["mcpServers"]


def test_clients_say_that_the_record_is_damaged(home: Path) -> None:
    (home / ".pml").mkdir()
    (home / ".pml" / "connections.json").write_text("{")

    assert "connections.json is damaged" in pml("clients", code=ExitCode.CONFIGURATION).stderr


def test_later_runs_only_add_and_keep_every_comment(home: Path) -> None:
    file = claude_code(home)
    pml("init", "--yes")
    config = home / ".pml" / "config.yaml"
    config.write_text(config.read_text().replace("  calc:\n", "  # sums and dates\n  calc:\n", 1))
    before = config.read_text()

    assert "already has all of these servers" in pml("init", "--yes").stderr
    assert config.read_text() == before

    values = json.loads(file.read_text())
    values["mcpServers"] = {"time": {"command": "uvx", "args": ["mcp-time"]}}
    file.write_text(json.dumps(values))
    report = pml_json("init", "--yes")

    assert [(row["entry"], row["outcome"]) for row in report["servers"]] == [("time", "added")]
    after = config.read_text()
    assert [line for line in after.splitlines() if line in before.splitlines()] == before.splitlines()
    assert Path(report["backup"]).read_text() == before


def test_without_a_terminal_or_a_yes_nothing_is_written(home: Path) -> None:
    file = claude_code(home)
    before = file.read_bytes()

    refused = pml("init", code=ExitCode.USAGE).stderr
    assert "nothing was written" in refused
    assert "run it with --yes" in refused
    assert pml_json("init", code=ExitCode.USAGE)["written"] is False
    assert pml_json("init", "--dry-run")["written"] is False
    assert not (home / ".pml" / "config.yaml").exists()
    assert not (home / ".pml" / "secrets.env").exists()
    assert "run `pml init` first" in pml("connect", "claude-code", code=ExitCode.CONFIGURATION).output
    pml("init", "--yes")
    refused = pml("connect", "claude-code", code=ExitCode.USAGE).stderr
    assert "run it with --yes" in refused
    assert "served by the gateway from now on" not in refused
    assert pml_json("connect", "claude-code", code=ExitCode.USAGE)["written"] is False
    assert pml_json("connect", "claude-code", "--dry-run")["written"] is False
    assert file.read_bytes() == before


def test_servers_that_the_gateway_cannot_start_stay_in_the_client_with_the_reason(home: Path) -> None:
    file = claude_code(home)
    before = file.read_bytes()
    pml("init", "--yes")

    shown = pml("connect", "claude-code", "--yes").stderr

    assert "served by the gateway from now on: calc, notes, files, diary, sums" in shown
    assert "left in Claude Code, since they are known not to start" in shown
    assert "typo: command pythonn3 is not found; did you mean python3? set servers.typo.command: python3" in shown
    assert "github: environment variable GITHUB_PAT is not set; store it: pml secrets set GITHUB_PAT" in shown
    assert "linear: it cannot be reached" in shown
    assert list(json.loads(file.read_text())["mcpServers"]) == ["typo", "github", "linear", "pml"]
    again = pml_json("connect", "claude-code", "--dry-run")
    assert (again["result"], list(again["waiting"])) == ("already", ["typo", "github", "linear"])
    assert pml_json("connect", "claude-code", "--keep", "--dry-run")["waiting"] == {}

    # What can start now is taken when the client is connected again.
    config = home / ".pml" / "config.yaml"
    config.write_text(config.read_text().replace("pythonn3", sys.executable))
    values = json.loads(file.read_text())
    values["mcpServers"]["typo"]["command"] = sys.executable
    file.write_text(json.dumps(values, indent=2))
    assert pml_json("connect", "claude-code", "--yes")["removed"][-1] == "typo"
    assert list(json.loads(file.read_text())["mcpServers"]) == ["github", "linear", "pml"]

    taken = pml("connect", "claude-code", "--take-all", "--dry-run").stderr
    assert "github goes from the file, but is known not to start as github: environment variable" in taken
    pml("disconnect", "claude-code", "--yes")
    assert file.read_bytes().replace(sys.executable.encode(), b"") == before.replace(
        sys.executable.encode(), b""
    ).replace(b"pythonn3", b"")


def test_one_that_is_disabled_in_the_gateway_stays_in_the_client(home: Path) -> None:
    file = claude_code(home)
    pml("init", "--yes")
    config = home / ".pml" / "config.yaml"
    config.write_text(config.read_text().replace("  calc:\n", "  calc:\n    enabled: false\n", 1))

    waiting = pml_json("connect", "claude-code", "--yes")["waiting"]

    assert waiting["calc"] == "it is disabled in the gateway (servers.calc.enabled)"
    assert "calc" in json.loads(file.read_text())["mcpServers"]


def test_every_scope_of_a_client_is_connected_and_undone_at_once(home: Path, tmp_path: Path) -> None:
    file, project = claude_code(home), tmp_path / "project"
    notes = {"command": sys.executable, "args": ["-m", f"{DEMO}.notes", "shop.db"]}
    values = json.loads(file.read_text())
    values["mcpServers"] = {"calc": values["mcpServers"]["calc"]}
    other = {"mcpServers": {"other": {**notes, "args": [*notes["args"], "other"]}}, "history": []}
    values["projects"] = {str(project): {"mcpServers": {"shopdb": notes}}, "/other": other}
    file.write_text(json.dumps(values, indent=2))
    team = project / ".mcp.json"
    team.write_text(json.dumps({"mcpServers": {"team": {"command": sys.executable, "args": ["-m", f"{DEMO}.files"]}}}))
    before = {path: path.read_bytes() for path in (file, team)}
    said = pml("init", "--yes", "--project").stderr
    assert f"{file} also has servers of 1 other project, /other; run `pml init` there" in said
    config = home / ".pml" / "config.yaml"
    config.write_text(
        config.read_text()
        + f"  other: {json.dumps({'command': sys.executable, 'args': other['mcpServers']['other']['args']})}\n"  # type: ignore[index]
    )
    assert [
        (row["scope"], row["project"], row["state"]) for row in pml_json("clients")["clients"] if row["servers"]
    ] == [
        ("user", None, "direct"),
        ("local", str(project), "direct"),
        ("project", None, "direct"),
        ("local", "/other", "direct"),
    ]

    shown = pml("connect", "claude-code", "--yes").stderr

    assert f"shopdb is still started by Claude Code (local, {project}) itself" in shown
    assert "other is still started by Claude Code (local, /other) itself" in shown
    assert "through the gateway as well: pml connect claude-code --all-scopes" in shown
    first = file.read_bytes()
    pml("connect", "claude-code", "--all-scopes", "--dry-run")
    assert file.read_bytes() == first

    report = pml_json("connect", "claude-code", "--all-scopes", "--yes")

    assert [(edit["scope"], edit["result"], edit["removed"]) for edit in report["edits"]] == [
        ("user", "already", ["calc"]),
        ("local", "connected", ["shopdb"]),
        ("local", "connected", ["other"]),
        ("project", "connected", ["team"]),
    ]
    now = json.loads(file.read_text())
    assert list(now["mcpServers"]) == ["pml"]
    assert [section["mcpServers"] for section in now["projects"].values()] == [{}, {}]
    assert json.loads(team.read_text()) == {"mcpServers": {}}
    assert [row["taken_over"] for row in pml_json("clients")["clients"] if row["taken_over"]] == [
        ["calc"],
        ["shopdb"],
        ["team"],
        ["other"],
    ]
    assert "taken over (1)" in pml("clients").stdout
    assert pml("connect", "claude-code", "--all-scopes", "--yes").stderr.count("is connected already") == 4

    assert "pml disconnect claude-code --all-scopes undoes all" in pml("disconnect", "claude-code", "--yes").stderr
    pml("disconnect", "claude-code", "--all-scopes", "--yes")

    assert {path: path.read_bytes() for path in (file, team)} == before
    refused = pml("connect", "claude-code", "--all-scopes", "--scope", "user", code=ExitCode.USAGE)
    assert "exclude each other" in refused.stderr


@pytest.mark.parametrize("is_broken", [False, True])
def test_for_a_file_that_is_gone_or_broken_the_backup_is_offered(home: Path, is_broken: bool) -> None:
    file = claude_code(home)
    before = file.read_bytes()
    pml("init", "--yes")
    pml("connect", "claude-code", "--yes")
    if is_broken:
        file.write_text('{"mcpServers": {')
    else:
        file.unlink()

    refused = pml("disconnect", "claude-code", code=ExitCode.USAGE).stderr
    assert "run it with --yes" in refused
    assert file.exists() is is_broken
    done = pml("disconnect", "claude-code", "--yes").stderr

    assert ("it is moved aside" if is_broken else "was deleted since `pml connect`") in done
    assert "is again what it was before `pml connect`" in done
    assert file.read_bytes() == before
    aside = home / ".claude.json.broken"
    assert aside.exists() is is_broken
    assert (f"the broken file is now {aside}" in done) is is_broken


def test_a_slip_in_the_name_of_a_client_is_a_usage_error(home: Path) -> None:
    assert "did you mean claude-code?" in pml("init", "--client", "claud-code", code=ExitCode.USAGE).stderr
    assert "did you mean cursor?" in pml("connect", "curser", code=ExitCode.USAGE).stderr


def test_broken_files_are_named_with_their_line_and_the_rest_is_imported(home: Path) -> None:
    claude_code(home)
    (home / ".cursor").mkdir()
    (home / ".cursor" / "mcp.json").write_text('{\n  "mcpServers": {\n    "a": {"env": {"T": "hunter2-hunter2"}\n')

    done = pml("init", "--yes", code=ExitCode.CONFIGURATION)

    assert "mcp.json is broken JSON: line 4" in done.stderr
    assert "calc" in (home / ".pml" / "config.yaml").read_text()
    listed = pml("clients", code=ExitCode.CONFIGURATION)
    assert "broken" in listed.stdout
    assert "line 4" in listed.stderr


def test_files_of_a_project_are_imported_only_if_asked(home: Path) -> None:
    Path(".mcp.json").write_text('{"mcpServers": {"team": {"command": "sh", "args": ["-c", "true"]}}}')

    report = pml_json("init", "--yes")

    assert report["servers"] == []
    assert [row["imported"] for row in report["files"]] == [False]
    # Naming a client says nothing of the project around: who wrote its file could start what they want.
    assert pml_json("init", "--client", "claude-code", "--yes")["servers"] == []
    assert [row["entry"] for row in pml_json("init", "--yes", "--project")["servers"]] == ["team"]
    chosen = pml_json("init", "--client", "claude-code", "--project", "--dry-run")
    assert chosen["servers"][0]["outcome"] == "present"


def test_what_a_file_says_gives_the_terminal_no_orders(home: Path) -> None:
    order = "\\u001b]0;owned\\u0007"
    Path(".mcp.json").write_text(f'{{"mcpServers": {{"a{order}": {{"command": "no{order}", "env": {{"x": 5}}}}}}}}')

    done = pml("init", "--yes", "--project")

    assert "\x1b" not in done.stdout + done.stderr


def test_one_file_or_client_can_be_chosen(home: Path, tmp_path: Path) -> None:
    claude_code(home)
    other = tmp_path / "other.json"
    other.write_text('{"mcpServers": {"other": {"command": "sh"}}}')

    assert [row["name"] for row in pml_json("init", "--from", str(other), "--dry-run")["servers"]] == ["other"]
    assert pml_json("init", "--client", "cursor", code=ExitCode.FAILED)["servers"] == []
    failed = pml("init", "--client", "curser", code=ExitCode.USAGE)
    assert "did you mean cursor?" in failed.stderr
    pml("init", "--from", "/no/such/file", code=ExitCode.USAGE)


def test_a_file_is_named_once_and_one_that_no_client_reads_as_nobody_s(home: Path, tmp_path: Path) -> None:
    broken = tmp_path / "bad.json"
    broken.write_text('{"mcpServers": {')

    done = pml("init", "--from", str(broken), code=ExitCode.CONFIGURATION)

    assert done.stdout.split()[4:6] == ["unknown", "broken"]
    assert pml_json("init", "--from", str(broken), code=ExitCode.CONFIGURATION)["files"][0]["client"] is None
    good = tmp_path / "good.json"
    good.write_text('{"mcpServers": {"other": {"command": "sh"}}}')
    done = pml("init", "--from", str(good), "--yes")
    assert "like claude-code" in done.stdout
    assert "next: pml connect CLIENT" in done.stderr

    (home / ".claude.json").write_text('{"mcpServers": {')
    done = pml("init", "--yes", code=ExitCode.CONFIGURATION)
    assert done.stdout.count(".claude.json") == done.stderr.count(".claude.json") == 1


def test_where_there_is_no_client_the_places_are_listed(home: Path) -> None:
    done = pml("init", "--yes", code=ExitCode.FAILED)

    assert done.stderr.count(str(home / ".claude.json")) == 1
    assert not (home / ".pml").exists()
    assert "pml clients --all" in pml("clients").stderr
    assert "no file" in pml("clients", "--all").stdout


def test_a_client_whose_gateway_is_gone_is_told(home: Path) -> None:
    file = home / ".claude.json"
    file.write_text('{"mcpServers": {"pml": {"command": "/gone/bin/pml", "args": ["serve"]}}}')

    done = pml("clients", code=ExitCode.CONFIGURATION)

    assert "/gone/bin/pml does not exist; run pml connect claude-code" in done.stderr


def test_scopes_and_ways_that_a_client_lacks_are_told(home: Path) -> None:
    claude_code(home)
    pml("init", "--yes")

    assert "choose from user" in pml("connect", "windsurf", "--scope", "local", code=ExitCode.USAGE).stderr
    assert "takes no URL" in pml("connect", "claude-desktop", "--http", code=ExitCode.CONFIGURATION).stderr
    report = pml_json("connect", "cursor", "--scope", "project", "--yes")
    assert json.loads(Path(".cursor/mcp.json").read_text())["mcpServers"]["pml"]["args"] == ["serve"]
    assert report["backup"] is None
    pml("disconnect", "cursor", "--scope", "project", "--yes")
    assert not Path(".cursor/mcp.json").exists()


def test_a_dry_run_names_only_the_connections_that_the_real_run_leaves(home: Path) -> None:
    claude_code(home)
    pml("init", "--yes")
    pml("connect", "cursor", "--yes")
    assert "still connected" not in pml("disconnect", "cursor", "--dry-run").stderr
    pml("connect", "cursor", "--scope", "project", "--yes")
    for words in (("--dry-run",), ("--yes",)):
        assert "still connected: Cursor (project); pml" in pml("disconnect", "cursor", *words).stderr


def test_in_the_home_folder_a_file_of_the_user_and_the_project_is_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claude_code(home)
    pml("init", "--yes")
    monkeypatch.chdir(home)
    pml("connect", "cursor", "--scope", "project", "--yes")
    assert "still connected" not in pml("disconnect", "cursor", "--scope", "project", "--dry-run").stderr
    assert [edit["scope"] for edit in pml_json("disconnect", "cursor", "--all-scopes", "--yes")["edits"]] == ["user"]
    assert not (home / ".cursor/mcp.json").exists()


def test_copied_blocks_with_a_client_s_variables_are_warned_of(home: Path) -> None:
    (home / ".pml").mkdir()
    (home / ".pml" / "config.yaml").write_text(
        "servers:\n"
        "  a: {command: run, args: ['${HOME}/x', '$${env:NOT}'], env: {K: '${input:key}'}, envFile: /no/such.env}\n"
        "  b: {command: sh, args: [-c, 'echo ${HOME}']}\n"
    )

    warnings = pml_json("config", "validate")["warnings"]

    assert [warning.partition(":")[0] for warning in warnings] == [
        "servers.a.env.K",
        "servers.a.args[0]",
        "servers.a.env_file",
    ]
    assert "${HOME} is passed on as it is written" in warnings[1]


@pytest.mark.parametrize("command", ["init", "clients", "connect", "disconnect"])
def test_every_command_has_help_with_an_example(command: str) -> None:
    assert f"Example: pml {command}" in " ".join(pml(command, "--help").stdout.split())


def clients_with_one_server(home: Path) -> None:
    """Claude Code and Cursor have the same server under two names, and Cursor another of the first name."""
    (home / ".cursor").mkdir()
    sums = {"command": sys.executable, "args": ["-m", f"{DEMO}.calc", "--token", SECRETS[0]]}
    (home / ".claude.json").write_text(json.dumps({"mcpServers": {"sums": sums}}))
    others = {"math": sums, "sums": {"command": sys.executable, "args": ["-m", f"{DEMO}.notes", "x"]}}
    (home / ".cursor" / "mcp.json").write_text(json.dumps({"mcpServers": others}))


def configured(home: Path) -> list[str]:
    return list(load_user_settings(Paths.from_environ()).servers)


@pytest.mark.field("C5")
@pytest.mark.parametrize("is_connected", [False, True])
def test_a_removed_server_comes_back_under_no_name_until_it_is_asked_for(home: Path, is_connected: bool) -> None:
    clients_with_one_server(home)
    pml("init", "--yes")
    assert configured(home) == ["sums", "sums-cursor"]
    if is_connected:
        pml("connect", "claude-code", "--yes", "--take-all")
    pml("remove", "sums", "--yes")

    again = pml("init", "--yes")

    assert configured(home) == ["sums-cursor"]
    assert "already has all of these servers, except those that you removed" in again.stderr
    assert "was taken out as 'sums'; pml init --removed brings it back" in again.stderr
    assert SECRETS[0] not in (home / ".pml" / "removed.json").read_text()
    pml("init", "--removed", "--yes")
    assert len(configured(home)) == 2
    pml("init", "--yes")
    assert len(configured(home)) == 2


@pytest.mark.field("C5")
@pytest.mark.parametrize("change", ["another key", "another program", "renamed", "disabled"])
def test_a_server_that_was_changed_here_is_not_imported_beside_itself(home: Path, change: str) -> None:
    clients_with_one_server(home)
    pml("init", "--yes")
    words = ["--", sys.executable, "-m"]
    match change:
        case "another key":
            pml("add", "sums", "--replace", "--no-check", "--yes", *words, f"{DEMO}.calc", "--token", SECRETS[2])
        case "another program":
            pml("remove", "sums", "--yes")
            pml("add", "sums", "--no-check", "--yes", *words, f"{DEMO}.files", str(home))
        case "renamed":
            pml("rename", "sums", "plus", "--yes")
        case _:
            pml("disable", "sums", "--yes")
    before = configured(home)

    pml("init", "--yes")

    assert configured(home) == before


@pytest.mark.field("C5")
def test_a_removed_server_that_no_client_has_any_more_is_named_and_comes_back(home: Path) -> None:
    (home / ".cursor").mkdir()
    entry = {"command": sys.executable, "args": ["-m", f"{DEMO}.calc"], "env": {"A_TOKEN": SECRETS[0]}}
    (home / ".cursor" / "mcp.json").write_text(json.dumps({"mcpServers": {"sums": entry}}))
    pml("init", "--yes")
    pml("connect", "cursor", "--yes", "--take-all")
    pml("remove", "sums", "--yes")

    again = pml("init", "--yes")

    assert configured(home) == []
    assert again.stderr.count("sums: was taken out as 'sums'; pml init --removed brings it back") == 1
    assert "pml connect removed" not in again.stderr
    assert SECRETS[0] not in (home / ".pml" / "removed.json").read_text()
    pml("init", "--removed", "--yes")
    back = load_user_settings(Paths.from_environ()).servers["sums"]
    assert (back.args, back.env) == (("-m", f"{DEMO}.calc"), {"A_TOKEN": "${env:A_TOKEN}"})
    assert "was taken out" not in pml("init", "--yes").stderr


@pytest.mark.field("C5")
def test_a_server_that_is_added_again_is_no_removed_one(home: Path) -> None:
    clients_with_one_server(home)
    pml("init", "--yes")
    pml("remove", "sums", "--yes")
    pml("add", "sums", "--no-check", "--yes", "--", sys.executable, "-m", f"{DEMO}.calc", "--token", SECRETS[0])

    assert "pml init --removed" not in pml("init", "--yes").stderr
    assert configured(home) == ["sums-cursor", "sums"]


@pytest.mark.field("C5")
def test_connect_and_its_help_say_the_same_of_servers_that_cannot_start(home: Path) -> None:
    servers = {"gone": {"command": "no-such-command"}, "ends": {"command": "false"}, "calc": {"command": "cat"}}
    (home / ".claude.json").write_text(json.dumps({"mcpServers": servers}))
    pml("init", "--yes")

    shown = " ".join(pml("connect", "claude-code", "--yes").stderr.split())

    promised = " ".join(pml("connect", "--help").stdout.split())
    assert "Servers that are known not to start stay in the client" in promised
    assert "None is started to find out" in promised
    assert "left in Claude Code, since they are known not to start" in shown
    assert "served by the gateway from now on: ends, calc" in shown
    assert list(json.loads((home / ".claude.json").read_text())["mcpServers"]) == ["gone", "pml"]


@pytest.mark.field("C3")
@pytest.mark.parametrize(
    "text",
    [
        '{"mcp": {"sums": {"type": "local", "command": ["cat", "x"], "environment": {"T": "{env:MY_T}"}}}}',
        '{"mcpServers": [{"name": "sums", "command": "cat", "args": "x", "env": ["T=${MY_T}"]}]}',
        "extensions:\n  sums: {cmd: cat, args: [x], env_keys: [T], type: stdio}\n",
        "claude mcp add -e T=$MY_T sums -- cat x\n",
    ],
)
def test_a_named_file_may_say_whatever_can_be_pasted(home: Path, text: str) -> None:
    (home / "mine.txt").write_text(text)

    pml("init", "--from", str(home / "mine.txt"), "--yes")

    found = load_user_settings(Paths.from_environ()).servers["sums"]
    assert (found.command, found.args) == ("cat", ("x",))
    assert found.env["T"] in ("${env:MY_T}", "${env:T}")
