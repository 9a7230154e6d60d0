"""Reciprocal rank fusion of two rankings, as hybrid searches commonly do it (Cormack et al., 2009)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from benchmarks.rankers import Rank, Ranker

CONSTANT = 60
"""Of the paper; the ranks that follow each other closely count almost alike."""

FUSED_DEPTH = 100


def fuse(rankings: Sequence[Sequence[str]]) -> list[str]:
    """The keys of all rankings by the sum of their reciprocal ranks; equal sums in the order they were met."""
    sums: defaultdict[str, float] = defaultdict(float)
    for ranking in rankings:
        for rank, key in enumerate(ranking, 1):
            sums[key] += 1 / (CONSTANT + rank)
    return sorted(sums, key=lambda key: -sums[key])


def build(*parts: Rank) -> Ranker:
    """The fusion of what the parts rank first."""

    def rank(query: str, depth: int) -> Sequence[str]:
        return fuse([part(query, FUSED_DEPTH) for part in parts])[:depth]

    return Ranker(rank)
