"""Turns the figures of `run_quality` into the targets they meet or miss. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

OWN, BM25, MINILM = "pml_fused", "fastmcp_bm25", "minilm_dense"
PEERS = (BM25, MINILM, "rank_fusion")

GOLDEN = "mcpproxy_golden"
GOLDEN_QUERIES = 47
MIN_DISTRACTORS = 14_000
"""Fewer make another, easier catalog than the 14,227 of the promise."""

COVERAGE = {0.5: 0.96, 0.6: 0.92, 0.7: 0.87}
COVERAGE_TOLERANCE = 0.03

ROUNDING = 1e-6
"""Figures are saved with six digits: 46 of 47 as .978723."""

Sets = Mapping[str, Mapping[str, Any]]
"""What was measured on each set, by its name."""


@dataclass(frozen=True, slots=True)
class Target:
    """What was promised and what was measured; `met` is absent where it was not measured."""

    what: str
    promised: str
    measured: str
    met: bool | None

    @property
    def verdict(self) -> str:
        """One word."""
        return "not measured" if self.met is None else "met" if self.met else "**missed**"


def targets(report: Mapping[str, Any]) -> list[Target]:
    """Every promise about quality that the report can answer, in the order they are told."""
    plain: Sets = report["sets"]
    return [
        *_golden(plain.get(GOLDEN), report["distracted"].get(GOLDEN)),
        *_against_peers(plain),
        *(_coverage(plain, threshold, share) for threshold, share in COVERAGE.items()),
        *_lists(plain),
        *_empty(plain),
        _near_duplicates(report["near_duplicates"]),
        _multilingual(report["multilingual"]),
        _quantised(report["int8"]),
    ]


def mean_of(sets: Sets, system: str, figure: str) -> float | None:
    """The mean of a figure over the sets; nothing where the system was not measured on each."""
    values = [row["systems"][system][figure] for row in sets.values() if system in row["systems"]]
    return fmean(values) if values and len(values) == len(sets) else None


def _golden(plain: Mapping[str, Any] | None, distracted: Mapping[str, Any] | None) -> Iterator[Target]:
    own = plain["systems"][OWN] if plain else None
    whole = own is not None and own["n"] == GOLDEN_QUERIES
    for figure, count in (("recall@1", 41), ("recall@5", 46)):
        found = own[figure] if own and whole else None
        yield _at_least(f"{GOLDEN} {figure}", found, count / GOLDEN_QUERIES, f"{count} of {GOLDEN_QUERIES}")
    yield _at_least(f"{GOLDEN} nDCG@10", own["ndcg@10"] if own and whole else None, 0.93)
    large = distracted is not None and distracted["distractors"] >= MIN_DISTRACTORS and whole
    found = distracted["systems"][OWN]["recall@5"] if distracted and large else None
    yield _at_least(f"{GOLDEN} with distractors, recall@5", found, 0.70)


def _against_peers(sets: Sets) -> Iterator[Target]:
    behind = {}
    for name, row in sets.items():
        rivals = {peer: row["systems"][peer]["ndcg@10"] for peer in PEERS if peer in row["systems"]}
        best = max(rivals, key=lambda peer: rivals[peer], default=None)
        if best and row["systems"][OWN]["ndcg@10"] < rivals[best]:
            behind[name] = f"{name} ({row['systems'][OWN]['ndcg@10']:.3f}, {best} {rivals[best]:.3f})"
    measured = all(peer in row["systems"] for row in sets.values() for peer in PEERS) and bool(sets)
    yield Target(
        "every set, nDCG@10",
        "at least the best of BM25, MiniLM and rank fusion",
        f"{len(sets) - len(behind)} of {len(sets)} sets" + (f"; behind on {', '.join(behind.values())}" * bool(behind)),
        not behind if measured else None,
    )
    own = mean_of(sets, OWN, "ndcg@10")
    for peer, factor in ((MINILM, 1.12), (BM25, 1.20)):
        other = mean_of(sets, peer, "ndcg@10")
        ratio = own / other if own and other else None
        yield _at_least(f"mean nDCG@10, times {peer}", ratio, factor)


def _coverage(sets: Sets, threshold: float, share: float) -> Target:
    mean = mean_of(sets, OWN, f"coverage@{threshold}")
    return Target(
        f"coverage at {threshold}, mean over sets",
        f"{share:.0%} within {COVERAGE_TOLERANCE * 100:.0f} points",
        "" if mean is None else f"{mean:.1%}",
        None if mean is None else abs(mean - share) <= COVERAGE_TOLERANCE,
    )


def _lists(sets: Sets) -> Iterator[Target]:
    rows = [row["lists"] for row in sets.values()]
    right = fmean(row["right_tool_listed"] for row in rows) if rows else None
    yield _at_least("hybrid_balanced, a right tool is listed, mean over sets", right, 0.85)
    yield _at_most(
        "hybrid_balanced, list length, median over sets",
        median(row["median_length"] for row in rows) if rows else None,
        12,
    )


def _empty(sets: Sets) -> Iterator[Target]:
    rows = [row["empty"] for row in sets.values()]
    empty = fmean(row["empty_without_right_tools"] for row in rows) if rows else None
    yield _at_least("empty answers once the right tools are gone, mean over sets", empty, 0.60)
    loss = fmean(row["recall_loss"] for row in rows) if rows else None
    yield _at_most("recall@5 lost by the default min_score, mean over sets", loss, 0.01)


def _near_duplicates(sets: Sets) -> Target:
    return _at_least("near-duplicate tools of clouds (ours), recall@1", mean_of(sets, OWN, "recall@1"), 0.92)


def _multilingual(languages: Mapping[str, Any]) -> Target:
    own, base = (languages.get("all", {}).get(system) for system in (OWN, MINILM))
    return _at_least(
        "other languages, recall@5, against MiniLM", own, base if base is not None else 0.0, known=base is not None
    )


def _quantised(comparison: Mapping[str, Any]) -> Target:
    return _at_most("nDCG@10 lost by int8, mean over sets", comparison.get("mean_loss"), 0.005)


def _at_least(what: str, found: float | None, least: float, said: str = "", *, known: bool = True) -> Target:
    promised = f">= {said or f'{least:.3f}'.rstrip('0').rstrip('.')}" if known else "not measured"
    return Target(what, promised, _shown(found), None if found is None or not known else found >= least - ROUNDING)


def _at_most(what: str, found: float | None, most: float) -> Target:
    return Target(what, f"<= {most:g}", _shown(found), None if found is None else found <= most + ROUNDING)


def _shown(found: float | None) -> str:
    return "" if found is None else f"{found:.3f}"
