"""The verb of a request tells tools apart that differ by what they do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.index.calibration import shipped_calibration
from pml_gateway.index.embedder import Embedder
from pml_gateway.index.search import ToolIndex
from pml_gateway.index.text import ToolDocument, dense_text
from pml_gateway.index.verbs import (
    LEXICON,
    LOOKUP_LOSS,
    OPPOSITE_LOSS,
    OTHER_VERBS,
    VERBS,
    actions_of,
    in_words_of_tools,
    losses,
)
from pml_gateway.types import Ranking
from tests.index.fakes import HashedWords
from tests.index.tools import tool
from tests.support.examples import examples

LIST, CREATE, UPDATE, DELETE = (
    tool(f"tracker__{name}") for name in ("list_issues", "createIssue", "issue-update", "delete_issue")
)


def lost(request: str, *tools: ToolDocument) -> list[float]:
    """What each tool loses to one request."""
    found = losses((request,), np.array([actions_of(each) for each in tools], dtype=np.int64))[0]
    return [round(float(each), 3) for each in found]


def test_every_verb_stands_once_in_the_lexicon() -> None:
    words = " ".join((OTHER_VERBS, *(words for row in LEXICON.values() for words in row))).split()
    assert sorted(words) == sorted(set(words))
    assert set(words) <= VERBS


def test_to_generate_something_is_to_add_it() -> None:
    assert lost("generate a report", tool("s__delete_report"), tool("s__generate_report")) == [OPPOSITE_LOSS, 0]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("show the issue", [0, OPPOSITE_LOSS, OPPOSITE_LOSS, OPPOSITE_LOSS]),
        ("Could you please add an issue", [LOOKUP_LOSS, 0, 0, OPPOSITE_LOSS]),
        ("how do I remove an issue?", [LOOKUP_LOSS, OPPOSITE_LOSS, 0, 0]),
        ("what issues are open", [0, OPPOSITE_LOSS, OPPOSITE_LOSS, OPPOSITE_LOSS]),
        ("change its title", [LOOKUP_LOSS, 0, 0, OPPOSITE_LOSS]),
        ("get rid of the issue", [LOOKUP_LOSS, OPPOSITE_LOSS, 0, 0]),
        ("please jot down an issue", [LOOKUP_LOSS, 0, 0, OPPOSITE_LOSS]),
        ("look for issues", [0, OPPOSITE_LOSS, OPPOSITE_LOSS, OPPOSITE_LOSS]),
    ],
)
def test_a_verb_counts_against_the_tools_that_do_the_opposite(request_: str, expected: list[float]) -> None:
    assert lost(request_, LIST, CREATE, UPDATE, DELETE) == expected


@pytest.mark.parametrize(
    "request_",
    [
        "",
        "issues",
        "don't delete issues",
        "never create issues",
        "create or delete issues",
        "update history",
        "update of the issue",
        "commit message",
        "Ein Thema anlegen",
        "課題を作成する",
    ],
)
def test_what_names_no_certain_action_counts_against_no_tool(request_: str) -> None:
    assert lost(request_, LIST, CREATE, UPDATE, DELETE) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("request_", "opposite"),
    [
        ("lock the door", "door_unlock"),
        ("stop the container", "start_container"),
        ("disable the rule", "rule__enable_rule"),
        ("close the tab", "open_tab"),
        ("upload a photo", "downloadPhoto"),
        ("unsubscribe me", "subscribe"),
    ],
)
def test_opposites_of_other_kinds_count_as_well(request_: str, opposite: str) -> None:
    assert lost(request_, tool(f"s__{opposite}"), tool("s__status")) == [OPPOSITE_LOSS, 0]


def test_a_tool_of_several_actions_is_ruled_out_by_none_that_leaves_one() -> None:
    assert lost("delete the file", tool("s__create_or_delete_file"), tool("s__create_file")) == [0, OPPOSITE_LOSS]


def test_the_description_says_what_a_name_leaves_open() -> None:
    assert lost("delete the memo", tool("s__memo", "Creates a memo"), tool("s__memo2", "A memo")) == [OPPOSITE_LOSS, 0]


@pytest.mark.parametrize(
    ("request_", "added"),
    [
        ("Stage all files", "Stage add all files"),
        ("please save it to notes/a.md", "please save write it to notes/a.md file"),
        ("read config.json then x", "read config.json file then x"),
        ("read the config.json file", "read the config.json file"),
        ("open https://example.com/a.html", "open https://example.com/a.html"),
        ("mail a.json@example.com", "mail a.json@example.com"),
        ("the first stage", "the first stage"),
    ],
)
def test_a_request_gets_the_words_of_tools_beside_its_own(request_: str, added: str) -> None:
    assert in_words_of_tools(request_) == added


@pytest.mark.parametrize("embedder", [HashedWords(), None])
def test_near_misses_are_ranked_by_what_they_do(embedder: Embedder | None) -> None:
    # in key order the wrong one of equals would come first
    create, delete = tool("graph__put_person", "Creates a person"), tool("graph__drop_person", "Deletes a person")
    index = ToolIndex.build([create, delete, tool("mail__send")], embedder)
    assert index.search("add a person", limit=1).hits[0].key == create.key
    assert index.search("forget a person", limit=1).hits[0].key == delete.key


def test_ranking_by_meaning_alone_reads_no_verbs() -> None:
    embedder = HashedWords()
    cosines = embedder.encode([dense_text(CREATE), dense_text(DELETE)]) @ embedder.encode(["delete issue"])[0]
    positions, raw = ToolIndex.build([CREATE, DELETE], embedder).strengths("delete issue", 2, None, Ranking.DENSE)
    assert raw.tolist() == pytest.approx(shipped_calibration().transferred(embedder).cosines(cosines)[positions])


@settings(max_examples=examples(60))
@given(st.text(max_size=60), st.text(max_size=40), st.text(max_size=60))
def test_no_text_costs_a_tool_more_than_the_opposite(request_: str, name: str, description: str) -> None:
    assert 0 <= lost(request_, ToolDocument("k", "s", name, "", description, ()))[0] <= OPPOSITE_LOSS
