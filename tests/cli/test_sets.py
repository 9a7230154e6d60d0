"""`pml sets`, `pml connect --set`, and every command of the page about them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import home_of, listing, pml
from tests.support.documents import PAGES, code_blocks

PAGE = next(page for page in PAGES if page.stem == "sets")
COMMANDS = [line for block in code_blocks(PAGE) if block.language == "sh" for line in block.commands]
TOOL = "github__evaluate_expression"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The demo's servers, one of them under the name that the page has, and clients of the page."""
    folder = tmp_path_factory.mktemp("sets")
    servers = listing(folder / "demo", "files", "notes", "calc")
    servers["github"] = servers.pop("calc")
    settings = {
        "servers": servers,
        "sets": {
            "work": {"include": ["github"], "exclude": ["*:date_*"], "mode": "hybrid", "intent": "do sums"},
            "reading": {"effects": ["read"]},
        },
        "roles": {"developer": {"sets": ["work", "reading"]}},
        "clients": {
            "ci-bot": {"key": "${env:CI_BOT_KEY}", "sets": ["reading"]},
            "ada": {"key": "${env:ADA_KEY}", "roles": ["developer"]},
        },
        "gateway": {"sets_by_client_name": {"cursor*": ["work"]}},
    }
    with home_of(folder, settings) as home:
        pml("tools", "--json")
        yield home


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_of_the_page_runs(line: str) -> None:
    words = shlex.split(line.replace("github__create_issue", TOOL))
    assert words[0] == "pml"
    pml(*words[1:], *(["--yes", "--json"] if words[1] == "connect" else []))


def answer(*words: str) -> Any:
    return json.loads(pml("sets", *words, "--json").stdout)


@pytest.mark.usefixtures("home")
def test_sets_are_listed_with_who_has_them() -> None:
    rows = {row["name"]: row for row in answer("list")["sets"]}
    assert rows["work"]["given_to"] == ["gateway.sets_by_client_name.cursor*", "roles.developer"]
    assert rows["reading"]["given_to"] == ["roles.developer", "clients.ci-bot"]
    assert rows["work"]["tools"] > 0 and rows["reading"]["effects"] == ["read"]
    assert "roles.developer" in pml("sets", "list").stdout


@pytest.mark.usefixtures("home")
def test_a_set_is_shown_with_what_it_gives_alone() -> None:
    shown = answer("show", "work")
    assert {row["server"] for row in shown["decided"]} == {"github"}
    assert all(row["visible"] for row in shown["decided"])
    assert (shown["mode"], shown["intent"], shown["groups"]) == ("hybrid", "do sums", [["sets.work"]])
    assert TOOL in pml("sets", "show", "work").stdout


@pytest.mark.usefixtures("home")
def test_the_rule_that_decided_is_named_with_its_key() -> None:
    of_ada = {row["name"]: row for row in answer("try", "ada")["decided"]}
    assert of_ada[TOOL]["visible"] and "sets.work" in of_ada[TOOL]["keys"]
    hidden = of_ada["github__date_difference"]
    assert (hidden["visible"], hidden["rule"], hidden["keys"]) == (
        False,
        "denied to this client: *:date_*",
        ["sets.work"],
    )
    [of_others] = answer("try", "local", "files__search_text", "--set", "work")["decided"]
    assert of_others["rule"] == "not among what this client is allowed" and of_others["keys"] == ["sets.work"]
    [of_cursor] = answer("try", "local", "files__search_text", "--name", "Cursor")["decided"]
    assert not of_cursor["visible"]
    printed = pml("sets", "try", "local", "files__search_text", "--set", "work").stdout
    assert "(sets.work)" in printed and "0 things of 1 visible" in printed
    [of_everything] = answer("try", "local", "files__search_text")["decided"]
    assert of_everything["visible"]


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["sets", "show", "wrok"], 2, "did you mean work"),
        (["sets", "try", "nobody"], 2, "no client 'nobody'"),
        (["sets", "try", "local", "github__nothing"], 1, "no tool named"),
        (["sets", "try", "ada", "--set", "work"], 2, "is for local"),
        (["connect", "cursor", "--set", "wrok", "--yes"], 2, "did you mean work"),
        (["connect", "cursor", "--set", "work", "--http", "--yes"], 2, "--set is for stdio"),
        (["serve", "--http", "--set", "work"], 2, "is for stdio"),
        (["serve", "--alone", "--set", "wrok"], 2, "did you mean work"),
    ],
)
def test_what_cannot_be_is_said_with_the_remedy(words: list[str], code: int, said: str) -> None:
    printed = " ".join(pml(*words, code=code).output.split())
    assert said in printed.replace("│ ", "").replace(" │", "")


def test_connecting_again_with_another_set_replaces_it(home: Path) -> None:
    file = home.parent / ".cursor" / "mcp.json"
    pml("connect", "cursor", "--set", "work", "--yes", "--json")
    pml("connect", "cursor", "--set", "reading", "--set", "work", "--yes", "--json")
    args = json.loads(file.read_text())["mcpServers"]["pml"]["args"]
    assert args[-5:] == ["serve", "--set", "reading", "--set", "work"]
    pml("connect", "cursor", "--yes", "--json")
    assert json.loads(file.read_text())["mcpServers"]["pml"]["args"] == args
