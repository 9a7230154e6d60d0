"""Turns what searches scored into what lists and answers hold. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median

from pml_gateway.index.evaluation import LabelledQuery, QueryOutcome, recall


@dataclass(frozen=True, slots=True)
class Lists:
    """Lists cut at a threshold and a length: how many hold a right tool, and how long they are."""

    threshold: float
    cap: int
    right_tool_listed: float
    median_length: float

    def report(self) -> dict[str, float]:
        """As it is saved."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CutLoss:
    """Recall@5 with and without the hits below a minimum score."""

    min_score: float
    recall_uncut: float
    recall_cut: float

    def report(self) -> dict[str, float]:
        """As it is saved."""
        return {**asdict(self), "recall_loss": self.recall_uncut - self.recall_cut}


def lists(queries: Sequence[LabelledQuery], listed: Sequence[Sequence[str]], threshold: float, cap: int) -> Lists:
    """What the lists for queries hold; a query that needs several tools is served by any of them."""
    right = fmean(recall(keys, query) > 0 for keys, query in zip(listed, queries, strict=True))
    return Lists(threshold, cap, right, float(median(map(len, listed))))


def cut_loss(outcomes: Sequence[QueryOutcome], min_score: float, hits: int) -> CutLoss:
    """What an answer of `hits` hits loses when those below `min_score` are cut."""
    answers = [outcome.scored[:hits] for outcome in outcomes]
    queries = [outcome.query for outcome in outcomes]
    uncut = fmean(recall([key for key, _ in answer], query) for answer, query in zip(answers, queries, strict=True))
    cut = fmean(
        recall([key for key, score in answer if score >= min_score], query)
        for answer, query in zip(answers, queries, strict=True)
    )
    return CutLoss(min_score, uncut, cut)
