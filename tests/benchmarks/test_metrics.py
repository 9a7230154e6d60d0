from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.metrics import median, percentile, ratios, rotated, round_ratio, summary

SERIES = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=50)


@given(SERIES)
def test_the_median_is_that_of_the_standard_library(values: list[float]) -> None:
    assert median(values) == pytest.approx(statistics.median(values))


@given(SERIES, st.floats(0, 100))
def test_a_percentile_lies_between_the_extremes(values: list[float], percent: float) -> None:
    assert min(values) - 1e-9 <= percentile(values, percent) <= max(values) + 1e-9


def test_percentiles_interpolate() -> None:
    assert percentile([10, 20, 30, 40], 25) == 17.5
    assert percentile([5], 95) == 5


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1], -1), ([1], 101)])
def test_nothing_measured_or_no_such_percentile_is_an_error(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match=r"no values|percent must be"):
        percentile(values, percent)


def test_a_summary_names_count_median_and_spread() -> None:
    assert summary([1, 2, 3]) == {"count": 3, "p50": 2, "p95": pytest.approx(2.9), "min": 1, "max": 3}


def test_ratios_compare_within_a_round_so_a_slow_round_cancels_out() -> None:
    series = {"direct": [1.0, 10.0, 1.0], "peer": [2.0, 20.0, 2.0]}
    assert ratios(series, "direct") == {"direct": 1.0, "peer": 2.0}


def test_there_is_no_ratio_to_a_peer_that_was_not_measured() -> None:
    assert ratios({"peer": [1.0]}, "direct") == {}


def test_series_of_different_rounds_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="2 rounds cannot be compared with 1"):
        round_ratio([1, 2], [1])


def test_every_peer_runs_first_once() -> None:
    turns = [rotated(["a", "b", "c"], turn) for turn in range(3)]
    assert turns == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    assert rotated([], 1) == []
