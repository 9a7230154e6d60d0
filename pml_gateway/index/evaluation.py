"""Evaluation: turns what searches found for labelled queries into figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles

from pml_gateway.index.labelled import LabelledQuery

DEPTH = 10
"""Ranking figures look at this many hits and at no score."""

RECALL_DEPTHS = (1, 3, 5, 10)
THRESHOLDS = (0.5, 0.6, 0.7)

LIST_CAP = 20
"""`max_underlying_tools` of the preset `hybrid_balanced`; it cuts the lists whose lengths are reported."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one search found, how long it took, and what its first five hits cost the model that asked."""

    query: LabelledQuery
    scored: tuple[tuple[str, float], ...]
    """(key, score), best first; deep enough to hold every tool that reaches the lowest threshold."""
    milliseconds: float
    tokens: int


def figures(outcomes: Sequence[Outcome], *, min_score: float) -> dict[str, float]:
    """All figures of `pml eval`: means over the queries, medians where the name says so.

    A group counts once, whichever of its tools is found. `coverage@t` is the share of needed tools among those scoring
    at least t, `empty_rate` the share of queries for which no tool reaches `min_score`.
    """
    ranked = [([key for key, _ in outcome.scored[:DEPTH]], outcome.query) for outcome in outcomes]
    lists = [_lists(outcome) for outcome in outcomes]
    milliseconds = [outcome.milliseconds for outcome in outcomes]
    return {
        "n": len(outcomes),
        **{f"recall@{depth}": _mean(recall(keys[:depth], query) for keys, query in ranked) for depth in RECALL_DEPTHS},
        f"ndcg@{DEPTH}": _mean(ndcg(keys, query) for keys, query in ranked),
        "mrr": _mean(reciprocal_rank(keys, query) for keys, query in ranked),
        f"hit@{DEPTH}": _mean(recall(keys, query) > 0 for keys, query in ranked),
        f"all_gold@{DEPTH}": _mean(recall(keys, query) == 1 for keys, query in ranked),
        **{
            f"coverage@{threshold}": _mean(
                recall(kept[at], outcome.query) for kept, outcome in zip(lists, outcomes, strict=True)
            )
            for at, threshold in enumerate(THRESHOLDS)
        },
        **{
            f"list_median@{threshold}": float(median([min(len(kept[at]), LIST_CAP) for kept in lists] or [0]))
            for at, threshold in enumerate(THRESHOLDS)
        },
        "empty_rate": _mean(not outcome.scored or outcome.scored[0][1] < min_score for outcome in outcomes),
        "tokens_5_hits": _mean(outcome.tokens for outcome in outcomes),
        "p50_ms": percentile(milliseconds, 50),
        "p99_ms": percentile(milliseconds, 99),
    }


def recall(keys: Sequence[str], query: LabelledQuery) -> float:
    """The share of groups with a tool among `keys`."""
    return sum(not group.isdisjoint(keys) for group in query.groups) / len(query.groups)


def ndcg(keys: Sequence[str], query: LabelledQuery) -> float:
    """nDCG of keys ranked best first, over DEPTH ranks; the second tool of a satisfied group gains nothing."""
    waiting = list(query.groups)
    gain = 0.0
    for rank, key in enumerate(keys[:DEPTH]):
        # of several groups that it satisfies the one with the fewest other tools, so that these can serve the others
        satisfied = min((group for group in waiting if key in group), key=len, default=None)
        if satisfied is not None:
            waiting.remove(satisfied)
            gain += _discount(rank)
    return gain / sum(map(_discount, range(min(len(query.groups), DEPTH))))


def reciprocal_rank(keys: Sequence[str], query: LabelledQuery) -> float:
    """One over the rank of the first right tool; 0 if there is none."""
    right = frozenset().union(*query.groups)
    return next((1 / rank for rank, key in enumerate(keys, 1) if key in right), 0.0)


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that `percent` of a hundred do not exceed, interpolated; 0 of nothing."""
    if len(values) < 2:
        return values[0] if values else 0.0
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def _lists(outcome: Outcome) -> list[list[str]]:
    return [[key for key, score in outcome.scored if score >= threshold] for threshold in THRESHOLDS]


def _discount(rank: int) -> float:
    return 1 / math.log2(rank + 2)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return fmean(listed) if listed else 0.0
