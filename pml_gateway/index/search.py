"""The tool index: turns an intent into the tools that serve it, best first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import numpy.typing as npt

from pml_gateway.index.cache import EmbeddingCache
from pml_gateway.index.calibration import LEXICAL_CURVE, CalibratedEmbedder, Calibration, Curve
from pml_gateway.index.embedder import Embedder, embed_query
from pml_gateway.index.fusion import fuse
from pml_gateway.index.lexical import LexicalIndex
from pml_gateway.index.shipped import shipped_calibration
from pml_gateway.index.text import (
    MAX_QUERY_CHARACTERS,
    ToolDocument,
    dense_text,
    lexical_tokens,
    query_tokens,
    well_formed,
)
from pml_gateway.index.vectors import Mask, Positions, VectorIndex
from pml_gateway.types import Ranking

MIN_CANDIDATES = 200
"""Candidates that each half proposes at least; what neither half has among its first 200 never comes out on top."""

EXACT_SCORE = 1.0

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Hit:
    """One tool found, with its position in the index and its calibrated score: 0 to 1, 1.0 only for an exact name."""

    position: int
    key: str
    score: float


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Hits, best first, and the evidence that really ordered them: lexical when there is no model."""

    hits: tuple[Hit, ...]
    ranking: Ranking


@dataclass(frozen=True, slots=True)
class _DenseHalf:
    embedder: Embedder
    vectors: VectorIndex
    calibration: Calibration


class ToolIndex:
    """An immutable index over tool documents; searches may run in several threads at once."""

    def __init__(self, documents: tuple[ToolDocument, ...], lexical: LexicalIndex, dense: _DenseHalf | None) -> None:
        self.documents = documents
        self._lexical = lexical
        self._dense = dense
        self._names = _positions_by_name(documents)

    @classmethod
    def build(
        cls, documents: Sequence[ToolDocument], embedder: Embedder | None, cache: EmbeddingCache | None = None
    ) -> ToolIndex:
        """Index documents; without an embedder every search is lexical, with a cache only new texts are encoded."""
        lexical = LexicalIndex([lexical_tokens(document) for document in documents])
        if embedder is None:
            return cls(tuple(documents), lexical, None)
        texts = [dense_text(document) for document in documents]
        embeddings = embedder.encode(texts) if cache is None else cache.encode(embedder, texts)
        calibration = (
            embedder.calibration
            if isinstance(embedder, CalibratedEmbedder)
            else shipped_calibration().transferred(embedder)
        )
        return cls(tuple(documents), lexical, _DenseHalf(embedder, VectorIndex(embeddings), calibration))

    def search(
        self, query: str, *, limit: int, allowed: Mask | None = None, ranking: Ranking = Ranking.FUSED
    ) -> SearchResult:
        """Find the tools that serve an intent.

        Args:
            query: any text; a tool's qualified name, bare name or `server:name` puts that tool first.
            limit: hits wanted at most.
            allowed: mask (n,) over positions; all others are treated as if they were not in the index.
            ranking: the evidence to use; without a model it is lexical whatever is asked for.
        """
        used = Ranking.LEXICAL if self._dense is None else ranking
        text = well_formed(query[:MAX_QUERY_CHARACTERS]).strip()
        if not text or limit <= 0 or not self.documents:
            return SearchResult((), used)
        exact = [at for at in self._names.get(text.casefold(), ()) if allowed is None or allowed[at]]
        positions, scores = self._ranked(text, max(limit, MIN_CANDIDATES), allowed, used)
        hits = [Hit(at, self.documents[at].key, EXACT_SCORE) for at in sorted(exact, key=self._key)]
        for at, score in zip(positions, scores, strict=True):
            if len(hits) >= limit:
                break
            if at not in exact:
                hits.append(Hit(at, self.documents[at].key, score))
        return SearchResult(tuple(hits[:limit]), used)

    def _ranked(self, query: str, count: int, allowed: Mask | None, ranking: Ranking) -> tuple[list[int], list[float]]:
        terms = () if ranking is Ranking.DENSE else query_tokens(query)
        lexical = self._lexical.scores(terms, allowed)
        positions = _strongest(lexical, count)
        if self._dense is None or ranking is Ranking.LEXICAL:
            return self._ordered(positions, np.log1p(lexical[positions]), LEXICAL_CURVE)
        vector = embed_query(self._dense.embedder, query)
        positions = np.union1d(positions, self._dense.vectors.nearest(vector, count, allowed))
        # one way to compute all of them: bit for bit the same whatever else is in the index
        cosines = self._dense.calibration.cosines(self._dense.vectors.similarities(vector, positions))
        match ranking:
            case Ranking.FUSED:
                return self._ordered(positions, fuse(cosines, lexical[positions]), self._dense.calibration.fused)
            case Ranking.DENSE:
                return self._ordered(positions, cosines, self._dense.calibration.dense)
            case _:
                assert_never(ranking)

    def _ordered(self, positions: Positions, raw: Floats, curve: Curve) -> tuple[list[int], list[float]]:
        scores = curve.scores(raw)
        ranks = sorted(range(len(positions)), key=lambda at: (-raw[at], self._key(int(positions[at]))))
        return [int(positions[at]) for at in ranks], [float(scores[at]) for at in ranks]

    def _key(self, position: int) -> str:
        return self.documents[position].key


def _strongest(lexical: Floats, count: int) -> Positions:
    matching = np.flatnonzero(lexical)
    if len(matching) <= count:
        return matching
    values = lexical[matching]
    strongest: Positions = matching[values >= np.partition(values, -count)[-count]]
    return strongest


def _positions_by_name(documents: Sequence[ToolDocument]) -> dict[str, tuple[int, ...]]:
    names: dict[str, tuple[int, ...]] = {}
    for position, document in enumerate(documents):
        for name in {document.key, document.name, f"{document.server}:{document.name}"}:
            folded = name.strip().casefold()
            names[folded] = (*names.get(folded, ()), position)
    return names
