"""A request of several steps finds a tool for each of them."""

from __future__ import annotations

import numpy as np
import pytest

from pml_gateway.index import Embedder, ToolIndex
from pml_gateway.index.clauses import MAX_CLAUSES, combine, split_clauses, split_steps, with_room, with_server_evidence
from tests.index.fakes import HashedWords
from tests.index.tools import OFFICE, tool

STEPS = (
    "Read the contents of a file on disk, then execute a SQL statement on the database, "
    "predict the rain for the city and send an email to three recipients"
)


@pytest.mark.parametrize(
    ("request_", "clauses"),
    [
        ("read a file and send an email", ()),
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


def test_a_manual_is_not_split_without_end() -> None:
    assert len(split_clauses("Read the third file again. " * 500)) == MAX_CLAUSES


@pytest.mark.parametrize("embedder", [HashedWords(), None])
def test_every_step_of_a_long_request_gets_its_tool(embedder: Embedder | None) -> None:
    # one step is much easier to match than the others, on many servers
    crowd = [tool(f"copy{n}__send_email", "Send an email to recipients, send emails") for n in range(5)]
    found = [hit.key for hit in ToolIndex.build([*OFFICE, *crowd], embedder).search(STEPS, limit=8).hits]
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


def test_the_best_tool_of_each_step_comes_before_the_third_of_one_name() -> None:
    names = ("search", "search", "search", "search", "mail", "other")
    strengths = np.array([0.9, 0.8, 0.7, 0.6, 0.3, 0.5], dtype=np.float32)
    steps = np.array([[0.9, 0.8, 0.7, 0.6, 0, 0], [0, 0, 0, 0, 0.4, 0.1]], dtype=np.float32)
    ranked = np.argsort(-with_room(strengths, steps, names.__getitem__), kind="stable").tolist()
    assert ranked == [0, 1, 4, 2, 3, 5]


def test_tools_of_different_names_keep_their_order() -> None:
    names = ("search", "search", "find", "look_up", "mail")
    strengths = np.array([0.9, 0.8, 0.7, 0.6, 0.3], dtype=np.float32)
    steps = np.array([[0.9, 0.8, 0.7, 0.6, 0], [0, 0, 0, 0, 0.4]], dtype=np.float32)
    assert np.array_equal(with_room(strengths, steps, names.__getitem__), strengths)


@pytest.mark.parametrize(
    ("request_", "steps"),
    [
        ("find the issue and comment on it", ("find the issue", "comment on it")),
        (
            "fetch the page; save it as a file, then commit it",
            ("fetch the page", "save it as a file", "commit it"),
        ),
        ("Search for flights. Also, please book the cheapest one.", None),
        ("weather in London and Paris", ("weather in London and Paris",)),
        ("list issues, comments and reviews", ("list issues, comments and reviews",)),
        ("", ()),
    ],
)
def test_a_step_of_a_plan_begins_where_something_else_is_to_be_done(
    request_: str, steps: tuple[str, ...] | None
) -> None:
    found = split_steps(request_)
    assert len(found) == 2 if steps is None else found == steps
