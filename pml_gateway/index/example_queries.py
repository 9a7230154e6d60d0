"""Example queries: the similarity of a query to the examples of tools, as evidence."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np

from pml_gateway.index.embedder import embed_query
from pml_gateway.index.evidence import Evidence, Floats, Positions, Query
from pml_gateway.index.meaning import Meaning
from pml_gateway.index.vectors import ExampleVectors

OWN_WEIGHT, MEAN_WEIGHT, BEST_WEIGHT = np.float32(0.3), np.float32(0.3), np.float32(0.5)
"""Weights of a tool's own text, of the mean of its examples, and of the nearest of all these. Their sum is above one,
because more texts give more certainty. Fitted with examples for half of the tools, to the odds of the right one among
all; with the nearest example instead of the nearest of all, a tool whose own text matches the query falls behind."""

COMPARED = 50
"""Number of tools nearest to a query by their own texts, from which the usual gain by examples is estimated. With 20,
the right tools are too large a part."""

DOUBTED = 4
"""Number of imaginary tools with a gain of zero in that estimate: if almost no tools have examples, those that do keep
their gain."""

LUCK = np.float32(0.015)
"""Added to the usual gain, because among several wrong tools with examples the luckiest one counts. Without it, tools
without examples lose .04 recall@1 if others have some; with .03, examples are worth a third less."""

NEAR_TEXT, NEAR_EXAMPLE, NEAR_NAME = 0.25, 0.38, 0.45
"""Cosines from which a tool acts on an object: of its text, of the nearest of its examples, and of its name without
verbs. Of 30 pairs, right ones have at least one of them (`picture` and `delete_image` .30, .43, .85), wrong ones .21,
.30 and .42 at most (`branch` and `delete_release_pipeline` .05, .23, .32)."""


MAX_NAMES = 1024
"""Vectors of objects and names that are kept: those of one are computed in some milliseconds."""


class ExampleQueries(Evidence):
    """Evidence by examples: the cosine that a tool gains or loses by its examples."""

    def __init__(self, vectors: ExampleVectors, meaning: Meaning) -> None:
        self.vectors, self._meaning = vectors, meaning
        self._vector = lru_cache(MAX_NAMES)(partial(embed_query, meaning.embedder))

    def candidates(self, query: Query) -> list[Positions]:
        return self._meaning.nearest(self.vectors, query)

    def at(self, query: Query, positions: Positions) -> Floats:
        """Return gains; 0 for a tool without examples."""
        if not self.vectors:
            return np.zeros((1, len(positions)), dtype=np.float32)
        similarity = self.vectors.similarity(self._meaning.vectors(query), positions)
        own, scaled = self._meaning.cosines(query, positions), self._meaning.calibration.cosines
        return np.stack(list(map(gains, own, scaled(similarity.mean), scaled(similarity.best))))

    def acts_on(self, words: Sequence[str], position: int, name: str) -> bool:
        """Return True if a tool acts on what words name, by its text, its examples, or the words of its name."""
        meaning = self._meaning
        vector = self._vector(" ".join(words))
        if meaning.cosine(vector, position) >= NEAR_TEXT:
            return True
        asked = self.vectors.similarity(vector[np.newaxis], np.asarray([position], dtype=np.int64)).best
        if np.nan_to_num(meaning.calibration.cosines(asked), nan=-1.0).max() >= NEAR_EXAMPLE:
            return True
        cosine = meaning.calibration.cosines(self._vector(words[-1]) @ self._vector(name)) if name else 0.0
        return bool(cosine >= NEAR_NAME)

    def nearest(self, query: Query, positions: Positions) -> list[int]:
        """Return the number of each tool's example (k,) nearest to one of the texts; -1 without examples."""
        similarity = self.vectors.similarity(self._meaning.vectors(query), positions)
        text = np.argmax(np.nan_to_num(similarity.best, nan=-1.0), axis=0)
        numbers: list[int] = similarity.which[text, np.arange(len(positions))].tolist()
        return numbers


def gains(cosines: Floats, mean: Floats, best: Floats) -> Floats:
    """Return the gains (n,) of tools by the mean and best cosines of their examples (n,), NaN if none.

    The similarity of examples depends on the model and on the wording of the query, so only the gain above the usual
    one for this query counts. A tool without examples counts as usual: it keeps its cosine, and neither gains nor loses
    by the examples of others.
    """
    told = ~np.isnan(cosines + mean)
    nearest_of_all = np.fmax(cosines, best)
    more = (OWN_WEIGHT - 1) * cosines + MEAN_WEIGHT * mean + BEST_WEIGHT * nearest_of_all
    compared = np.argsort(-cosines, kind="stable")[:COMPARED]
    added = more[compared[told[compared]]]
    usual = (added + LUCK).sum() / np.float32(len(added) + DOUBTED)
    gained: Floats = np.where(told, more - usual, np.float32(0))
    return gained
