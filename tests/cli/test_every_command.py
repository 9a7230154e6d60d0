"""What holds for every command there is: help with an example that parses, `--json`, and the exit codes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import commands, home_of, pml
from tests.support.process import write_settings

COMMANDS = commands()
LEAVES = {
    name: command
    for name, command in COMMANDS.items()
    if not hasattr(command, "commands") or command.invoke_without_command
}
WITHOUT_JSON = {"pml serve"}
"""It answers clients, not programs; its log is `--log-format json`."""

WITHOUT_CONFIGURATION = {
    "pml activity",
    "pml activity clear",
    "pml activity show",
    "pml approvals approve",
    "pml approvals deny",
    "pml approvals list",
    "pml approvals secret",
    "pml approvals show",
    "pml approvals watch",
    "pml backups",
    "pml backups prune",
    "pml backups restore",
    "pml config",
    "pml config presets",
    "pml config reference",
    "pml demo",
    "pml docs",
    "pml down",
    "pml init",
    "pml migrate back",
    "pml refresh",
    "pml example-queries export",
    "pml example-queries import",
    "pml service status",
    "pml service uninstall",
    "pml trust",
    "pml trust project",
}
"""They read no settings, or must work while the file has other problems, which they say."""

ANSWERS_ABOUT_IT = {"pml doctor", "pml status"}
"""Whose answer is what is wrong, or what runs all the same."""

ARGUMENTS: dict[str, list[str]] = {
    "pml activity show": ["1"],
    "pml add": ["a", "https://a.test/mcp"],
    "pml approvals approve": ["a"],
    "pml approvals deny": ["a"],
    "pml approvals show": ["a"],
    "pml approvals watch": ["--seconds", "0"],
    "pml call": ["a__b"],
    "pml config set": ["gateway.intent", "a"],
    "pml connect": ["cursor", "--yes"],
    "pml disable": ["a"],
    "pml disconnect": ["cursor", "--yes"],
    "pml enable": ["a"],
    "pml keys add": ["a"],
    "pml keys revoke": ["a", "--yes"],
    "pml migrate": ["--to", "hybrid_balanced"],
    "pml remove": ["a"],
    "pml rename": ["a", "b"],
    "pml example-queries import": ["examples.jsonl"],
    "pml example-queries remove": ["a__b"],
    "pml example-queries show": ["a__b"],
    "pml rules try": ["a__b"],
    "pml rules use": ["careful"],
    "pml schema": ["a__b"],
    "pml secrets remove": ["A"],
    "pml secrets set": ["A"],
    "pml search": ["a file"],
    "pml sets show": ["a"],
    "pml sets try": ["a"],
    "pml eval": ["--queries", "queries.jsonl"],
    "pml trust approve": ["a"],
    "pml trust reject": ["a"],
    "pml trust show": ["a"],
    "pml upstreams login": ["a"],
    "pml upstreams logout": ["a"],
    "pml upstreams logs": ["a"],
    "pml workflow run": ["a"],
}
"""What a command needs to get as far as its configuration."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path) -> Iterator[Path]:
    with home_of(tmp_path, {}) as home:
        yield home


