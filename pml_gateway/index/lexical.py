"""The lexical index: turns the words of tools into BM25 scores for the words of a query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

SATURATION = 1.2
"""BM25 k1: how quickly repeating a word stops counting."""

LENGTH_WEIGHT = 0.6
"""BM25 b: below the usual 0.75, because a long description of a tool is no sign of vagueness."""

MAX_QUERY_TERMS = 128
"""Bounds the work of one query; the first words of a longer text are kept."""


class LexicalIndex:
    """BM25 over weighted word counts; every statistic is taken over the allowed documents only.

    So a mask gives exactly the scores of an index that was built without the other documents, and no score tells
    anything about documents that the caller may not see.
    """

    def __init__(self, documents: Sequence[Counter[str]]) -> None:
        self._vocabulary: dict[str, int] = {}
        terms: list[int] = []
        owners: list[int] = []
        counts: list[float] = []
        for position, words in enumerate(documents):
            for word, count in words.items():
                terms.append(self._vocabulary.setdefault(word, len(self._vocabulary)))
                owners.append(position)
                counts.append(count)
        order = np.argsort(np.asarray(terms, dtype=np.int64), kind="stable")
        self._owners = np.asarray(owners, dtype=np.int32)[order]
        self._counts = np.asarray(counts, dtype=np.float32)[order]
        sizes = np.bincount(np.asarray(terms, dtype=np.int64), minlength=len(self._vocabulary))
        self._starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        self._lengths = np.asarray([words.total() for words in documents], dtype=np.float32)

    def scores(self, terms: Sequence[str], allowed: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.float32]:
        """BM25 (n,) for distinct query stems; 0 where no word is shared or the mask `allowed` (n,) is false."""
        values = np.zeros(len(self._lengths), dtype=np.float32)
        total = len(self._lengths) if allowed is None else int(np.count_nonzero(allowed))
        if total == 0:
            return values
        # float64 sums over the same lengths in the same order: equal to those of an index of the allowed alone
        lengths = self._lengths if allowed is None else self._lengths[allowed]
        average = max(float(lengths.mean(dtype=np.float64)), 1.0)
        for term in terms[:MAX_QUERY_TERMS]:
            owners, counts = self._postings(term, allowed)
            if len(owners):
                weight = float(np.log1p((total - len(owners) + 0.5) / (len(owners) + 0.5)))
                length = 1 - LENGTH_WEIGHT + LENGTH_WEIGHT * self._lengths[owners] / average
                values[owners] += weight * (SATURATION + 1) * counts / (counts + SATURATION * length)
        return values

    def knows(self, terms: Sequence[str], allowed: npt.NDArray[np.bool_] | None = None) -> bool:
        """Whether each query stem occurs in an allowed document."""
        return all(len(self._postings(term, allowed)[0]) for term in terms)

    def _postings(
        self, term: str, allowed: npt.NDArray[np.bool_] | None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        index = self._vocabulary.get(term)
        if index is None:
            return self._owners[:0], self._counts[:0]
        span = slice(self._starts[index], self._starts[index + 1])
        owners, counts = self._owners[span], self._counts[span]
        if allowed is None:
            return owners, counts
        keep = allowed[owners]
        return owners[keep], counts[keep]
