"""Credentials of servers: what a server gets in the end is what its owner wrote, whatever a shell exports."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pml_gateway.cli.app import app
from pml_gateway.config.load import load_user_settings
from pml_gateway.mcp.transport import process_parameters, resolved_headers
from pml_gateway.paths import Paths
from pml_gateway.secrets.env_file import stored_variables
from pml_gateway.secrets.references import resolve_in
from pml_gateway.working_directory import WorkingDirectory
from tests.support.command_line import home_of
from tests.support.scripted_machine import scripted_machine

KEY = "abcDEF1234567890ghij"
OTHER = "zzzDEF0987654321zzzz"
URL = "https://h.test/mcp"


@pytest.fixture(autouse=True)
def home(tmp_path: Path) -> Any:
    with home_of(tmp_path, {}) as home:
        yield home


def pml(*arguments: str, code: int = 0, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(app, arguments, input=stdin)
    assert result.exit_code == code, result.output
    assert KEY not in result.output
    assert OTHER not in result.output
    return result


def add(*arguments: str, stdin: str | None = None) -> Result:
    name, *rest = arguments
    return pml("add", name, "--no-check", "--yes", *rest, stdin=stdin)


def reached(home: Path, name: str = "acme", shell: Mapping[str, str] | None = None) -> str:
    """All that reaches a server, started from this shell, which expands `${X}` of its arguments as mcp-remote does."""
    definition = load_user_settings(Paths.from_environ()).servers[name]
    here = WorkingDirectory(home, {"PML_HOME": str(home), "HOME": str(home.parent), "PATH": "/bin", **(shell or {})})
    if definition.url is not None:
        return json.dumps([resolve_in(definition.url, here), resolved_headers(definition, here)])
    found = process_parameters(name, definition, here)
    environment = found.env or {}
    args = [re.sub(r"\$\{(\w+)\}|\$(\w+)", lambda m: environment.get(m[1] or m[2], ""), each) for each in found.args]
    return json.dumps([args, {name: environment[name] for name in definition.env}])


def block(entry: Mapping[str, Any]) -> str:
    return json.dumps({"mcpServers": {"acme": entry}})


SHELLS: tuple[dict[str, str], ...] = (
    {},
    {"AUTH_HEADER": "Bearer x", "ACME_AUTH_HEADER": "Bearer x"},
    {"AUTH_HEADER": KEY, "ACME_AUTH_HEADER": OTHER, "ACME_AUTH_HEADER_TOKEN": OTHER, "AUTH_HEADER_TOKEN": OTHER},
)


@pytest.mark.field("C1")
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("scheme", "reference"),
    [
        ("Bearer {}", "${AUTH_HEADER}"),
        ("Basic {}", "$AUTH_HEADER"),
        ("Token {}", "${AUTH_HEADER}"),
        ("token={}", "${AUTH_HEADER}"),
        ("user:{}", "$AUTH_HEADER"),
        ("{}", "${AUTH_HEADER}"),
    ],
)
def test_a_value_keeps_what_stands_before_the_key(
    home: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, reference: str, shell: dict[str, str]
) -> None:
    for name, value in shell.items():
        monkeypatch.setenv(name, value)
    value = scheme.format(KEY)
    words = ["mcp-remote", URL, "--header", f"Authorization:{reference}"]
    if shell:
        add("acme", stdin=block({"command": "npx", "args": words, "env": {"AUTH_HEADER": value}}))
    else:
        add("acme", "-e", f"AUTH_HEADER={value}", "--", "npx", *words)

    for each in SHELLS:
        sent = json.dumps([[*words[:3], f"Authorization:{value}"], {"AUTH_HEADER": value}])
        assert reached(home, "acme", each) == sent
    assert KEY not in (home / "config.yaml").read_text()
    definition = load_user_settings(Paths.from_environ()).servers["acme"]
    assert definition.args[-1] == f"Authorization:{reference}"


@pytest.mark.field("C1")
@pytest.mark.parametrize("shell", [{"K": OTHER, "ACME_K": OTHER, "ACME_TOKEN": OTHER, "K_TOKEN": OTHER}])
@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"command": "x", "args": ["--h", "A:${env:K}"], "env": {"K": f"Bearer {KEY}"}}, f"A:Bearer {KEY}"),
        ({"command": "x", "args": ["--h", "A:{env:K}"], "env": {"K": f"Basic {KEY}"}}, f"A:Basic {KEY}"),
        ({"command": "x", "args": ["--h", "A:${K:-none}"], "env": {"K": f"Token {KEY}"}}, f"A:Token {KEY}"),
        ({"command": "x", "args": [f"{URL}?key=${{K}}"], "env": {"K": KEY}}, f"{URL}?key={KEY}"),
        ({"command": "x", "env": {"K": KEY, "U": "https://u:${K}@h.test/x"}}, f"https://u:{KEY}@h.test/x"),
        ({"command": "x", "env": {"DB": f"postgres://u:{KEY}@h.test/x"}}, f"postgres://u:{KEY}@h.test/x"),
        ({"url": URL, "headers": {"Authorization": "${K}"}, "env": {"K": f"Bearer {KEY}"}}, f"Bearer {KEY}"),
        ({"url": URL, "headers": {"Authorization": "Bearer ${env:K}"}, "env": {"K": KEY}}, f'"Bearer {KEY}"'),
        ({"url": f"{URL}?token=$K", "env": {"K": KEY}}, f"{URL}?token={KEY}"),
        ({"command": {"path": "x", "args": ["A:${K}"], "env": {"K": f"Bearer {KEY}"}}}, f"A:Bearer {KEY}"),
        ({"command": "x", "args": ["--header=A: Bearer ${K}"], "env": {"K": KEY}}, f"A: Bearer {KEY}"),
        ({"command": "x", "args": ["--header", "A: Basic ${U}:${K}"], "env": {"K": KEY, "U": "me"}}, f"Basic me:{KEY}"),
    ],
)
def test_a_name_of_the_entry_s_own_env_means_the_value_there(
    home: Path, monkeypatch: pytest.MonkeyPatch, entry: dict[str, Any], expected: str, shell: dict[str, str]
) -> None:
    for name, value in shell.items():
        monkeypatch.setenv(name, value)

    add("acme", stdin=block(entry))

    assert expected.strip('"') in reached(home, "acme", shell)
    assert KEY not in (home / "config.yaml").read_text()


@pytest.mark.field("C1")
@pytest.mark.parametrize("written", ["${T}", "${env:T}", "{env:T}", "$T", "%T%", "${T:-none}"])
def test_a_name_that_only_passes_on_a_variable_means_that_of_the_environment(home: Path, written: str) -> None:
    entry = {"command": "x", "args": ["--token", "${T}"], "env": {"T": written, "PATH": "/opt/acme:${PATH}"}}

    add("acme", stdin=block(entry))

    assert json.loads(reached(home, "acme", {"T": "of-the-shell"})) == [
        ["--token", "of-the-shell"],
        {"T": "of-the-shell", "PATH": "/opt/acme:/bin"},
    ]


@pytest.mark.field("C1")
def test_an_asked_input_gets_a_name_that_no_other_program_uses(home: Path) -> None:
    entry = {"url": URL, "headers": {"Authorization": "Bearer ${input:api-key}"}}
    text = json.dumps({"inputs": [{"id": "api-key", "type": "promptString"}], "servers": {"acme": entry}})

    done = pml("add", "--no-check", "--yes", stdin=text)

    assert "ACME_API_KEY" in done.stderr
    assert f"Bearer {KEY}" in reached(home, "acme", {"ACME_API_KEY": KEY, "API_KEY": "other"})


@pytest.mark.field("C2")
@pytest.mark.parametrize(
    "name", ["API_KEY", "TOKEN", "AUTH_TOKEN", "apiKey", "DB_PASSWORD", "ACME_API_KEY", "GITHUB_TOKEN"]
)
@pytest.mark.slow
def test_a_shell_with_another_project_s_key_changes_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    add("acme", "--env", f"{name}={KEY}", "--", "acme-server")

    (stored,) = stored_variables({"PML_HOME": str(home)})
    assert stored.startswith("ACME_") or name == "GITHUB_TOKEN"
    for variable in {name, stored}:
        assert json.loads(reached(home, "acme", {variable: OTHER}))[1] == {name: KEY}
    assert "another value than secrets.env" not in pml("doctor", code=1).output
    monkeypatch.setenv(stored, OTHER)
    said = " ".join(pml("doctor", code=1).output.split())
    assert f"{stored}: the environment has another value than secrets.env" in said
    assert f"servers.acme.env.{name}" in said


@pytest.mark.field("C2")
def test_a_value_that_the_shell_has_as_well_is_stored_all_the_same(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", KEY)

    add("gh", "--env", f"GITHUB_TOKEN={KEY}", "--", "gh-server")

    for shell in ({}, {"GITHUB_TOKEN": OTHER}):
        assert json.loads(reached(home, "gh", shell))[1] == {"GITHUB_TOKEN": KEY}


@pytest.mark.field("C2")
def test_a_stored_value_does_not_reach_a_server_that_reads_the_shell_s(home: Path) -> None:
    add("shell", "--env", "GITHUB_TOKEN=${env:GITHUB_TOKEN}", "--", "one")
    add("own", "--env", f"GITHUB_TOKEN={KEY}", "--", "two")

    shell = {"GITHUB_TOKEN": "of-the-shell"}
    assert json.loads(reached(home, "shell", shell))[1] == {"GITHUB_TOKEN": "of-the-shell"}
    assert json.loads(reached(home, "own", shell))[1] == {"GITHUB_TOKEN": KEY}


@pytest.mark.field("C4")
@pytest.mark.parametrize("name", ["KEYED_TOKEN", "TOKEN", "GITHUB_TOKEN"])
def test_a_key_that_is_replaced_leaves_nothing_behind(home: Path, name: str) -> None:
    add("keyed", "--env", f"{name}={OTHER}", "--", "server")
    before = (home / "config.yaml").read_text()

    done = add("keyed", "--replace", "--env", f"{name}={KEY}", "--", "server")

    assert "nothing to add" not in done.stderr
    assert (home / "config.yaml").read_text() == before
    assert OTHER not in (home / "secrets.env").read_text()
    assert list(stored_variables({"PML_HOME": str(home)}).values()) == [KEY]


@pytest.mark.field("C4")
def test_a_key_that_another_server_has_too_stays_its_own(home: Path) -> None:
    add("one", "--env", f"OPENAI_API_KEY={OTHER}", "--", "one")
    add("two", "--env", f"OPENAI_API_KEY={OTHER}", "--", "two")

    add("two", "--replace", "--env", f"OPENAI_API_KEY={KEY}", "--", "two")

    assert json.loads(reached(home, "one"))[1] == {"OPENAI_API_KEY": OTHER}
    assert json.loads(reached(home, "two"))[1] == {"OPENAI_API_KEY": KEY}


@pytest.mark.field("C4")
def test_a_variable_that_nothing_reads_after_a_replacement_is_named(home: Path) -> None:
    add("keyed", "--env", f"OLD_TOKEN={OTHER}", "--", "server")

    done = add("keyed", "--replace", "--env", f"NEW_TOKEN={KEY}", "--", "server")

    assert "pml secrets remove OLD_TOKEN" in " ".join(done.stderr.split())


def secrets_json(*arguments: str, code: int = 0) -> Any:
    return json.loads(pml("secrets", *arguments, "--json", code=code).stdout)


@pytest.mark.field("C4")
def test_stored_values_are_listed_with_their_users_and_never_shown(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no values are stored" in pml("secrets", "list").stderr
    add("acme", "--env", f"API_KEY={KEY}", "--header", "X: y", "--", "acme")
    pml("secrets", "set", "LEFT_OVER", stdin=f"{OTHER}\n")
    monkeypatch.setenv("ACME_API_KEY", OTHER)

    shown = pml("secrets", "list")
    assert "servers.acme.env.API_KEY" in shown.stdout
    assert "pml secrets remove --unused" in shown.stderr
    assert "the environment has another value of ACME_API_KEY" in shown.stderr
    assert secrets_json("list")["secrets"] == [
        {"name": "ACME_API_KEY", "used_by": ["servers.acme.env.API_KEY"], "overrides": True},
        {"name": "LEFT_OVER", "used_by": [], "overrides": False},
    ]


def test_a_value_is_said_to_be_stored_or_removed_before_gateways_are_said_to_follow(home: Path) -> None:
    with scripted_machine(home, {"reload": {"pid": 7, "gateways": [{}]}}):
        stored = pml("secrets", "set", "LEFT_OVER", stdin=f"{OTHER}\n").stderr
        removed = pml("secrets", "remove", "LEFT_OVER", "--yes").stderr
    assert 0 <= stored.find("stored LEFT_OVER") < stored.find("1 running gateway follows")
    assert 0 <= removed.find("removed LEFT_OVER") < removed.find("1 running gateway follows")


@pytest.mark.field("C4")
@pytest.mark.parametrize("value", [KEY, f'{KEY} "x" $HOME #y', f"{KEY}\nline 2", "Bearer a"])
def test_a_value_is_set_from_standard_input_in_place_of_the_one_before(home: Path, value: str) -> None:
    add("acme", "--env", f"API_KEY={OTHER}", "--", "acme")
    (home / "secrets.env").write_text(f"# mine\nA=1\n{(home / 'secrets.env').read_text()}B=2\n")

    pml("secrets", "set", "ACME_API_KEY", stdin=f"{value}\n")

    text = (home / "secrets.env").read_text()
    assert stored_variables({"PML_HOME": str(home)}) == {"A": "1", "ACME_API_KEY": value, "B": "2"}
    assert text.startswith("# mine\nA=1\n")
    assert OTHER not in text
    assert (home / "secrets.env").stat().st_mode & 0o777 == 0o600
    assert json.loads(reached(home, "acme"))[1] == {"API_KEY": value}


@pytest.mark.field("C4")
def test_a_value_is_no_argument_and_cannot_be_empty(home: Path) -> None:
    assert "the value is no argument" in pml("secrets", "set", "A", KEY, code=2, stdin="").stderr
    assert "no value for A was given" in pml("secrets", "set", "A", code=2, stdin="\n").stderr
    assert "cannot be a variable" in pml("secrets", "set", "A-B", code=2, stdin="x").stderr
    assert not (home / "secrets.env").exists()


@pytest.mark.field("C4")
def test_values_are_removed_by_name_or_where_nothing_uses_them(home: Path) -> None:
    add("acme", "--env", f"API_KEY={KEY}", "--", "acme")
    for name in ("ONE", "TWO"):
        pml("secrets", "set", name, stdin=OTHER)

    assert "did you mean ONE?" in pml("secrets", "remove", "ON", "--yes", code=2).stderr
    pml("secrets", "remove", "ONE", code=2)
    pml("secrets", "remove", "ONE", "--yes")
    assert secrets_json("remove", "--unused", "--yes")["removed"] == ["TWO"]
    assert "still used by servers.acme.env.API_KEY" in pml("secrets", "remove", "ACME_API_KEY", "--yes").stderr
    assert stored_variables({"PML_HOME": str(home)}) == {}


@pytest.mark.field("C4")
def test_removing_a_server_names_the_values_that_only_it_used(home: Path) -> None:
    add("acme", "--env", f"API_KEY={KEY}", "--", "acme")

    done = pml("remove", "acme", "--yes")

    assert "pml secrets remove ACME_API_KEY" in " ".join(done.stderr.split())


@pytest.mark.field("C4")
@pytest.mark.parametrize(
    "words", [("-H", f"KEYED_TOKEN: {KEY}"), ("-H", f"X-Keyed-Token: {KEY}"), ("-H", f"Token: {KEY}")]
)
def test_the_server_stands_in_front_of_a_name_once(home: Path, words: tuple[str, str]) -> None:
    add("keyed", URL, *words)

    assert list(stored_variables({"PML_HOME": str(home)})) == ["KEYED_TOKEN"]


@pytest.mark.field("C2")
@pytest.mark.parametrize("asked", ["path", "home", "user", "api_key", "token"])
def test_what_is_asked_for_takes_no_variable_of_the_system(home: Path, asked: str) -> None:
    entry = {"command": "x", "args": [f"${{input:{asked}}}"]}

    add("acme", stdin=json.dumps({"servers": {"acme": entry}, "inputs": [{"id": asked}]}))

    assert load_user_settings(Paths.from_environ()).servers["acme"].args == (f"${{env:ACME_{asked.upper()}}}",)
