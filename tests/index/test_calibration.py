"""Calibration turns evidence into scores that rise with it and mean coverage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pml_gateway.index.calibration import COVERAGE, LEXICAL_CURVE, Curve, fit_knots

STRENGTHS = st.lists(st.floats(-1, 40, width=32), min_size=1, max_size=30)


@given(STRENGTHS)
def test_scores_rise_with_strength_and_stay_below_one(strengths: list[float]) -> None:
    raw = np.sort(np.array(strengths, dtype=np.float32))
    scores = LEXICAL_CURVE.scores(raw)
    assert (np.diff(scores) >= 0).all()
    assert scores.min() >= 0
    assert scores.max() < 1


def test_fitted_knots_keep_the_promised_share_of_right_tools() -> None:
    evidence = np.random.default_rng(5).normal(size=4_000)
    curve = Curve(fit_knots(evidence, np.ones(4_000)), share=0.0, floor=0.0)
    scores = curve.scores(evidence.astype(np.float32))
    for threshold, coverage in COVERAGE:
        assert np.mean(scores >= threshold) == pytest.approx(coverage, abs=0.002)


def test_a_tool_scores_lower_beside_a_much_better_one() -> None:
    curve = Curve(((-1.0, 0.0), (1.0, 0.99)), share=0.6, floor=0.5)
    (alone,) = curve.scores(np.array([0.6], dtype=np.float32))
    beside, _ = curve.scores(np.array([0.6, 1.2], dtype=np.float32))
    assert beside < alone


def test_the_best_of_a_bad_lot_scores_lower_than_a_good_match() -> None:
    curve = Curve(((-1.0, 0.0), (1.0, 0.99)), share=0.6, floor=0.5)
    assert curve.scores(np.array([0.1], dtype=np.float32))[0] < curve.scores(np.array([0.5], dtype=np.float32))[0]


def test_knots_that_do_not_rise_are_refused() -> None:
    with pytest.raises(ValueError, match="do not increase"):
        Curve(((0.0, 0.5), (0.0, 0.6)), share=0.6, floor=0.5)
