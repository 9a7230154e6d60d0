"""`pml eval` prints the figures of labelled files and of the user's own catalog."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pml_gateway.cli.app import app
from tests.index.test_index_evaluation import KEYS

TOOLS = [
    {"id": "files:read", "server": "files", "name": "read_file", "description": "Read the contents of a file on disk"},
    {"id": "mail:send", "server": "mail", "name": "send_email", "description": "Send a message to recipients"},
]
QUERIES = [
    {"query": "show what is inside this document on disk", "gold": ["files:read"]},
    {
        "query": "write to Anna by email",
        "gold": ["mail:send", "other:send"],
        "gold_groups": [["mail:send", "other:send"]],
    },
]
DISTRACTORS = [
    {"id": "weather:now", "server": "weather", "name": "now", "description": "Current weather of a city"},
    {"id": "mail:send", "server": "mail", "name": "other", "description": "The same id again"},
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of its own, and files in the working directory."""
    for name in [name for name in os.environ if name.startswith("PML_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PML_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    for file, rows in (("tools", TOOLS), ("queries", QUERIES), ("distractors", DISTRACTORS)):
        Path(f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    yield tmp_path / "home"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["eval", *arguments])


def report(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    data: dict[str, Any] = json.loads(result.stdout)
    return data


FILES = ("--tools", "tools.jsonl", "--queries", "queries.jsonl")


def test_files_are_measured_into_exactly_the_promised_keys() -> None:
    data = report(*FILES, "--distractors", "distractors.jsonl")
    assert set(data) == KEYS | {"model", "ranking"}
    assert (data["n"], data["recall@1"], data["ndcg@10"]) == (2, 1.0, 1.0)
    assert data["model"].startswith("all-minilm-l6-v2-int8@")
    assert data["ranking"] == "fused"
    assert data["tokens_5_hits"] > 50
    assert data["p50_ms"] > 0


def test_the_lexical_ranking_needs_no_model() -> None:
    data = report(*FILES, "--ranking", "lexical")
    assert (data["model"], data["ranking"]) == ("none", "lexical")
    assert data["recall@10"] == 1.0


def test_people_get_a_table() -> None:
    result = run(*FILES)
    assert result.exit_code == 0
    assert "recall@1" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--tools", "tools.jsonl", "--queries", "absent.jsonl"), "absent.jsonl"),
        (("--tools", "broken.jsonl", "--queries", "queries.jsonl"), "broken.jsonl:1"),
        (("--tools", "queries.jsonl", "--queries", "queries.jsonl"), "no id"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(arguments: tuple[str, ...], said: str) -> None:
    Path("broken.jsonl").write_text("{\n")
    result = run(*arguments, "--json")
    assert result.exit_code == 1
    assert said in json.loads(result.stdout)["error"]["message"]


@pytest.mark.parametrize("arguments", [("--tools", "tools.jsonl"), ("--distractors", "distractors.jsonl")])
def test_files_that_need_another_are_refused(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


def test_without_a_query_file_the_own_catalog_is_not_measured() -> None:
    result = run("--json")
    assert result.exit_code == 1
    assert "pml eval init" in json.loads(result.stdout)["error"]["hint"]


SERVER = """
from fastmcp import FastMCP

server = FastMCP("notes")

@server.tool(description="Write a note that can be found again later")
def add_note(text: str) -> str:
    return text

@server.tool(description="Find notes by the words they contain")
def search_notes(words: str) -> str:
    return words

@server.tool(description="")
def qz(x: int) -> int:
    return x

server.run(transport="stdio", show_banner=False)
"""


def test_the_own_catalog_gets_a_query_file_and_is_measured_with_it(home: Path) -> None:
    home.mkdir()
    Path("server.py").write_text(SERVER)
    servers = {"notes": {"command": sys.executable, "args": [str(Path("server.py").absolute())]}}
    (home / "config.yaml").write_text(json.dumps({"servers": servers}))
    assert report("init") == {"file": str(home / "eval.jsonl"), "queries": 3}
    assert run("init").exit_code == 1
    rows = [json.loads(line) for line in (home / "eval.jsonl").read_text().splitlines()]
    assert {"query": "Find notes by the words they contain", "gold": ["notes__search_notes"]} in rows
    rows.append({"query": "compile the kernel", "gold": ["notes__gone"]})
    (home / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = report()
    assert data["n"] == 4
    assert data["recall@3"] == 0.75
    assert data["hard_tools"] == [
        {"name": "notes__gone", "missed": 1, "asked": 1, "reasons": ["no such tool in the catalog"]}
    ]
