"""A request of several steps finds a tool for each of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.index.clauses import (
    MAX_CLAUSES,
    combine,
    interleaved,
    split_clauses,
    with_server_evidence,
)
from pml_gateway.index.embedder import Embedder
from pml_gateway.index.search import ToolIndex
from tests.index.fakes import HashedWords
from tests.index.tools import OFFICE, tool
from tests.support.examples import examples

LONG = ("a step of five words",) * 3

STEPS = (
    "Read the contents of a file on disk, then execute a SQL statement on the database, "
    "predict the rain for the city and send an email to three recipients"
)


@pytest.mark.parametrize(
    ("request_", "clauses"),
    [
        ("read a file and send an email", ("read a file", "send an email")),
        (
            "Find the invoice of last month and send it to my accountant",
            ("Find the invoice of last month", "send it to my accountant"),
        ),
        (
            "I am planning a trip to Rome and Paris. Book me a hotel with breakfast! Thanks.",
            ("I am planning a trip to Rome and Paris.", "Book me a hotel with breakfast! Thanks."),
        ),
        ("give me the number of movies directed by Sofia Coppola in her whole life", ()),
        ("東京の天気を調べて、明日の予定を確認してください。それから田中さんにメールを送ってください。", None),
    ],
)
def test_a_request_is_split_where_a_new_step_begins(request_: str, clauses: tuple[str, ...] | None) -> None:
    found = split_clauses(request_)
    assert len(found) == 2 if clauses is None else found == clauses


@pytest.mark.parametrize(
    ("request_", "clauses"),
    [
        ("add the files & commit them", ("add the files", "commit them")),
        ("fetch the page; save it to a.md; commit it", ("fetch the page;", "save it to a.md;", "commit it")),
        ("get the logs, write them to a file", ("get the logs", "write them to a file")),
        ("what time is it in Rome, then convert 9am to UTC", ("what time is it in Rome", "convert 9am to UTC")),
        ("geocode the address and get its elevation", ("geocode the address", "get its elevation")),
    ],
)
def test_a_short_request_is_split_between_commands(request_: str, clauses: tuple[str, ...]) -> None:
    assert split_clauses(request_) == clauses


def test_verbs_that_share_an_object_and_objects_that_share_a_verb_both_get_it() -> None:
    assert split_clauses("please stage and commit changes in git") == (
        "please stage changes in git",
        "commit changes in git",
    )
    assert split_clauses("remember a person and how they relate to a company") == (
        "remember a person",
        "remember how they relate to a company",
    )


@pytest.mark.parametrize(
    "request_",
    [
        "find and replace a word in a file",
        "list issues and pull requests",
        "drag and drop the card",
        "commits and branches",
        "news and update notes",
        "weather in Rome and Paris",
    ],
)
def test_one_action_on_several_things_is_one_step(request_: str) -> None:
    assert split_clauses(request_) == ()


def test_a_manual_is_not_split_without_end() -> None:
    assert len(split_clauses("Read the third file again. " * 500)) == MAX_CLAUSES


@settings(max_examples=examples(60))
@given(st.text("ab ,;.&\n", max_size=60).map(lambda text: text.replace("a", "get ").replace("b", "and ")))
def test_whatever_is_asked_has_no_steps_or_several_with_words(request_: str) -> None:
    found = split_clauses(request_)
    assert len(found) == 0 or 2 <= len(found) <= MAX_CLAUSES
    assert all(clause.strip() for clause in found)


@pytest.mark.parametrize("embedder", [HashedWords(), None])
def test_every_step_of_a_long_request_gets_its_tool(embedder: Embedder | None) -> None:
    # one step is much easier to match than the others, on many servers
    crowd = [tool(f"copy{n}__send_email", "Send an email to recipients, send emails") for n in range(5)]
    found = [hit.key for hit in ToolIndex.build([*OFFICE, *crowd], embedder).search(STEPS, limit=4).hits]
    assert {"files__read_file", "database__run_query", "weather__forecast"} <= set(found)
    assert any("send" in key for key in found)


def test_the_best_tools_of_all_clauses_meet_on_one_level() -> None:
    whole = np.zeros(3, dtype=np.float32)
    clauses = np.array([[0.9, 0.5, 0.1], [0.1, 0.1, 0.3]], dtype=np.float32)
    first, second, third = combine(whole, clauses)
    assert first == pytest.approx(third)
    assert second < first


def test_a_tool_counts_by_the_best_tools_of_its_server() -> None:
    strengths = np.array([0.8, 0.7, 0.7, 0.8], dtype=np.float32)
    adjusted = with_server_evidence(strengths, np.array([0, 0, 0, 1]))
    alone = with_server_evidence(strengths[[0, 3]], np.array([0, 1]))
    assert adjusted.argsort()[-1] == 3
    assert alone[0] == alone[1]


def test_the_best_tool_of_each_step_comes_before_the_others_of_one_that_has_many() -> None:
    strengths = np.array([0.9, 0.8, 0.7, 0.6, 0.3, 0.5], dtype=np.float32)
    steps = np.array([[0.9, 0.8, 0.7, 0.6, 0, 0], [0, 0, 0, 0, 0.9, 0.1]], dtype=np.float32)
    dealt = interleaved(strengths, strengths, steps, LONG[:2])
    assert np.argsort(-dealt, kind="stable").tolist() == [0, 4, 1, 2, 3, 5]


def test_brief_steps_do_not_all_get_the_tool_that_the_whole_request_is_about() -> None:
    whole = np.array([0.9, 0.5, 0.5, 0.1], dtype=np.float32)
    steps = np.array([[0.6, 0.1, 0.1, 0], [0.3, 0.6, 0.1, 0], [0.2, 0.1, 0.5, 0]], dtype=np.float32)
    brief = ("see what changed", "stage it", "commit")
    dealt = interleaved(whole, whole, steps, brief)
    assert set(np.argsort(-dealt, kind="stable")[:3]) == {0, 1, 2}
    same = np.array([[0.6, 0.1, 0.1, 0]] * 2, dtype=np.float32)
    assert np.array_equal(interleaved(whole, whole, same, ("read a", "read b")), whole), "both ask for the same"


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(*[st.floats(0, 1, width=32)] * 4), min_size=1, max_size=12))
def test_interleaving_keeps_the_strengths_and_the_order_of_all_others(rows: list[tuple[float, ...]]) -> None:
    whole, *steps = np.array(rows, dtype=np.float32).T
    dealt = interleaved(whole, whole, np.stack(steps), LONG)
    assert sorted(dealt) == sorted(whole)
    assert dealt[((whole + np.stack(steps)) / 2).argmax(axis=1)].min() >= np.sort(whole)[::-1][: len(steps)].min()
