"""The figures of `pml eval`, by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pml_gateway.errors import InvalidInputError
from pml_gateway.index.evaluation import (
    LIST_CAP,
    LabelledQuery,
    QueryOutcome,
    figures,
    hard_tools,
    labelled_queries,
    ndcg,
    percentile,
    read_rows,
    reciprocal_rank,
    tool_documents,
)
from tests.index.tools import tool

KEYS = {
    "n",
    *(f"recall@{depth}" for depth in (1, 3, 5, 10)),
    "ndcg@10",
    "mrr",
    "hit@10",
    "all_gold@10",
    *(f"{name}@{threshold}" for name in ("coverage", "list_median") for threshold in (0.5, 0.6, 0.7)),
    "empty_rate",
    "tokens_5_hits",
    "p50_ms",
    "p99_ms",
}


def query(*groups: str) -> LabelledQuery:
    """A query needing one tool of each group, groups written as letters."""
    return LabelledQuery("any", tuple(frozenset(group) for group in groups))


def outcome(
    wanted: LabelledQuery, found: str, scores: tuple[float, ...] = (), milliseconds: float = 1.0
) -> QueryOutcome:
    """An outcome whose hits are letters, scoring as given or 0.9 each."""
    return QueryOutcome(wanted, tuple(zip(found, scores or (0.9,) * len(found), strict=True)), milliseconds, 10)


def test_all_figures_of_a_small_run() -> None:
    measured = figures(
        [
            outcome(query("a"), "abc", (0.9, 0.65, 0.2), 1.0),
            outcome(query("x", "yz"), "abzx", (0.8, 0.7, 0.6, 0.4), 3.0),
        ],
        min_score=0.3,
    )
    assert set(measured) == KEYS
    assert measured["n"] == 2
    assert [measured[f"recall@{depth}"] for depth in (1, 3, 5, 10)] == [0.5, 0.75, 1.0, 1.0]
    assert measured["mrr"] == pytest.approx((1 + 1 / 3) / 2)
    assert (measured["hit@10"], measured["all_gold@10"]) == (1.0, 1.0)
    assert [measured[f"coverage@{threshold}"] for threshold in (0.5, 0.6, 0.7)] == [0.75, 0.75, 0.5]
    assert [measured[f"list_median@{threshold}"] for threshold in (0.5, 0.6, 0.7)] == [2.5, 2.5, 1.5]
    assert (measured["empty_rate"], measured["tokens_5_hits"], measured["p50_ms"]) == (0.0, 10.0, 2.0)


def test_a_group_is_satisfied_by_any_of_its_tools_and_counts_once() -> None:
    both, one = query("ab", "c"), query("ab")
    assert ndcg(["a", "b", "c"], both) == pytest.approx((1 + 1 / math.log2(4)) / (1 + 1 / math.log2(3)))
    assert ndcg(["a", "b"], one) == 1.0
    assert reciprocal_rank(["x", "b"], one) == 0.5
    assert reciprocal_rank(["x"], one) == 0.0


def test_only_ten_ranks_count() -> None:
    measured = figures([outcome(query("k"), "abcdefghijk")], min_score=0.3)
    assert (measured["hit@10"], measured["ndcg@10"], measured["mrr"]) == (0.0, 0.0, 0.0)
    assert measured["coverage@0.7"] == 1.0


def test_listed_tools_are_counted_up_to_the_cap() -> None:
    long = QueryOutcome(query("a"), tuple((f"t{number}", 0.9) for number in range(50)), 1.0, 0)
    assert figures([long], min_score=0.3)["list_median@0.5"] == LIST_CAP


def test_a_search_is_empty_when_no_tool_reaches_the_minimum() -> None:
    outcomes = [outcome(query("a"), "a", (0.29,)), outcome(query("a"), ""), outcome(query("a"), "a", (0.3,))]
    assert figures(outcomes, min_score=0.3)["empty_rate"] == pytest.approx(2 / 3)


def test_nothing_measured_gives_zeros() -> None:
    assert set(figures([], min_score=0.3).values()) == {0.0}


def test_percentiles_are_interpolated() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([7.0], 99) == 7.0


def test_gold_groups_win_over_gold() -> None:
    rows = read_rows(
        ['{"query": "q", "gold": ["a", "b"]}', "", '{"query": "q", "gold": ["a"], "gold_groups": [["a", "b"]]}'], "q"
    )
    assert [found.groups for found in labelled_queries(rows, "q")] == [
        (frozenset("a"), frozenset("b")),
        (frozenset("ab"),),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"query": "q"}',
        '{"query": "q", "gold": []}',
        '{"query": "q", "gold": "a"}',
        '{"query": "q", "gold": 1}',
        '{"query": "q", "gold": [1]}',
        '{"query": "q", "gold": [null]}',
        '{"query": " ", "gold": ["a"]}',
        '{"gold": ["a"]}',
        '{"query": "q", "gold_groups": [[]]}',
        '{"query": "q", "gold_groups": [["a"], "b"]}',
        '{"query": "q", "gold_groups": {"a": 1}}',
        '{"query": "q", "gold_groups": [[["a"]]]}',
    ],
)
def test_a_malformed_query_is_named_in_the_error(line: str) -> None:
    with pytest.raises(InvalidInputError, match=r"queries\.jsonl"):
        list(labelled_queries(read_rows([line], "queries.jsonl"), "queries.jsonl"))


def test_a_tool_that_is_named_twice_is_needed_once() -> None:
    rows: list[dict[str, Any]] = [
        {"query": "q", "gold": ["a", "a", "b"]},
        {"query": "q", "gold": ["a"], "gold_groups": [["a", "b"], ["b", "a"]]},
    ]
    assert [found.groups for found in labelled_queries(rows, "q")] == [
        (frozenset("a"), frozenset("b")),
        (frozenset("ab"),),
    ]


def test_a_tool_in_several_groups_serves_the_one_that_others_cannot() -> None:
    assert ndcg(["a", "b"], query("ab", "a")) == 1.0


@pytest.mark.parametrize("row", [{"description": 5}, {"server": ["s"]}, {"title": {}}])
def test_a_tool_whose_text_is_none_is_named_in_the_error(row: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError, match=r"'s:a' in tools\.jsonl is no text"):
        list(tool_documents([{"id": "s:a", "name": "a", **row}], "tools.jsonl"))


@pytest.mark.parametrize("schema", [None, [], "x", {"properties": []}, {"properties": None}])
def test_a_tool_with_an_odd_schema_has_no_parameters(schema: object) -> None:
    (document,) = tool_documents([{"id": "a", "name": "a", "input_schema": schema}], "tools.jsonl")
    assert document.parameters == ()


def test_a_tool_without_an_id_is_named_in_the_error() -> None:
    with pytest.raises(InvalidInputError, match="no id"):
        list(tool_documents([{"name": "a"}], "tools.jsonl"))


def test_a_tool_reads_its_parameters_from_its_schema() -> None:
    row = {"id": "s:a", "server": "s", "name": "a", "input_schema": {"properties": {"path": {}, "mode": {}}}}
    (document,) = tool_documents([row], "tools.jsonl")
    assert (document.server, document.description, document.parameters) == ("s", "", ("path", "mode"))


def test_tools_that_queries_miss_are_named_with_the_reasons() -> None:
    documents = [
        tool("a__x", ""),
        tool("b__get", "Get it"),
        tool("c__sync", "Copies all changes to the server"),
        tool("d__sync", "copies all  changes to the server"),
        tool("e__good", "Sends a message to a channel"),
    ]
    found = tuple((f"rival{number}", 0.9) for number in range(5))
    outcomes = [
        *(
            QueryOutcome(LabelledQuery("q", (frozenset([key]),)), found, 1.0, 0)
            for key in ("a__x", "b__get", "c__sync", "gone", "a__x")
        ),
        QueryOutcome(LabelledQuery("q", (frozenset(["e__good"]),)), (("e__good", 0.9),), 1.0, 0),
    ]
    hard = {row["name"]: row for row in hard_tools(documents, outcomes)}
    assert list(hard) == ["a__x", "b__get", "c__sync", "gone", "d__sync"]
    assert (hard["a__x"]["missed"], hard["a__x"]["asked"]) == (2, 2)
    assert "no description" in hard["a__x"]["reasons"][0]
    assert "found instead: rival0, rival1, rival2 and 2 more" in hard["a__x"]["reasons"][1]
    assert "2 words" in hard["b__get"]["reasons"][0]
    assert hard["c__sync"]["reasons"] == ["duplicate: d__sync has the same description"]
    assert hard["gone"]["reasons"] == ["no such tool in the catalog"]


def test_tools_whose_text_is_at_fault_are_named_even_where_queries_find_them() -> None:
    documents = [
        tool("a__list_users", "Returns all users of the team"),
        tool("b__get_users", "returns all users of the  team"),
        tool("c__ping", ""),
        tool("d__ping", ""),
        tool("e__look", "查看指定城市的天气预报"),
    ]
    outcomes = [
        QueryOutcome(LabelledQuery("q", (frozenset([row.key]),)), ((row.key, 0.9),), 1.0, 0) for row in documents
    ]
    hard = {row["name"]: row for row in hard_tools(documents, outcomes)}
    assert list(hard) == ["a__list_users", "b__get_users", "c__ping", "d__ping"]
    assert {(row["missed"], row["asked"]) for row in hard.values()} == {(0, 1)}
    assert hard["a__list_users"]["reasons"] == ["duplicate: b__get_users has the same description"]
    assert hard["c__ping"]["reasons"] == [
        "it has no description",
        "duplicate: d__ping has the same name and no description either",
    ]


def test_a_tool_that_no_search_comes_near_is_named_too() -> None:
    outcomes = [QueryOutcome(LabelledQuery("q", (frozenset(["a__x"]),)), (), 1.0, 0)]
    (hard,) = hard_tools([tool("a__x", "Sends a message to a channel")], outcomes)
    assert hard["reasons"] == ["nothing was found"]
