"""A query that is a name, however written or mistyped, finds its tool first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pml_gateway.index.embedder import Embedder
from pml_gateway.index.evidence import Mask
from pml_gateway.index.names import NameIndex
from pml_gateway.index.search import ToolIndex
from pml_gateway.index.text import ToolDocument
from tests.index.catalogs import catalog
from tests.index.fakes import HashedWords
from tests.index.tools import OFFICE, tool

TOOLS = (
    *OFFICE,
    tool("github__search_repositories", "Find code projects"),
    tool("gitlab__search_repositories", "Find projects of a group"),
    tool("shop__search", "Search"),
)


@pytest.fixture(params=["hashed words", "no model"])
def index(request: pytest.FixtureRequest) -> ToolIndex:
    embedder: Embedder | None = HashedWords() if request.param == "hashed words" else None
    return ToolIndex.build(TOOLS, embedder)


@pytest.mark.parametrize(
    "query", ["read file", "readFile", "read-file", "READFILE", "files read file", "files.read_file"]
)
def test_another_way_to_write_a_name_ranks_first_but_below_an_exact_one(index: ToolIndex, query: str) -> None:
    first, *others = index.search(query, limit=2).hits
    assert (first.key, first.score) == ("files__read_file", 0.999)
    assert all(other.score < first.score for other in others)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("raed file", "files__read_file"),
        ("reed_file", "files__read_file"),
        ("wether forecst", "weather__forecast"),
        ("readfle", "files__read_file"),
        ("calender create event", "calendar__create-event"),
        ("serach inbox", "mail__search_inbox"),
    ],
)
def test_a_mistyped_name_finds_its_tool(index: ToolIndex, query: str, expected: str) -> None:
    assert index.search(query, limit=1).hits[0].key == expected


def test_a_name_on_several_servers_finds_all_of_them(index: ToolIndex) -> None:
    hits = index.search("search repositries", limit=3).hits
    assert {hit.key for hit in hits[:2]} == {"github__search_repositories", "gitlab__search_repositories"}
    assert {hit.score for hit in hits[:2]} == {0.999}


def test_a_word_that_some_tool_knows_is_not_corrected(index: ToolIndex) -> None:
    # "rows" is a word of a description, one letter from nothing in a name; "city" likewise
    assert index.search("rows", limit=1).hits[0].key == "database__run_query"


def test_slips_are_corrected_with_allowed_names_only() -> None:
    rest = [document for document in TOOLS if document.key != "weather__forecast"]
    allowed = np.array([document.key != "weather__forecast" for document in TOOLS])
    masked = ToolIndex.build(TOOLS, None).search("forecst message", limit=9, allowed=allowed)
    assert [hit.key for hit in masked.hits] == ["mail__send_message"]
    assert [hit.score for hit in masked.hits] == [
        hit.score for hit in ToolIndex.build(rest, None).search("forecst message", limit=9).hits
    ]


def test_words_of_a_sentence_are_left_as_they_are() -> None:
    embedder = HashedWords()
    index = ToolIndex.build(TOOLS, embedder)
    embedder.encoded.clear()
    index.search("please tell the fils of Anna about the serach tomorrow", limit=1)
    assert embedder.encoded[0] == "please tell the fils of Anna about the serach tomorrow"


def names_of(documents: Sequence[ToolDocument], query: str, allowed: Mask | None = None) -> list[str]:
    index = NameIndex(documents, slips_limit=10)
    spelled = index.spelled(query, allowed, lambda word: False)
    return [documents[at].key for at in index.near(spelled, allowed, lambda word: False)]


def test_words_of_names_are_corrected_in_a_large_catalog_too() -> None:
    tools = catalog(3_000)
    wanted = tools[17]
    verb, noun, number = wanted.name.split("_")
    mistyped = f"{verb} {noun[:2]}{noun[3:]} {number}"
    assert names_of(tools, mistyped) == [wanted.key]
    assert names_of(tools, mistyped, np.array([document is not wanted for document in tools])) == []
