from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from pml_gateway.cli.app import app
from pml_gateway.cli.output import ExitCode, fail, print_table, warn
from pml_gateway.config.presets import PRESET_NAMES
from pml_gateway.config.trust import TrustStore
from pml_gateway.errors import ConfigurationError, UpstreamUnavailableError
from pml_gateway.installation import TRANSFORMERS, adding
from tests.support.irregular import put_in_place_of_a_file
from tests.support.process import environment

SECRET = "hunter2"

USER_FILE = f"""\
# my gateway
gateway:
  tools_exposure: full_proxy   # for now
  blacklisted_tools: ["*:delete_*"]
  hybrid: {{whitelisted_tools: [git__log]}}
servers:
  # source code
  gh: {{command: npx, args: [-y, gh, --token, {SECRET}], env: {{GITHUB_TOKEN: {SECRET}, OTHER: "${{env:OTHER}}"}}}}
  linear: {{url: "https://me:{SECRET}@linear.test/mcp?key={SECRET}", headers: {{X-Auth: {SECRET}}}}}
clients:
  ci: {{key: "${{env:CI_KEY}}", deny: ["*:delete_*"]}}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home and a project of their own; the working directory is the project."""
    for name in [name for name in os.environ if name.startswith("PML_")]:
        monkeypatch.delenv(name)
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    monkeypatch.setenv("PML_HOME", str(home))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(project)
    yield home


@pytest.fixture
def config_file(home: Path) -> Path:
    file = home / "config.yaml"
    file.write_text(USER_FILE)
    file.chmod(0o600)
    return file


@pytest.fixture
def project_file(tmp_path: Path) -> Path:
    return tmp_path / "project" / ".pml.yaml"


