"""A report of `run_quality` made by hand."""

from __future__ import annotations

from typing import Any

FIGURES = (
    *(f"recall@{depth}" for depth in (1, 3, 5, 10)),
    "ndcg@10",
    "mrr",
    "hit@10",
    "all_gold@10",
    *(f"coverage@{threshold}" for threshold in (0.5, 0.6, 0.7)),
    "empty_rate",
)


def system(ndcg: float, **others: float) -> dict[str, float]:
    """All figures of one system, each equal to its nDCG unless said otherwise."""
    counts = {"n": 47, "list_median@0.5": 9, "list_median@0.6": 7, "list_median@0.7": 5, "tokens_5_hits": 300}
    return {**dict.fromkeys(FIGURES, ndcg), **counts, "p50_ms": 2.0, "p99_ms": 4.0, **others}


def measured_set(own: float, peers: float, **others: float) -> dict[str, Any]:
    """One set on which all peers do equally well."""
    ranked = dict.fromkeys(("fastmcp_bm25", "fastmcp_regex", "minilm_dense", "rank_fusion"), system(peers))
    return {
        "tools": 45,
        "distractors": 0,
        "queries": 47,
        "systems": {**ranked, "pml_fused": system(own, **others)},
        "ablations": {"no clauses": system(own - 0.125)},
        "lists": {"threshold": 0.7, "cap": 20, "right_tool_listed": 0.9, "median_length": 8.0},
        "empty": {"min_score": 0.3, "empty_without_right_tools": 0.5, "recall_loss": 0.004},
    }


def report(**sets: dict[str, Any]) -> dict[str, Any]:
    """A report over the sets given, without distractors."""
    return {
        "model": "some-model@1",
        "sets": sets,
        "distracted": {},
        "near_duplicates": {"cloud": measured_set(0.91, 0.5)},
        "real_servers": {"servers, in view": measured_set(0.71, 0.5), "servers, unseen": measured_set(0.66, 0.5)},
        "multilingual": {
            "de": {"n": 2, "minilm_dense": 0.5, "pml_fused": 1.0},
            "all": {"n": 2, "minilm_dense": 0.5, "pml_fused": 1.0},
        },
        "int8": {"sets": {"one": {"float32": 0.9, "int8": 0.89}}, "mean_loss": 0.01},
    }
