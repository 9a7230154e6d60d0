"""What a search benchmark needs to know of a peer: how it ranks tools for a query, and what its answer costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.labelled_sets import LabelledSet
from pml_gateway.exposure.token_count import count_tokens
from pml_gateway.index.cache import EmbeddingCache
from pml_gateway.index.embedder import Embedder, Embeddings
from pml_gateway.index.evaluation import DEPTH, QueryOutcome, figures
from pml_gateway.index.text import ToolDocument, dense_text

ANSWER_HITS = 5

SLICE = 512
"""Tools encoded before their vectors are stored."""

RANKING_FIGURES = ("n", "recall@1", "recall@3", "recall@5", "recall@10", "ndcg@10", "mrr", "hit@10", "all_gold@10")
TIMES = ("p50_ms", "p99_ms")

Rank = Callable[[str, int], Sequence[str]]
"""(query, depth) -> keys, best first, at most `depth`."""


@dataclass(frozen=True, slots=True)
class Ranker:
    """A peer over one set. Its scores promise nothing, so no figure looks at them."""

    rank: Rank
    hit_text: Callable[[str], str] | None = None
    """What a model reads of one hit, by its key; absent when the peer is a ranking and no product."""


def encoded(embedder: Embedder, documents: Sequence[ToolDocument], cache: EmbeddingCache) -> Embeddings:
    """The vectors (n, dimension) of tools, stored in slices, so that an interrupted run goes on where it was."""
    texts = [dense_text(document) for document in documents]
    for start in range(0, len(texts), SLICE):
        cache.encode(embedder, texts[start : start + SLICE])
    return cache.encode(embedder, texts)


def peer_outcomes(ranker: Ranker, labelled: LabelledSet) -> list[QueryOutcome]:
    """The outcome of each query; every score is 0."""
    outcomes = []
    ranker.rank(labelled.queries[0].text, DEPTH)
    for query in labelled.queries:
        started = time.perf_counter()
        keys = ranker.rank(query.text, DEPTH)
        milliseconds = (time.perf_counter() - started) * 1000
        tokens = sum(count_tokens(ranker.hit_text(key)) for key in keys[:ANSWER_HITS]) if ranker.hit_text else 0
        outcomes.append(QueryOutcome(query, tuple((key, 0.0) for key in keys), milliseconds, tokens))
    return outcomes


def peer_figures(ranker: Ranker, labelled: LabelledSet) -> dict[str, float]:
    """The figures of `pml eval` that do not need a calibrated score, and tokens where there is an answer to count."""
    measured = figures(peer_outcomes(ranker, labelled), min_score=0)
    names = (*RANKING_FIGURES, *(("tokens_5_hits",) if ranker.hit_text else ()), *TIMES)
    return {name: measured[name] for name in names}