def pml(*arguments: str, code: int = 0) -> Result:
    """Run the command; nothing it prints may hold the secret."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    assert SECRET not in result.output
    return result


def pml_json(*arguments: str, code: int = 0) -> Any:
    return json.loads(pml(*arguments, "--json", code=code).stdout)


def test_a_preset_rewrites_the_users_file_and_nothing_but_its_exposure(config_file: Path) -> None:
    result = pml("config", "--preset", "hybrid_balanced")

    after = config_file.read_text()
    assert "tools_exposure: hybrid       # for now" in after
    assert "max_underlying_tools: 20" in after
    kept = [line for line in USER_FILE.splitlines() if "tools_exposure" not in line and "hybrid:" not in line]
    assert [line for line in after.splitlines() if line in kept] == kept
    assert "whitelisted_tools: [git__log]" in after
    assert "+  tools_exposure: hybrid" in result.stdout
    (backup,) = config_file.parent.glob("config.yaml.bak-*")
    assert backup.read_text() == USER_FILE
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert str(backup) in result.stderr


@pytest.mark.parametrize("name", PRESET_NAMES)
def test_every_preset_can_be_applied_and_then_is_in_force(config_file: Path, name: str) -> None:
    pml("config", "--preset", name)

    assert pml_json("config", "--preset", name)["changed"] is False
    shown = pml_json("config", "show")
    assert shown["settings"]["gateway"]["tools_exposure"] == name.partition("_")[0].replace(
        "meta", "meta_only"
    ).replace("full", "full_proxy")
    assert shown["settings"]["gateway"]["blacklisted_tools"] == ["*:delete_*"]


def test_a_trial_writes_nothing(config_file: Path) -> None:
    result = pml("config", "--preset", "semantic", "--dry-run")

    assert "+  tools_exposure: semantic" in result.stdout
    assert "nothing was written" in result.stderr
    assert config_file.read_text() == USER_FILE
    assert [path.name for path in config_file.parent.iterdir()] == ["config.yaml"]


def test_one_setting_is_changed_and_nothing_else(config_file: Path) -> None:
    trial = pml("config", "set", "gateway.hybrid.semantic_threshold", "0.5", "--dry-run")
    assert "semantic_threshold: 0.5" in trial.stdout
    assert config_file.read_text() == USER_FILE

    done = pml_json("config", "set", "gateway.hybrid.semantic_threshold", "0.5")
    assert (done["setting"], done["written"]) == ("gateway.hybrid.semantic_threshold", True)
    assert Path(done["backup"]).read_text() == USER_FILE
    changed = [line for line in config_file.read_text().splitlines() if line not in USER_FILE.splitlines()]
    assert changed == ["  hybrid: {whitelisted_tools: [git__log], semantic_threshold: 0.5}"]
    assert pml_json("config", "set", "gateway.hybrid.semantic_threshold", "0.5")["changed"] is False
    assert "already says so" in pml("config", "set", "servers.gh.env.GITHUB_TOKEN", SECRET).stderr


@pytest.mark.parametrize(
    ("key", "value", "said", "code"),
    [
        ("gateway.hybrid.semantic_threshold", "7", "7 should be less than or equal to 1", 78),
        ("gateway.hybrid.semantic_threshold", "[1", "should be a number", 78),
        ("gateway.tools_exposure", "hybird", "did you mean hybrid", 78),
        ("gateway.hybird.fallback", "none", "no setting", 2),
        ("clients.ci.key", SECRET, "key is never written into the file", 78),
    ],
)
def test_a_setting_that_would_not_load_is_not_written(
    config_file: Path, key: str, value: str, said: str, code: int
) -> None:
    failed = pml("config", "set", key, value, code=code)
    assert said in " ".join(failed.stderr.split())
    assert config_file.read_text() == USER_FILE
    assert not list(config_file.parent.glob("*.bak-*"))


def test_a_setting_that_another_source_sets_is_not_written(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PML_GATEWAY__INTENT", "triage")
    failed = pml("config", "set", "gateway.intent", "mail", code=78)
    assert "PML_GATEWAY__INTENT sets gateway.intent, which wins" in failed.stderr
    assert config_file.read_text() == USER_FILE


def test_a_preset_creates_the_file_where_there_is_none(home: Path) -> None:
    pml("config", "--preset", "meta_only")

    assert stat.S_IMODE((home / "config.yaml").stat().st_mode) == 0o600
    assert pml_json("config", "show")["origins"]["gateway.tools_exposure"]["source"] == "user"


@pytest.mark.parametrize(("name", "warns"), [("hybrid_balanced", True), ("semantic", True), ("full_proxy", False)])
def test_a_preset_that_needs_an_intent_and_has_none_warns(config_file: Path, name: str, warns: bool) -> None:
    trial = pml("config", "--preset", name, "--dry-run").stderr
    written = pml("config", "--preset", name).stderr

    assert ("no intent is configured" in trial, "no intent is configured" in written) == (warns, warns)


def test_a_source_that_wins_over_the_file_is_named(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PML_GATEWAY__TOOLS_EXPOSURE", "full_proxy")

    result = pml("config", "--preset", "meta_only")

    assert "PML_GATEWAY__TOOLS_EXPOSURE sets gateway.tools_exposure and wins over the file" in result.stderr


def test_another_file_can_be_named_before_and_after_the_subcommand(config_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("gateway: {tools_exposure: semantic, intent: x}\n")

    pml("config", "--preset", "meta_only", "--config", str(other))

    assert "meta_only" in other.read_text()
    assert config_file.read_text() == USER_FILE
    for arguments in (("config", "--config", str(other), "show"), ("config", "show", "--config", str(other))):
        assert "intent: x" in pml(*arguments).stdout


def test_an_unknown_preset_is_a_configuration_error(config_file: Path) -> None:
    result = pml("config", "--preset", "hybrid_balancd", code=2)

    assert result.stdout == ""
    assert "error: no preset 'hybrid_balancd'; did you mean hybrid_balanced?" in result.stderr
    assert pml_json("config", "--preset", "nope", code=2)["error"]["message"] == "no preset 'nope'"


def test_a_broken_file_is_not_edited(config_file: Path) -> None:
    config_file.write_text("gateway: [\n")

    result = pml("config", "--preset", "meta_only", code=78)

    assert f"{config_file}:2:1: broken YAML" in result.stderr
    assert config_file.read_text() == "gateway: [\n"


def test_a_file_with_other_problems_is_edited_and_they_are_mentioned(config_file: Path) -> None:
    config_file.write_text("htp: {}\n")

    result = pml("config", "--preset", "meta_only")

    assert "other problems" in result.stderr
    assert "did you mean http?" in result.stderr


def test_the_command_alone_explains_itself(config_file: Path) -> None:
    result = pml("config", code=2)

    assert "--preset" in result.stdout
    assert "validate" in result.stdout


def test_a_preset_and_a_subcommand_are_a_usage_error(config_file: Path) -> None:
    pml("config", "--preset", "meta_only", "show", code=2)
    pml("config", "--nonsense", code=2)


def test_show_masks_credentials_and_keeps_references(config_file: Path) -> None:
    for result in (pml("config", "show"), pml("config", "show", "--origin"), pml("config", "show", "--json")):
        assert "${env:OTHER}" in result.stdout
        assert "${env:CI_KEY}" in result.stdout
        assert "***" in result.stdout


def test_show_says_where_each_value_came_from(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PML_SEARCH__LIMIT", "9")

    lines = [line.strip() for line in pml("config", "show", "--origin").stdout.splitlines()]

    assert f"tools_exposure: full_proxy  # user: {config_file}:3" in lines
    assert "limit: 9  # environment: PML_SEARCH__LIMIT" in lines
    assert "direct_calls: visible  # default" in lines
    assert "# " not in pml("config", "show").stdout


def test_what_show_prints_is_a_configuration_again(config_file: Path, tmp_path: Path) -> None:
    config_file.write_text("gateway: {intent: 'a: b # c'}\nservers: {fs: {command: npx, env: {A: '${env:A}'}}}\n")
    copy = tmp_path / "copy.yaml"
    copy.write_text(pml("config", "show", "--origin").stdout)

    assert pml_json("config", "show", "--config", str(copy))["settings"] == pml_json("config", "show")["settings"]


def test_the_json_of_show_has_settings_origins_warnings_and_files(config_file: Path) -> None:
    shown = pml_json("config", "show")

    assert set(shown) == {"settings", "origins", "warnings", "files"}
    assert shown["origins"]["gateway.tools_exposure"] == {"source": "user", "location": f"{config_file}:3"}
    assert shown["settings"]["servers"]["linear"]["url"] == "https://me:***@linear.test/mcp?key=***"
    assert shown["files"] == [str(config_file)]


def test_validate_passes_a_sound_configuration_and_points_out_what_is_missing(config_file: Path) -> None:
    result = pml("config", "validate")

    assert result.stdout == f"valid: {config_file}\n"
    assert "servers.gh.env.OTHER: environment variable OTHER is not set" in result.stderr
    assert "clients.ci.key: environment variable CI_KEY is not set" in result.stderr
    assert "servers.gh.env.GITHUB_TOKEN holds a literal secret" in result.stderr
    found = pml_json("config", "validate")
    assert (found["valid"], found["problems"], len(found["warnings"])) == (True, [], 6)


def test_validate_names_the_command_that_adds_what_the_model_needs(
    config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    needing = "search.model 'nobody/model' needs sentence-transformers"
    config_file.write_text("search: {model: nobody/model}\n")
    (warning,) = pml_json("config", "validate")["warnings"]
    assert needing in warning
    assert adding(TRANSFORMERS) in warning
    config_file.write_text("search: {model: nobody/model, ranking: lexical}\n")
    assert pml_json("config", "validate")["warnings"] == []


def test_validate_reports_every_problem_and_exits_with_78(config_file: Path) -> None:
    config_file.write_text(f"htp: {{}}\nsearch: {{limit: 0}}\nclients: {{a: {{key: {SECRET}}}}}\n")

    result = pml("config", "validate", code=78)

    assert result.stdout == ""
    assert "error: 3 problems in the configuration:" in result.stderr
    found = pml_json("config", "validate", code=78)
    assert found["valid"] is False
    assert [problem["key"] for problem in found["problems"]] == ["htp", "search.limit", "clients.a.key"]
    assert found["problems"][0]["location"] == f"{config_file}:1"


REFUSED = {
    "clients: {ci: {key: '${env:SHORT}'}}": "clients.ci.key",
    "clients: {a: {key: '${env:LONG}'}, b: {key: '${env:LONG}'}}": "clients",
    "http: {metrics: true, metrics_key: '${env:SHORT}'}": "http.metrics_key",
    "http: {metrics: true}\nclients: {a: {key: '${env:LONG}'}}": "http.metrics_key",
    "http: {host: 0.0.0.0}": "http.host",
    "storage: {results: 'ftp://host'}": "storage.results",
    "storage: {results: '${env:SHORT}'}": "storage.results",
}


@pytest.mark.parametrize("written", REFUSED)
def test_validate_refuses_what_is_not_served(config_file: Path, monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.setenv("SHORT", "12345678")
    monkeypatch.setenv("LONG", "0123456789abcdef0123456789abcdef")
    config_file.write_text(f"servers: {{calc: {{command: python3}}}}\n{written}\n")
    found = pml_json("config", "validate", code=78)
    assert (found["valid"], [problem["key"] for problem in found["problems"]]) == (False, [REFUSED[written]])
    assert "12345678" not in str(found)
    refused = CliRunner().invoke(app, ["serve", "--http", "--port", "0"])
    assert refused.exit_code == 78
    assert found["problems"][0]["message"].partition(";")[0] in refused.stderr


WORKFLOWS = """\
servers: {calc: {command: python3}}
workflows:
  sound: {description: Later., steps: [{tool: "calc:add"}]}
  steps:
    description: Goes on.
    steps:
      - {id: a, tool: "calc:add", arguments: {a: $b.x}}
  nothing: {steps: [{tool: "calc:add"}]}
  one: {description: Round., steps: [{tool: "workflows:two"}]}
  two: {description: Round., steps: [{tool: "workflows:one"}]}
