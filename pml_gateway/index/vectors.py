"""The vector index: turns a query vector into the most similar allowed documents."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pml_gateway.index.embedder import Embeddings

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class VectorIndex(Protocol):
    """Finds documents by their vectors; masks are applied inside the search, before the best are cut."""

    def nearest(self, query: npt.NDArray[np.float32], count: int, allowed: Mask | None = None) -> Positions:
        """The `count` allowed documents with the largest inner products with `query` (dimension,), best first."""
        ...

    def similarities(self, query: npt.NDArray[np.float32], positions: Positions) -> npt.NDArray[np.float32]:
        """Inner products of `query` (dimension,) with the documents at `positions`, in their order."""
        ...


class ExactVectors:
    """A scan of all normalised embeddings (n, dimension): exact, in memory, and built in no time."""

    def __init__(self, embeddings: Embeddings) -> None:
        import faiss  # imported late: see pml_gateway/index/__init__.py

        self._faiss: Any = faiss
        self._size, dimension = embeddings.shape
        # faiss.omp_set_num_threads holds for the calling thread; a search of one vector is single-threaded anyway
        faiss.omp_set_num_threads(1)
        self._flat: Any = faiss.IndexFlatIP(dimension)
        if self._size:
            self._flat.add(embeddings)

    def nearest(self, query: npt.NDArray[np.float32], count: int, allowed: Mask | None = None) -> Positions:
        """The `count` allowed documents with the largest inner products with `query` (dimension,), best first."""
        count = min(count, self._size if allowed is None else int(np.count_nonzero(allowed)))
        if count <= 0:
            return np.zeros(0, dtype=np.int64)
        parameters = None
        if allowed is not None:
            bits = np.packbits(allowed, bitorder="little")
            parameters = self._faiss.SearchParameters(sel=self._faiss.IDSelectorBitmap(bits))
        positions: Positions = self._flat.search(query[np.newaxis, :], count, params=parameters)[1][0]
        return positions[positions >= 0]

    def similarities(self, query: npt.NDArray[np.float32], positions: Positions) -> npt.NDArray[np.float32]:
        """Inner products of `query` (dimension,) with the documents at `positions`, in their order."""
        if not len(positions):
            return np.zeros(0, dtype=np.float32)
        vectors: Embeddings = self._flat.reconstruct_batch(positions)
        # einsum keeps to one thread and one summation order whatever the number of rows
        similarities: npt.NDArray[np.float32] = np.einsum("nd,d->n", vectors, query)
        return similarities
