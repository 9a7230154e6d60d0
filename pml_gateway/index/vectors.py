"""Vector search: a FAISS scan of all vectors, restricted to the documents that the caller may see."""

from __future__ import annotations

from typing import Any

import numpy as np

from pml_gateway.index.embedder import Embeddings
from pml_gateway.index.evidence import Floats, Mask, Positions

FULL_PRECISION_LIMIT = 50_000
"""Maximum number of vectors with 32 bits a component: 77 MB, scanned in 6 ms. More vectors have 16 bits, in half the
memory and time; a cosine then changes by less than 0.001. Neither needs training, so no vector depends on another."""


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