"""


def test_validate_refuses_workflows_that_are_unavailable(config_file: Path) -> None:
    config_file.write_text(WORKFLOWS)

    problems = {each["key"]: each for each in pml_json("config", "validate", code=78)["problems"]}

    assert list(problems) == [
        *("workflows.steps.steps.0", "workflows.nothing.description", "workflows.one.steps", "workflows.two.steps")
    ]
    assert [each["location"] for each in problems.values()] == [f"{config_file}:{line}" for line in (6, 8, 9, 10)]
    assert "the steps are a" in problems["workflows.steps.steps.0"]["message"]
    assert problems["workflows.one.steps"]["message"].endswith("call each other; remove one of these steps")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("http: {allowed_hosts: ['https://mcp.test']}", "'https://mcp.test' is no host"),
        ("http: {allowed_hosts: ['::1']}", "'::1' is no host"),
        ("http: {allowed_origins: ['*']}", "'*' is no origin"),
        ("http: {allowed_origins: ['https://app.test/']}", "'https://app.test/' is no origin"),
        ("gateway: {namespaces: {groups: {g: []}}}", "'g' has no tools"),
    ],
)
def test_validate_refuses_entries_that_nothing_can_match(config_file: Path, written: str, message: str) -> None:
    config_file.write_text(written)
    (problem,) = pml_json("config", "validate", code=78)["problems"]
    assert problem["message"].startswith(message)
    config_file.write_text("http: {allowed_hosts: [mcp.test, '[::1]:*'], allowed_origins: ['https://app.test:*']}")
    pml("config", "validate")


def test_validate_says_which_keys_of_a_server_are_not_read(config_file: Path) -> None:
    config_file.write_text(
        "servers: {a: {url: 'https://a.test', env: {A: b}, headers: {B: c}}, b: {command: python3, headers: {A: b}}}"
    )
    warnings = [each for each in pml_json("config", "validate")["warnings"] if "no effect" in each]
    assert [each.partition(":")[0] for each in warnings] == ["servers.a.env", "servers.b.headers"]


@pytest.mark.parametrize(
    "written",
    ["gateway: {tools_exposure: hybird}\n", "clients: {ci: {key: '${env:CI_KEY}', mode: hybird}}\n"],
)
def test_validate_refuses_a_mode_that_there_is_not(config_file: Path, written: str) -> None:
    config_file.write_text(written)

    assert "did you mean hybrid?" in pml("config", "validate", code=78).stderr

    report = pml_json("config", "validate", code=78)
    assert report["valid"] is False
    assert [problem["key"].rpartition(".")[2] in ("tools_exposure", "mode") for problem in report["problems"]] == [True]


def test_presets_are_listed_with_what_clients_see() -> None:
    result = pml("config", "presets")

    assert all(name in result.stdout for name in PRESET_NAMES)
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    listed = pml_json("config", "presets")
    assert [item["name"] for item in listed] == list(PRESET_NAMES)
    assert set(listed[0]) == {"name", "summary", "path", "settings"}


def test_a_project_is_trusted_shown_and_revoked(project_file: Path) -> None:
    project_file.write_text(f"servers: {{fs: {{command: npx, args: [--token, {SECRET}]}}}}\n")
    assert "pml trust" in pml("config", "show").stderr

    result = pml("trust", "project", "--yes")

    assert result.stdout == f"trusted: {project_file}\n"
    assert "sets    servers.fs.command" in result.stderr
    assert "a server of this file: fs: npx --token ***" in result.stderr
    assert "fs" in pml_json("config", "show")["settings"]["servers"]
    assert pml_json("trust", "--list")[0]["state"] == "trusted"

    assert pml("trust", "--revoke").stdout == f"no longer trusted: {project_file}\n"
    assert pml("trust", "--revoke").stdout == f"was not trusted: {project_file}\n"
    assert pml_json("config", "show")["settings"]["servers"] == {}
    assert "no project file is trusted" in pml("trust", "--list").stderr


@pytest.mark.field("A7")
def test_a_project_is_shown_before_it_is_approved_and_not_approved_unasked(project_file: Path) -> None:
    project_file.write_text(f"servers: {{fs: {{command: npx, args: [--token, {SECRET}]}}}}\n")

    refused = pml("trust", "project", code=2)

    shown, said = "a server of this file: fs: npx --token ***", "nothing was approved"
    assert refused.stderr.index(shown) < refused.stderr.index(said)
    assert "--yes" in refused.stderr
    answer = pml_json("trust", "project", code=2)
    assert (answer["trusted"], answer["sets"]) == (None, ["servers.fs.command", "servers.fs.args"])
    assert pml_json("trust", "--list") == []


@pytest.mark.field("A7")
@pytest.mark.slow
@pytest.mark.parametrize(("typed", "is_approved"), [(b"\n", False), (b"n\n", False), (b"y\n", True)])
def test_a_person_is_asked_before_a_project_is_approved(
    project_file: Path, config_file: Path, typed: bytes, is_approved: bool
) -> None:
    project_file.write_text("servers: {fs: {command: npx}}\n")
    keyboard, terminal = pty.openpty()
    try:
        os.write(keyboard, typed)
        done = subprocess.run(
            [sys.executable, "-m", "pml_gateway", "trust", "project"],
            env=environment(config_file.parent),
            cwd=project_file.parent,
            stdin=terminal,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert done.returncode == 0, done.stderr
    assert done.stderr.index("a server of this file: fs: npx") < done.stderr.index("Approve")
    assert bool(pml_json("trust", "--list")) is is_approved


def test_a_changed_and_a_deleted_project_are_listed_as_such(project_file: Path) -> None:
    project_file.write_text("http: {port: 1}\n")
    pml("trust", str(project_file.parent), "--yes")
    project_file.write_text("http: {port: 2}\n")
    assert "changed" in pml("trust", "--list").stdout

    project_file.unlink()

    assert "missing" in pml("trust", "--list").stdout
    assert pml_json("trust", "--revoke", str(project_file.parent))["was_trusted"] is True


def test_a_file_that_would_not_load_is_not_trusted(project_file: Path) -> None:
    project_file.write_text("htp: {}\n")

    assert "did you mean http?" in pml("trust", "project", code=78).stderr
    assert pml_json("trust", "--list") == []


def test_plain_trust_says_how_the_project_stands_and_approves_nothing(project_file: Path) -> None:
    project_file.write_text("http: {port: 1}\n")
    assert pml("trust").stdout == f"{project_file}: not trusted\n"
    pml("trust", "project", "--yes")
    assert pml_json("trust")["project"] == {"file": str(project_file), "state": "trusted"}
    project_file.write_text("http: {port: 2}\n")
    assert pml("trust").stdout == f"{project_file}: changed\n"


def test_a_folder_in_place_of_a_command_is_a_project(project_file: Path) -> None:
    project_file.write_text("http: {port: 1}\n")
    folder = str(project_file.parent)
    assert pml_json("trust", folder, "--yes")["trusted"] == str(project_file)
    assert pml_json("trust", "project", "--list") == pml_json("trust", "--list")
    pml("trust", folder, "--revoke")
    assert pml_json("trust", "--list") == []
    assert "no .pml.yaml in" in pml("trust", "no-such-folder", code=78).stderr
    assert "No such command" in pml("trust", "aprove", code=2).stderr


def test_there_has_to_be_something_to_trust(tmp_path: Path) -> None:
    assert "no .pml.yaml in" in pml("trust", str(tmp_path), code=78).stderr
    pml("trust", "--list", "--revoke", code=2)


def test_errors_have_the_exit_code_of_who_can_act(capsys: pytest.CaptureFixture[str]) -> None:
    assert ConfigurationError("x").exit_code == ExitCode.CONFIGURATION
    assert UpstreamUnavailableError("x").exit_code == ExitCode.FAILED

    with pytest.raises(typer.Exit) as caught:
        fail(UpstreamUnavailableError("[bold]gone[/bold]", hint="start it"))

    assert caught.value.exit_code == 1
    assert capsys.readouterr() == ("", "error: [bold]gone[/bold]\n  start it\n")


def test_messages_are_neither_wrapped_nor_read_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    long = "[red]x[/red] " * 20

    warn(long)
    print_table(("A", "B"), [("[b]", "y " * 100)])

    out, err = capsys.readouterr()
    assert err == f"warning: {long}\n"
    assert out.count("y") == 100
    assert "[b]" in out
    assert max(len(line) for line in out.splitlines()) <= 80


INVALID_PROJECTS = [
    ("gateway:\n  hybrid: {max_tokens: lots}\n", "2: gateway.hybrid.max_tokens: ", "'lots'"),
    ("gateway:\n  nosuch: 1\n", "2: gateway.nosuch: ", "unknown key; known here"),
    ("clients:\n  ci: {key: short}\n", "2: clients.ci.key: ", "write ${env:NAME} or ${file:PATH}"),
    ("servers: [\n", "2", "broken YAML"),
]


@pytest.mark.parametrize(("text", "place", "what"), INVALID_PROJECTS)
def test_validate_names_what_is_wrong_with_an_approved_project(
    home: Path, project_file: Path, text: str, place: str, what: str
) -> None:
    project_file.write_text(text)
    TrustStore(home / "trust.json").trust(project_file, text.encode())
    output = pml("config", "validate", code=78).output
    assert f"{project_file}:{place}" in output
    assert what in output


@pytest.mark.parametrize(("text", "place", "what"), INVALID_PROJECTS)
def test_validate_says_of_a_project_that_is_not_approved_that_it_is_not_read(
    project_file: Path, text: str, place: str, what: str
) -> None:
    project_file.write_text(text)
    found = pml_json("config", "validate")
    assert found["valid"]
    assert str(project_file) not in found["files"]
    assert any(f"{project_file}: not approved, and not read" in warning for warning in found["warnings"])
    assert what not in str(found)


def test_validate_says_that_a_project_has_changed_since_it_was_approved(project_file: Path) -> None:
    project_file.write_text("gateway: {intent: this}\n")
    pml("trust", "project", "--yes")
    assert str(project_file) in pml_json("config", "validate")["files"]
    project_file.write_text("gateway: {intent: other}\n")
    found = pml_json("config", "validate")
    assert str(project_file) not in found["files"]
    assert any("changed since it was approved" in warning for warning in found["warnings"])


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder", "link outside"])
def test_a_project_file_that_is_no_file_of_the_project_is_skipped_with_a_line(
    home: Path, tmp_path: Path, kind: str
) -> None:
    place = tmp_path / "project" / ".pml.yaml"
    put_in_place_of_a_file(place, kind)
    reason = "a link to a file outside the project" if "link" in kind else "not a regular file"
    if kind == "device":
        reason = "a link to a file outside the project"
    assert f"{place}: {reason}; skipped" in pml("trust").output
    found = pml_json("config", "validate")
    assert found["valid"]
    assert str(place) not in found["files"]
    assert [each for each in found["warnings"] if reason in each] == [f"{place}: {reason}; skipped"]
    refused = pml("trust", "project", "--yes", code=78).output
    assert f"{place}: {reason}; not read" in refused