def options(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_it_does_and_gives_an_example(name: str) -> None:
    shown = pml(*name.split()[1:], "--help").stdout
    assert "Example: pml " in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "<bool>" not in shown, "a flag takes nothing"
    undescribed = [
        each.opts[0]
        for each in COMMANDS[name].params
        if not getattr(each, "help", None) and not getattr(each, "hidden", False)
    ]
    assert undescribed == []


def test_the_paragraphs_of_the_help_are_wrapped_for_the_terminal() -> None:
    shown = pml("connect", "--help").stdout
    # The lines of the source are 120 columns wide.
    assert any(line.strip().endswith("Servers that are known not to") for line in shown.splitlines())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_in_the_help_parses(name: str) -> None:
    text = COMMANDS[name].help or ""
    examples = [line.partition("Example: ")[2] for line in text.splitlines() if "Example: " in line]
    assert examples
    for example in examples:
        assert parsed(example).startswith(name)


def parsed(line: str) -> str:
    """The command that a line is for, after reading its options as that command does."""
    command, rest = command_of(line)
    command.make_context(command.name, rest)
    return next(name for name, each in COMMANDS.items() if each is command)


def command_of(line: str) -> tuple[Any, list[str]]:
    """The command that a line is for, and its arguments."""
    words = shlex.split(line)
    name, rest = words[0], words[1:]
    while rest and f"{name} {rest[0]}" in COMMANDS:
        name = f"{name} {rest.pop(0)}"
    return COMMANDS[name], rest


@pytest.mark.parametrize("name", sorted(LEAVES.keys() - WITHOUT_JSON))
def test_it_can_answer_in_json(name: str) -> None:
    assert "--json" in options(LEAVES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_a_usage_error(name: str) -> None:
    if name != "pml call":  # whose options are those of the tool
        assert "--no-such-option" in pml(*name.split()[1:], "--no-such-option", code=2).stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_wrong_with_the_words_is_said_in_json_where_json_is_asked_for(name: str) -> None:
    words = name.split()[1:]
    wrong = [*words, "no-such-thing", "and", "more", "--json", "--no-such-option"]
    if name == "pml call":  # whose options are those of the tool
        wrong = [*words, "--json"]
    failed = pml(*wrong, code=2)
    error = json.loads(failed.stdout)["error"]
    assert error["message"]
    assert failed.stderr == ""


def test_an_option_of_a_tool_is_not_taken_for_the_one_of_the_command() -> None:
    assert pml("call", "a__b", "--", "--json", code=78).stdout == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LEAVES.keys() - WITHOUT_CONFIGURATION))
def test_a_broken_configuration_ends_it_with_78_and_says_where(name: str, home: Path) -> None:
    (home / "config.yaml").write_text("gateway: {tool_exposure: hybrid}\n", encoding="utf-8")
    Path("queries.jsonl").write_text('{"query": "read", "gold": ["a__b"]}\n', encoding="utf-8")
    words = [*name.split()[1:], *ARGUMENTS.get(name, ())]
    failed = pml(*words, code=78)
    assert "tools_exposure" in failed.output
    assert (failed.stdout == "") is (name not in ANSWERS_ABOUT_IT)
    if name not in WITHOUT_JSON:
        answer = json.loads(pml(*words, "--json", code=78).stdout)
        assert "tools_exposure" in json.dumps(answer)


def test_no_servers_is_a_matter_of_configuration() -> None:
    said = pml("tools", code=78).stderr
    assert "no servers are configured" in said
    assert said.index("pml init") < said.index("pml demo")
    error = json.loads(pml("tools", "--json", code=78).stdout)["error"]
    assert set(error) == {"code", "message", "hint", "details"}


@pytest.mark.parametrize("group", [name for name in COMMANDS if name not in LEAVES] + ["pml config", "pml migrate"])
def test_a_group_that_does_nothing_by_itself_prints_its_help_and_ends_as_an_error_of_usage(group: str) -> None:
    assert "Example: pml " in pml(*group.split()[1:], code=2).stdout


@pytest.mark.parametrize(
    "words",
    [
        "enrich {} --dry-run",
        "example-queries list --server {}",
        "example-queries remove --server {}",
        "search x --server {}",
        "stats --upstream {}",
        "upstreams logs {}",
        "upstreams login {}",
        "disable {}",
        "rename {} other",
    ],
)
def test_an_unknown_server_is_an_error_of_usage_in_every_command(home: Path, words: str) -> None:
    write_settings(home, {"servers": {"calc": {"command": "no-such-command-of-pml"}}})
    assert "did you mean calc?" in pml(*words.format("clac").split(), code=2).stderr


@pytest.mark.parametrize(("word", "meant"), [("stop", "down"), ("start", "up"), ("toools", "tools")])
def test_an_unknown_command_is_told_with_the_one_that_is_meant(word: str, meant: str) -> None:
    assert f"Did you mean '{meant}'?" in pml(word, code=2).output


@pytest.mark.parametrize(("word", "topic"), [("limits", "limits"), ("task", "tasks"), ("audit", "activity")])
def test_a_word_that_a_page_explains_is_answered_with_that_page(word: str, topic: str) -> None:
    assert f"pml docs {topic}" in pml(word, code=2).output
