"""Figures of search become targets, tables and a block of the README."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.list_metrics import cut_loss, lists
from benchmarks.quality_tables import markdown, replace_block, table
from benchmarks.quality_targets import Target, targets
from pml_gateway.index.evaluation import LabelledQuery, QueryOutcome
from tests.benchmarks.quality_report import measured_set, report


def by_name(found: list[Target]) -> dict[str, Target]:
    return {target.what: target for target in found}


def outcome(wanted: str, *scored: tuple[str, float]) -> QueryOutcome:
    return QueryOutcome(LabelledQuery("q", tuple(frozenset(letter) for letter in wanted)), scored, 1.0, 0)


def test_a_list_with_any_of_the_right_tools_counts() -> None:
    queries = [outcome(wanted).query for wanted in ("a", "ab", "z")]
    found = lists(queries, ["bac", "a", ""], 0.7, 20)
    assert found.right_tool_listed == pytest.approx(2 / 3)
    assert found.median_length == 1.0


def test_a_minimum_score_costs_the_right_tools_below_it() -> None:
    outcomes = [outcome("a", ("a", 0.29)), outcome("a", ("b", 0.9), ("a", 0.3)), outcome("z", ("a", 0.9))]
    loss = cut_loss(outcomes, 0.3, 5)
    assert [loss.recall_uncut, loss.recall_cut] == pytest.approx([2 / 3, 1 / 3])
    assert loss.report()["recall_loss"] == pytest.approx(1 / 3)


def test_shares_saved_with_six_digits_reach_the_counts_they_stand_for() -> None:
    golden = measured_set(0.95, 0.5, **{"recall@1": round(41 / 47, 6), "recall@5": round(46 / 47, 6)})
    found = by_name(targets(report(mcpproxy_golden=golden)))
    assert found["mcpproxy_golden recall@1"].met
    assert found["mcpproxy_golden recall@5"].met
    golden = measured_set(0.95, 0.5, **{"recall@1": round(40 / 47, 6)})
    assert found["mcpproxy_golden recall@1"].promised == ">= 41 of 47"
    assert by_name(targets(report(mcpproxy_golden=golden)))["mcpproxy_golden recall@1"].met is False


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    found = by_name(targets(report(other=measured_set(0.9, 0.5))))
    assert found["mcpproxy_golden nDCG@10"].verdict == "not measured"
    assert found["mcpproxy_golden with distractors, recall@5"].verdict == "not measured"
    partial = measured_set(0.95, 0.5, n=10)
    assert by_name(targets(report(mcpproxy_golden=partial)))["mcpproxy_golden recall@1"].met is None
    without_peer = measured_set(0.9, 0.5)
    del without_peer["systems"]["minilm_dense"]
    found = by_name(targets(report(other=without_peer)))
    assert found["every set, nDCG@10"].met is None
    assert found["mean nDCG@10, times minilm_dense"].met is None


@pytest.mark.parametrize(("distractors", "met"), [(60, None), (14_227, True)])
def test_the_promise_about_distractors_needs_all_of_them(distractors: int, met: bool | None) -> None:
    whole = report(mcpproxy_golden=measured_set(0.95, 0.5))
    whole["distracted"] = {"mcpproxy_golden": {**measured_set(0.8, 0.5), "distractors": distractors}}
    assert by_name(targets(whole))["mcpproxy_golden with distractors, recall@5"].met is met


def test_a_set_on_which_a_peer_is_better_is_named() -> None:
    found = by_name(targets(report(good=measured_set(0.9, 0.5), bad=measured_set(0.4, 0.5))))
    assert found["every set, nDCG@10"].met is False
    assert found["every set, nDCG@10"].measured == "1 of 2 sets; behind on bad (0.400, fastmcp_bm25 0.500)"
    assert found["mean nDCG@10, times fastmcp_bm25"].measured == "1.300"


def test_near_duplicates_of_ours_have_a_target_of_their_own() -> None:
    target = "near-duplicate tools of clouds (ours), recall@1"
    measured = report(other=measured_set(0.95, 0.5))
    assert by_name(targets(measured))[target].met is False
    measured["near_duplicates"] = {"cloud": measured_set(0.92, 0.5)}
    assert by_name(targets(measured))[target].met


def test_coverage_may_be_too_high_as_well_as_too_low() -> None:
    shares = {"coverage@0.5": 0.995, "coverage@0.6": 0.92, "coverage@0.7": 0.80}
    found = by_name(targets(report(one=measured_set(0.9, 0.5, **shares))))
    assert [found[f"coverage at {threshold}, mean over sets"].met for threshold in (0.5, 0.6, 0.7)] == [
        False,
        True,
        False,
    ]


def test_other_promises_are_compared_with_what_was_measured() -> None:
    found = by_name(targets(report(one=measured_set(0.9, 0.5))))
    assert found["hybrid_balanced, a right tool is listed, mean over sets"].met
    assert found["hybrid_balanced, list length, median over sets"].met
    assert found["empty answers once the right tools are gone, mean over sets"].met is False
    assert found["recall@5 lost by the default min_score, mean over sets"].met
    assert found["other languages, recall@5, against MiniLM"].met
    assert found["nDCG@10 lost by int8, mean over sets"].met is False


def test_the_tables_show_missed_targets_and_the_best_of_each_set() -> None:
    text = markdown(report(one=measured_set(0.9, 0.5), two=measured_set(0.8, 0.6)))
    assert "| nDCG@10 lost by int8, mean over sets | <= 0.005 | 0.010 | **missed** |" in text
    assert "| one | 45 | .500 | .500 | .500 | .500 | **.900** |" in text
    assert "| mean |  | .550 | .550 | .550 | .550 | **.850** |" in text
    assert "| no clauses | .725 | -0.125 | — | — |" in text
    assert "some-model@1" in text


def test_requests_over_real_servers_are_told_for_both_halves() -> None:
    text = markdown(report(one=measured_set(0.9, 0.8)))
    assert "| servers, in view | 45 | .500 | .500 | .500 | .500 | **.710** |" in text
    assert "| servers, unseen | 45 | .500 | .500 | .500 | .500 | **.660** |" in text


def test_tables_with_distractors_are_added_where_they_were_measured() -> None:
    whole = report(one=measured_set(0.9, 0.5))
    whole["distracted"] = {"one": {**measured_set(0.7, 0.5), "distractors": 14227}}
    text = markdown(whole)
    assert "nDCG@10 with 14,227 distractors in each catalog:" in text
    assert "| no clauses | .775 | -0.125 | .575 | -0.125 |" in text


def test_nothing_of_optional_parts_is_shown_where_they_were_not_measured() -> None:
    bare = report(one={**measured_set(0.9, 0.5), "ablations": {}})
    bare["int8"] = {}
    text = markdown(bare)
    assert "taken out" not in text
    assert "float32" not in text


def test_pipes_do_not_break_a_table() -> None:
    assert table(("a",), [["b|c"]]) == "| a |\n| --- |\n| b\\|c |"


TEXT = st.text(max_size=40).filter(lambda text: "<!--" not in text)


@given(TEXT, TEXT, TEXT, TEXT)
def test_only_the_block_is_replaced(before: str, old: str, new: str, after: str) -> None:
    text = f"{before}<!-- x:begin -->{old}<!-- x:end -->{after}"
    replaced = replace_block(text, "x", new)
    assert replaced == f"{before}<!-- x:begin -->\n\n{new.strip()}\n\n<!-- x:end -->{after}"
    assert replace_block(replaced, "x", new) == replaced


@pytest.mark.parametrize(
    "text",
    ["", "<!-- x:begin -->", "<!-- x:end --><!-- x:begin -->", "<!-- x:begin --><!-- x:begin --><!-- x:end -->"],
)
def test_a_text_without_the_markers_is_left_alone(text: str) -> None:
    with pytest.raises(ValueError, match="x:"):
        replace_block(text, "x", "new")
