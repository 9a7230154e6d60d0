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
from pml_gateway.index.evaluation import drawn
from pml_gateway.installation import TRANSFORMERS, adding
from tests.index.test_evaluation import KEYS
from tests.support.process import OWN_GATEWAYS

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
EXAMPLES = [
    {"id": "files:read", "examples": ["what does my note say", "open the shopping list"]},
    {"id": "mail:send", "examples": ["let Anna know"]},
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of its own, and files in the working directory."""
    for name in [name for name in os.environ if name.startswith("PML_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PML_HOME", str(tmp_path / "home"))
    for name, value in {**OWN_GATEWAYS, "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    for file, rows in (("tools", TOOLS), ("queries", QUERIES), ("distractors", DISTRACTORS), ("examples", EXAMPLES)):
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
    assert data["model"].startswith("minilm-tools-int8@")
    assert data["ranking"] == "fused"
    assert data["tokens_5_hits"] > 50
    assert data["p50_ms"] > 0


def test_examples_are_counted_and_find_what_the_tool_does_not_say() -> None:
    Path("queries.jsonl").write_text(json.dumps({"query": "my shopping list, please", "gold": ["files:read"]}))
    data = report(*FILES, "--examples", "examples.jsonl")
    assert set(data) == KEYS | {"model", "ranking", "with_examples"}
    assert (data["with_examples"], data["recall@1"]) == (2, 1.0)
    assert "tools of which examples are known" in run(*FILES, "--examples", "examples.jsonl").output


def test_a_share_of_the_tools_keeps_its_examples_and_a_seed_says_which() -> None:
    half = ("--examples", "examples.jsonl", "--examples-share", "0.5")
    assert report(*FILES, *half)["with_examples"] == 1
    assert report(*FILES, "--examples", "examples.jsonl", "--examples-share", "0")["with_examples"] == 0
    first = {at: drawn({"a": ("x",), "b": ("y",)}, 0.5, at) for at in range(8)}
    assert first == {at: drawn({"b": ("y",), "a": ("x",)}, 0.5, at) for at in range(8)}
    assert {key for each in first.values() for key in each} == {"a", "b"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"id": "files:write", "examples": ["x"]}', "'files:write', which is none of the 2 tools"),
        ('{"id": "files:read", "examples": "x"}', "holds no examples"),
        ('{"id": "files:read", "examples": [" "]}', "holds no examples"),
        ('{"examples": ["x"]}', "holds no examples"),
        ("[" * 3, "examples.jsonl:1 is no JSON"),
        ("", "holds no examples"),
        (json.dumps({"id": "files:read", "examples": ["x"] * 17}), "17 examples for 'files:read', and at most 16"),
        ('{"id": "mail:send", "examples": []}\n' * 2, "'mail:send' twice"),
    ],
)
def test_a_file_of_examples_that_cannot_be_meant_is_refused(content: str, said: str) -> None:
    Path("examples.jsonl").write_text(content)
    result = run(*FILES, "--examples", "examples.jsonl")
    assert result.exit_code == 1
    assert said in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--examples", "examples.jsonl"), "needs --tools"),
        ((*FILES, "--examples-share", "0.5"), "needs --examples"),
        ((*FILES, "--examples", "examples.jsonl", "--examples-share", "1.5"), "1.5 is not from 0 to 1"),
        ((*FILES, "--examples", "examples.jsonl", "--examples-share", "nan"), "nan is not from 0 to 1"),
    ],
)
def test_options_of_examples_that_do_not_fit_are_refused(arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_the_lexical_ranking_needs_no_model() -> None:
    data = report(*FILES, "--ranking", "lexical")
    assert (data["model"], data["ranking"]) == ("none", "lexical")
    assert data["recall@10"] == 1.0


def test_a_model_whose_library_is_missing_ends_it_with_the_command_that_adds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    failed = run(*FILES, "--model", "nobody/model")
    assert failed.exit_code == 78
    assert adding(TRANSFORMERS) in " ".join(failed.stderr.split())


def test_people_get_every_figure_with_what_it_says() -> None:
    result = run(*FILES)
    assert result.exit_code == 0
    assert "2 of 2 queries find their tools among the first five hits" in result.stdout
    rows = {line.split()[0]: line for line in result.stdout.splitlines()[2:] if line.strip()}
    assert rows.keys() >= KEYS
    assert "100.0%" in rows["recall@1"]
    assert "needed tools that are the first hit" in rows["recall@1"]
    assert "tokens of an answer with five hits" in rows["tokens_5_hits"]


def test_queries_that_are_the_tools_own_descriptions_are_said_to_prove_little() -> None:
    assert "own description" not in run(*FILES).stderr
    rows = [{"query": TOOLS[0]["description"], "gold": ["files:read"]}, *QUERIES]
    Path("queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "1 query is still the tool's own description" in run(*FILES).stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--tools", "tools.jsonl", "--queries", "absent.jsonl"), "absent.jsonl"),
        (("--tools", "broken.jsonl", "--queries", "queries.jsonl"), "broken.jsonl:1"),
        (("--tools", "queries.jsonl", "--queries", "queries.jsonl"), "no id"),
        (("--tools", ".", "--queries", "queries.jsonl"), "cannot be read"),
        (("--tools", "binary.jsonl", "--queries", "queries.jsonl"), "binary.jsonl cannot be read"),
        (("--tools", "deep.jsonl", "--queries", "queries.jsonl"), "deep.jsonl:1"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(arguments: tuple[str, ...], said: str) -> None:
    Path("broken.jsonl").write_text("{\n")
    Path("binary.jsonl").write_bytes(b"\xff\xfe\x00")
    Path("deep.jsonl").write_text("[" * 200_000 + "\n")
    result = run(*arguments, "--json")
    assert result.exit_code == 1
    assert said in json.loads(result.stdout)["error"]["message"]


def test_figures_are_printed_in_full_so_that_shares_can_be_compared_exactly() -> None:
    lines = [*QUERIES, {"query": "compile the kernel", "gold": ["gone"]}]
    Path("queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    assert report(*FILES)["recall@1"] == 2 / 3


def test_text_that_is_no_unicode_and_odd_schemas_are_measured_like_others() -> None:
    schema = {"properties": {"a": 5, "b": {"type": ["string", 3], "enum": {}}}, "required": 5}
    rows = [{**TOOLS[0], "description": "Read the contents of a file on disk \ud83d", "input_schema": schema}, TOOLS[1]]
    Path("tools.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    queries = [*QUERIES, {"query": "\ud83d \x00", "gold": ["files:read", "\ud83d"]}]
    Path("queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    assert report(*FILES)["n"] == 3


def test_files_of_other_editors_are_read() -> None:
    for file in ("tools.jsonl", "queries.jsonl"):
        text = Path(file).read_text().replace("\n", "\r\n")
        Path(file).write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n")
    assert report(*FILES)["recall@1"] == 1.0


def test_a_tool_of_the_distractors_with_a_known_id_is_left_out() -> None:
    rows = [{**row, "description": "Nothing of use"} for row in TOOLS]
    Path("distractors.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    timed = {"p50_ms", "p99_ms"}
    plain, distracted = report(*FILES), report(*FILES, "--distractors", "distractors.jsonl")
    assert {key: plain[key] for key in plain.keys() - timed} == {
        key: distracted[key] for key in distracted.keys() - timed
    }


def test_a_tool_listed_twice_is_told_and_the_first_counts() -> None:
    Path("tools.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*TOOLS, {**TOOLS[0], "name": "other"}]))
    result = run(*FILES, "--json")
    assert json.loads(result.stdout)["recall@1"] == 1.0
    assert "1 tool of tools.jsonl has the id of another one" in result.stderr


def test_right_tools_that_do_not_exist_are_told_and_count_as_missed() -> None:
    rows = [*QUERIES, {"query": "read and post", "gold": ["files:read", "gone:post"]}]
    Path("queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = run(*FILES, "--json")
    assert json.loads(result.stdout)["all_gold@10"] == 2 / 3
    assert "1 queries need a tool that is not there, for example 'gone:post'" in result.stderr


@pytest.mark.parametrize(("file", "said"), [("tools.jsonl", "holds no tools"), ("queries.jsonl", "holds no queries")])
@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file_is_an_error_and_no_row_of_zeros(file: str, said: str, content: str) -> None:
    Path(file).write_text(content)
    result = run(*FILES, "--json")
    assert result.exit_code == 1
    assert said in json.loads(result.stdout)["error"]["message"]


@pytest.mark.parametrize(
    "arguments",
    [("--tools", "tools.jsonl"), ("--distractors", "distractors.jsonl"), ("--model", "builtin")],
)
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


@pytest.fixture
def configured(home: Path) -> Path:
    """A configuration with the server of the notes."""
    home.mkdir()
    Path("server.py").write_text(SERVER)
    servers = {"notes": {"command": sys.executable, "args": [str(Path("server.py").absolute())]}}
    config = home / "config.yaml"
    config.write_text(json.dumps({"servers": servers}))
    return config


def test_the_own_catalog_gets_a_query_file_and_is_measured_with_it(home: Path, configured: Path) -> None:
    assert report("init") == {"file": str(home / "eval.jsonl"), "queries": 3}
    assert run("init").exit_code == 1
    assert "the tools' own words, which search finds easily" in run("init", "--force").stderr
    rows = [json.loads(line) for line in (home / "eval.jsonl").read_text().splitlines()]
    assert {"query": "Find notes by the words they contain", "gold": ["notes__search_notes"]} in rows
    rows.append({"query": "compile the kernel", "gold": ["notes__gone\ud83d"]})
    (home / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = report()
    assert set(data) == KEYS | {"model", "ranking", "hard_tools"}
    assert data["n"] == 4
    assert data["recall@3"] == 0.75
    assert data["hard_tools"] == [
        {"name": "notes__gone\ud83d", "missed": 1, "asked": 1, "reasons": ["no such tool in the catalog"]},
        {"name": "notes__qz", "missed": 0, "asked": 1, "reasons": ["it has no description"]},
    ]


def test_the_own_catalog_is_ranked_as_configured(home: Path, configured: Path) -> None:
    content = json.loads(configured.read_text())
    configured.write_text(json.dumps(content | {"search": {"ranking": "lexical"}}))
    report("init")
    data = report()
    assert (data["model"], data["ranking"]) == ("none", "lexical")


def test_blacklisted_tools_are_neither_asked_for_nor_found(home: Path, configured: Path) -> None:
    content = json.loads(configured.read_text())
    configured.write_text(json.dumps(content | {"gateway": {"blacklisted_tools": ["*:qz"]}}))
    assert report("init")["queries"] == 2
    assert report()["hard_tools"] == []


@pytest.mark.parametrize("target", ["taken/eval.jsonl", "folder"])
@pytest.mark.slow
def test_a_query_file_that_cannot_be_written_is_an_error_with_a_remedy(configured: Path, target: str) -> None:
    Path("taken").write_text("a file")
    Path("folder").mkdir()
    result = run("init", "--force", "--output", target, "--json")
    assert result.exit_code == 1
    error = json.loads(result.stdout)["error"]
    assert "cannot be written" in error["message"]
    assert "--output" in error["hint"]
