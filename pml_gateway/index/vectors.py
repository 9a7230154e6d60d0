"""Vectors of documents, scanned by FAISS for those that the caller may see, and vectors of example queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pml_gateway.index.embedder import Embedder, Embeddings
from pml_gateway.index.evidence import Floats, Mask, Positions
from pml_gateway.index.text import well_formed

FULL_PRECISION_LIMIT = 50_000
"""Maximum number of vectors with 32 bits a component: 77 MB, scanned in 6 ms. More vectors have 16 bits, in half the
memory and time; a cosine then changes by less than 0.001. Neither needs training, so no vector depends on another."""

LEVELS = 127
"""Levels of a component on either side of zero. If vectors are scaled to their largest component, a cosine changes by
0.0004; if scaled to 1, as means are, by 0.002, which is good enough for finding candidates."""

READ_AT_ONCE = 500
"""Number of tools read at once; their vectors are in memory twice for a moment, 3 kB each."""

Examples = Sequence[tuple[str, ...]]
"""The example queries of each of n tools."""


class VectorIndex:
    """The normalised vectors of k of n documents."""

    def __init__(
        self, embeddings: Embeddings, positions: Positions | None = None, documents: int | None = None
    ) -> None:
        """Index vectors.

        Args:
            embeddings: (k, dimension).
            positions: (k,) positions of their documents, increasing; by default, all documents have one.
            documents: n; k by default.
        """
        import faiss  # imported late: see pml_gateway/index/__init__.py

        count, dimension = embeddings.shape
        # faiss.omp_set_num_threads holds for the calling thread; a search of one vector is single-threaded anyway
        faiss.omp_set_num_threads(1)
        kind = "Flat" if count <= FULL_PRECISION_LIMIT else "SQbf16"
        self._scan: Any = faiss.index_factory(dimension, kind, faiss.METRIC_INNER_PRODUCT)
        if count:
            self._scan.add(embeddings)
        self._positions = np.arange(count) if positions is None else positions
        self._rows = np.full(count if documents is None else documents, -1, dtype=np.int64)
        self._rows[self._positions] = np.arange(count)

    def nearest(self, query: Floats, count: int, allowed: Mask | None = None) -> Positions:
        """Return the `count` allowed documents with the largest inner products with `query` (dimension,), best first.

        The mask (n,) is applied inside the search, before the best are cut.
        """
        available, parameters = selection(self._positions, allowed)
        count = min(count, available)
        if count <= 0:
            return self._positions[:0]
        rows: Positions = self._scan.search(query[np.newaxis, :], count, params=parameters)[1][0]
        nearest: Positions = self._positions[rows[rows >= 0]]
        return nearest

    def similarities(self, query: Floats, positions: Positions) -> Floats:
        """Return the inner products of `query` (dimension,) with the documents at `positions`; NaN without a vector."""
        rows = self._rows[positions]
        known = rows >= 0
        similarities = np.full(len(positions), np.nan, dtype=np.float32)
        if known.any():
            vectors: Embeddings = self._scan.reconstruct_batch(rows[known])
            # einsum uses one thread and one summation order for any number of rows
            similarities[known] = np.einsum("nd,d->n", vectors, query)
        return similarities


def selection(positions: Positions, allowed: Mask | None) -> tuple[int, Any]:
    """Return how many documents at `positions` are allowed, and the parameters of a FAISS search of those alone."""
    if allowed is None:
        return len(positions), None
    import faiss  # imported late, as above

    library: Any = faiss  # its type stubs describe the C++ constructors
    here = allowed[positions]
    selector = library.IDSelectorBitmap(np.packbits(here, bitorder="little"))
    return int(np.count_nonzero(here)), library.SearchParameters(sel=selector)


@dataclass(frozen=True, slots=True)
class EncodedExamples:
    """The vectors of the r examples of one tool."""

    codes: npt.NDArray[np.int8]
    """(r, dimension), each vector divided by its scale."""
    scales: Floats
    """(r,) scale of each vector."""

    @classmethod
    def of(cls, vectors: Embeddings) -> EncodedExamples:
        """Return vectors (r, dimension) encoded in 8 bits."""
        scales = np.abs(vectors).max(axis=1) / np.float32(LEVELS)
        scales[scales == 0] = 1
        return cls(np.rint(vectors / scales[:, np.newaxis]).astype(np.int8), scales)


Encode = Callable[[Examples], Sequence[EncodedExamples | None]]
"""A function that returns the vectors of the examples of tools, each with at least one; None if not available."""


def encoded(embedder: Embedder, examples: Examples) -> list[EncodedExamples]:
    """Return the vectors of the examples of n tools, each with at least one.

    They are encoded like documents, so that the cosines of queries with both are on one scale.
    """
    if not examples:
        return []
    vectors = embedder.encode([well_formed(text) for texts in examples for text in texts])
    return [EncodedExamples.of(part) for part in np.split(vectors, np.cumsum([len(texts) for texts in examples])[:-1])]


@dataclass(frozen=True, slots=True)
class ExampleSimilarity:
    """The similarity of the examples of k tools to q queries."""

    mean: Floats
    """(q, k) mean cosines; NaN for a tool without examples."""
    best: Floats
    """(q, k) cosines of the nearest example; NaN for a tool without examples."""
    which: Positions
    """(q, k) number of the nearest example among those of its tool; -1 for a tool without examples."""


class ExampleVectors:
    """The vectors of the examples of n tools; a tool may have no examples, or vectors that are not available yet."""

    def __init__(
        self, examples: Examples, encode: Encode, dimension: int, pause: Callable[[], None] = lambda: None
    ) -> None:
        """Collect the vectors of these examples from `encode`, some tools at a time, each part after a `pause`."""
        import faiss  # imported late: see pml_gateway/index/__init__.py

        faiss.omp_set_num_threads(1)
        self.counts = np.zeros(len(examples), dtype=np.int64)
        """(n,) number of examples of each tool that have vectors."""
        self._first = np.zeros(len(examples), dtype=np.int64)
        # pages of an array that are never written take no memory
        codes = np.empty((sum(map(len, examples)), dimension), dtype=np.int8)
        scales = np.empty(len(codes), dtype=np.float32)
        self._means: Any = faiss.IndexScalarQuantizer(
            dimension, faiss.ScalarQuantizer.QT_8bit_direct_signed, faiss.METRIC_INNER_PRODUCT
        )
        having = [at for at, texts in enumerate(examples) if texts]
        positions, end = list[int](), 0
        for start in range(0, len(having), READ_AT_ONCE):
            pause()
            part = having[start : start + READ_AT_ONCE]
            means = np.empty((len(part), dimension), dtype=np.float32)
            before = len(positions)
            for at, tool in zip(part, encode([examples[at] for at in part]), strict=True):
                if tool is not None:
                    count = len(tool.scales)
                    codes[end : end + count], scales[end : end + count] = tool.codes, tool.scales
                    means[len(positions) - before] = np.rint(np.float32(LEVELS / count) * (tool.scales @ tool.codes))
                    self._first[at], self.counts[at] = end, count
                    positions.append(at)
                    end += count
            self._means.add(means[: len(positions) - before])
        self._codes, self._scales = codes[:end], scales[:end]
        self._positions = np.asarray(positions, dtype=np.int64)

    def __bool__(self) -> bool:
        return bool(len(self._positions))

    def nearest(self, query: Floats, count: int, allowed: Mask | None = None) -> Positions:
        """Return the `count` allowed tools whose mean examples are nearest to `query` (dimension,), best first."""
        available, parameters = selection(self._positions, allowed)
        count = min(count, available)
        if count <= 0:
            return self._positions[:0]
        # the scan reads integers only: it cuts off decimals
        asked = np.rint(query * (np.float32(LEVELS) / max(float(np.abs(query).max()), 1e-9)))[np.newaxis, :]
        near, rows = self._means.search(asked, count, params=parameters)
        best: Positions = self._positions[rows[0][np.lexsort((rows[0], -near[0]))]]
        return best

    def similarity(self, queries: Floats, positions: Positions) -> ExampleSimilarity:
        """Return the similarity of the examples of the tools at `positions` (k,) to `queries` (q, dimension).

        Bit for bit the same for a tool and a query, no matter which other tools and queries there are.
        """
        counts = self.counts[positions]
        mean, best = np.full((2, len(queries), len(positions)), np.nan, dtype=np.float32)
        which = np.full(mean.shape, -1, dtype=np.int64)
        some = np.flatnonzero(counts)
        if len(some):
            sizes = counts[some]
            starts = np.cumsum(sizes) - sizes
            numbers = np.arange(int(sizes.sum())) - np.repeat(starts, sizes)
            cosines = self._cosines(queries, np.repeat(self._first[positions[some]], sizes) + numbers)
            mean[:, some] = np.add.reduceat(cosines, starts, axis=1) / sizes
            best[:, some] = np.maximum.reduceat(cosines, starts, axis=1)
            others = cosines < np.repeat(best[:, some], sizes, axis=1)
            which[:, some] = np.minimum.reduceat(np.where(others, np.iinfo(np.int64).max, numbers), starts, axis=1)
        return ExampleSimilarity(mean, best, which)

    def _cosines(self, queries: Floats, rows: Positions) -> Floats:
        """Return the cosines (q, r) of the examples in rows (r,)."""
        vectors, scales = self._codes[rows].astype(np.float32), self._scales[rows]
        # einsum uses one thread and one summation order for any number of rows
        return np.stack([np.einsum("nd,d->n", vectors, query) * scales for query in queries])
