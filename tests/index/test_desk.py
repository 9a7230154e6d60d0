"""Requests in the words of users over the bundled servers and some published ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from fastmcp.client import Client

from pml_gateway.demo.servers import calc, files, notes
from pml_gateway.example_queries.shipped import ServerTools, ShippedDefinition, ShippedExamples
from pml_gateway.index.embedder import Embedder
from pml_gateway.index.evaluation import tool_document
from pml_gateway.index.search import ToolIndex
from pml_gateway.index.text import ToolDocument
from pml_gateway.index.wording import in_words_of_answers
from tests.index.tools import REPOSITORY, read_rows

DATA = REPOSITORY / "tests" / "data"
PUBLISHED = ("filesystem", "git", "memory", "time", "everything")
ROWS = read_rows(DATA / "desk" / "queries.jsonl")
SERVED = [row for row in ROWS if "gold_groups" in row]
NOT_SERVED = [row for row in ROWS if "unknown" in row]
Rows = list[dict[str, Any]]


async def bundled(folder: Path) -> dict[str, Rows]:
    """The tools that the bundled servers list, as rows of the data files."""
    servers = {"calc": calc.build(), "files": files.build(folder), "notes": notes.build(folder / "notes.sqlite")}
    found: dict[str, Rows] = {}
    for name, server in servers.items():
        async with Client(server) as client:
            listed = await client.list_tools()
        found[name] = [
            {
                "id": each.name,
                "name": each.name,
                "title": each.title,
                "description": each.description,
                "input_schema": each.input_schema,
            }
            for each in listed
        ]
    return found


def documents(server: str, rows: Rows) -> list[ToolDocument]:
    """What search reads of the tools of a server, with the examples that are shipped for them."""
    listing = ServerTools(tuple(ShippedDefinition(row["name"], row["description"]) for row in rows))
    [examples] = ShippedExamples().examples_of([listing])
    return [
        replace(tool_document(row), key=f"{server}__{row['name']}", server=server, examples=asked)
        for row, asked in zip(rows, examples, strict=True)
    ]


@pytest.fixture(scope="module")
def desk(shipped: Embedder, tmp_path_factory: pytest.TempPathFactory) -> ToolIndex:
    rows = read_rows(DATA / "servers" / "tools.jsonl")
    servers = anyio.run(bundled, tmp_path_factory.mktemp("desk"))
    servers |= {name: [row for row in rows if row["server"] == name] for name in PUBLISHED}
    return ToolIndex.build([each for name in servers for each in documents(name, servers[name])], shipped)


def share_found(index: ToolIndex, row: dict[str, Any], depth: int) -> float:
    """The share of the steps of a request that have a tool among so many first hits."""
    groups = row["gold_groups"]
    found = {hit.key for hit in index.search(row["query"], limit=depth).hits if hit.score >= 0.3}
    return sum(bool(found & set(group)) for group in groups) / len(groups)


@pytest.mark.slow
def test_as_many_first_hits_as_there_are_steps_serve_them(desk: ToolIndex) -> None:
    first = {row["query"]: share_found(desk, row, len(row["gold_groups"])) for row in SERVED}
    assert len(first) == 40
    assert sum(first.values()) >= 35, [query for query, share in first.items() if share < 1]
    assert sum(share_found(desk, row, 5) for row in SERVED) >= 38.5


@pytest.mark.parametrize(
    "query",
    [
        "days between two dates",
        "how long until christmas",
        "how many weeks are left before new year",
        "find all files with TODO",
        "see what changed, stage it and commit",
        "check the status, stage everything, commit",
        "create a new branch, commit and show the log",
        "create a folder, move the reports into it and list what is there",
        "get rid of the note about the dentist",
    ],
)
def test_what_was_not_found_before_comes_first(desk: ToolIndex, query: str) -> None:
    [row] = [row for row in SERVED if row["query"] == query]
    assert share_found(desk, row, len(row["gold_groups"])) == 1


SEARCH_TEXT = {"files__search_text"}
ADD_DURATION = {"calc__add_duration"}
RECALL = {"memory__search_nodes", "memory__open_nodes", "memory__read_graph"}

ASKED: dict[str, set[str]] = {
    "what day will it be in three weeks": ADD_DURATION,
    "what was the date 90 days ago": ADD_DURATION,
    "what will the date be 2 months from today": ADD_DURATION,
    "what's the date in two weeks": ADD_DURATION,
    "when is 100 days after 2026-01-01": ADD_DURATION,
    "what time will it be in 45 minutes": ADD_DURATION,
    "which day is it 3 days before christmas": ADD_DURATION,
    "which date is 10 working days after friday": {"calc__add_business_days"},
    "which files mention the word budget": SEARCH_TEXT,
    "which documents contain the phrase annual report": SEARCH_TEXT,
    "which of my files say confidential": SEARCH_TEXT,
    "what files have the string password in them": SEARCH_TEXT,
    "in which file does the word invoice appear": SEARCH_TEXT,
    "do any files mention Berlin": SEARCH_TEXT,
    "is the word deadline in any file": SEARCH_TEXT,
    "which notes talk about the dentist": {"notes__search_notes"},
    "where is parse_config used": SEARCH_TEXT,
    "where is load_settings called": SEARCH_TEXT,
    "where is the function main defined": SEARCH_TEXT,
    "who calls get_user": SEARCH_TEXT,
    "which code uses MAX_RETRIES": SEARCH_TEXT,
    "find usages of render_page": SEARCH_TEXT,
    "list all references to API_KEY": SEARCH_TEXT,
    "which modules import json_utils": SEARCH_TEXT,
    "where is handleClick declared": SEARCH_TEXT,
    "what do you know about Ada": RECALL,
    "do you know anything about the Miller family": RECALL,
    "what do you remember about my sister": RECALL,
    "did I tell you about the project deadline": RECALL,
    "what have I told you about Peter": RECALL,
}
"""Questions in other words than those of the tools that answer them."""


@pytest.mark.parametrize("query", ASKED)
def test_a_question_finds_the_tool_that_answers_it(desk: ToolIndex, query: str) -> None:
    first = desk.search(query, limit=1)
    assert first.hits[0].key in ASKED[query]
    assert first.hits[0].score > 0.7
    assert first.unknown == ()


@pytest.mark.parametrize(
    "query",
    [
        "what time is it in tokyo",
        "remind me in 3 days",
        "how many days are there between two dates",
        "schedule a meeting 2 weeks from now",
        "list the files of a folder",
        "which tools are used most",
        "where is my wallet",
        "create a file called parse_config.py",
        "do you know of any good restaurants",
        "say hello",
        "what is called a monad",
        "",
    ],
)
def test_other_requests_are_read_as_they_are(query: str) -> None:
    assert in_words_of_answers(query) == query


@pytest.mark.parametrize("row", NOT_SERVED, ids=lambda row: row["query"])
def test_a_word_that_no_tool_knows_is_named_and_halves_the_scores(desk: ToolIndex, row: dict[str, Any]) -> None:
    result = desk.search(row["query"], limit=5)
    assert row["unknown"] in result.unknown
    assert max(hit.score for hit in result.hits) < 0.5


@pytest.mark.parametrize(
    "query",
    [
        "create a directory",
        "create a folder for photos",
        "what time is it in tokyo",
        "find all files with TODO",
        "remember that Ada likes tea",
        'replace "github" by "gitlab" in config.ini',
        "read https://github.com/a/b/README.md",
        "hash slack.zip",
        "erase the file",
        "resize the photo",
        "draft a memo",
        "git_commit",
        "git commit",
        "",
    ],
)
def test_values_and_other_words_for_what_tools_do_are_not_unknown(desk: ToolIndex, query: str) -> None:
    assert desk.search(query, limit=5).unknown == ()


@pytest.mark.slow
def test_a_word_is_known_by_a_tool_that_the_client_may_see_or_by_its_server(desk: ToolIndex, shipped: Embedder) -> None:
    github = ToolDocument("github__create_issue", "github", "create_issue", "", "Open an issue.", ("title",))
    index = ToolIndex.build([*desk.documents, github], shipped)
    query = "create a github issue"
    assert index.search(query, limit=1).unknown == ()
    assert index.search(query, limit=1).hits[0].key == github.key
    others = np.asarray([each.server != "github" for each in index.documents])
    assert index.search(query, limit=1, allowed=others) == desk.search(query, limit=1)
