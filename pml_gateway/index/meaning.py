"""Meaning: the cosines of a query and of tools, as evidence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pml_gateway.index.calibration import Calibration
from pml_gateway.index.embedder import Embedder, embed_query
from pml_gateway.index.evidence import Evidence, Floats, Mask, Positions, Query
from pml_gateway.index.lexical import Words, share
from pml_gateway.index.vectors import ExampleVectors, VectorIndex

UNKNOWN_COSINE, UNKNOWN_GAIN, MAX_UNKNOWN = np.float32(0.07), np.float32(1.9), np.float32(0.75)
"""Estimate of an unknown cosine from matching words: the base, the gain by lexical share, and the maximum. Fitted to
11,000 candidates of 490 queries over four labelled sets, in which words explain a third of the variance; the gain is a
quarter above the mean, because among several candidates with a vector the luckiest one counts."""

NEAR_COSINE = 0.2
"""Minimum cosine of a single word and the nearest tool for the word to be known: `folder`, `photo` and `mortgage` have
.3 and more if a tool deals with such things, `issue`, `email` and `pizza` .1 if none does. With .25, three in a hundred
of our own requests count as unknown although a tool serves them."""


class Meaning(Evidence):
    """Evidence by meaning: cosines on the scale of the curves."""

    def __init__(self, embedder: Embedder, vectors: VectorIndex, calibration: Calibration, words: Words) -> None:
        self.embedder, self.calibration = embedder, calibration
        self._vectors, self._words = vectors, words

    def candidates(self, query: Query) -> list[Positions]:
        return self.nearest(self._vectors, query)

    def at(self, query: Query, positions: Positions) -> Floats:
        """Return cosines; one that is not known yet is estimated, so that a tool neither gains nor loses by it."""
        cosines = self.cosines(query, positions)
        if not np.isnan(cosines).any():
            return cosines
        return estimated(cosines, self._words.units(query, positions))

    def cosines(self, query: Query, positions: Positions) -> Floats:
        """Return the cosines (t, k) of the tools at `positions` (k,) with the texts; NaN without a vector.

        All are computed in one way: bit for bit the same, no matter what else is in the index.
        """

        def compute() -> Floats:
            return np.stack([self._vectors.similarities(vector, positions) for vector in self.vectors(query)])

        return self.calibration.cosines(query.once((self, positions.tobytes()), compute))

    def nearest(self, index: VectorIndex | ExampleVectors, query: Query) -> list[Positions]:
        """Return the tools of a vector index that are nearest to each text."""
        pairs = zip(self.vectors(query), query.wanted, strict=True)
        return [index.nearest(vector, count, query.allowed) for vector, count in pairs]

    def vectors(self, query: Query) -> Floats:
        """Return the vectors (t, dimension) of the texts."""
        return query.once(self, lambda: np.stack([embed_query(self.embedder, text) for text in query.worded]))

    def is_near(self, words: Sequence[str], allowed: Mask | None) -> bool:
        """Return True if an allowed tool is near to one of these words."""
        for word in words:
            vector = embed_query(self.embedder, word)
            cosines = self._vectors.similarities(vector, self._vectors.nearest(vector, 1, allowed))
            if self.calibration.cosines(cosines).max(initial=0.0) > NEAR_COSINE:
                return True
        return False

    def cosine(self, vector: Floats, position: int) -> float:
        """Return the cosine of any vector and the text of one tool; -1 without a vector."""
        cosines = self._vectors.similarities(vector, np.asarray([position], dtype=np.int64))
        return float(np.nan_to_num(self.calibration.cosines(cosines), nan=-1.0)[0])


def estimated(cosines: Floats, words: Floats) -> Floats:
    """Return cosines; those that are NaN become the average of tools with as many BM25 units of words."""
    likely = np.minimum(UNKNOWN_COSINE + UNKNOWN_GAIN * share(words), MAX_UNKNOWN)
    filled: Floats = np.where(np.isnan(cosines), likely, cosines)
    return filled
