"""The vector index: turns a query vector into the most similar allowed documents."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pml_gateway.index.embedder import Embeddings

EXACT_LIMIT = 50_000
"""Up to here an exhaustive scan takes at most about 10 ms; a graph beyond it trades exactness for speed."""

GRAPH_LINKS = 32
GRAPH_BUILD_BREADTH = 80
GRAPH_SEARCH_BREADTH = 256
"""HNSW parameters: links per vector and candidates kept while building and searching."""

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class VectorIndex:
    """FAISS over normalised embeddings; masks are applied inside the scan, before the best are cut."""

    def __init__(self, embeddings: Embeddings, *, exact_limit: int = EXACT_LIMIT) -> None:
        import faiss  # imported late: see pml_gateway/index/__init__.py

        self._faiss: Any = faiss
        self._size, dimension = embeddings.shape
        self._exact_limit = exact_limit
        # faiss.omp_set_num_threads holds for the calling thread; a search of one vector is single-threaded anyway
        faiss.omp_set_num_threads(1)
        self._graph: Any = None
        self._flat: Any = faiss.IndexFlatIP(dimension)
        if self._size > exact_limit:
            self._graph = faiss.IndexHNSWFlat(dimension, GRAPH_LINKS, faiss.METRIC_INNER_PRODUCT)
            self._graph.hnsw.efConstruction = GRAPH_BUILD_BREADTH
            self._graph.add(embeddings)
            self._flat = faiss.downcast_index(self._graph.storage)
        elif self._size:
            self._flat.add(embeddings)

    def nearest(self, query: npt.NDArray[np.float32], count: int, allowed: Mask | None = None) -> Positions:
        """The `count` allowed documents with the largest inner products with `query` (dimension,), best first."""
        available = self._size if allowed is None else int(np.count_nonzero(allowed))
        count = min(count, available)
        if count <= 0:
            return np.zeros(0, dtype=np.int64)
        # a graph search that may pass through few vectors only finds too little, and few vectors are quick to scan
        exact = self._graph is None or available <= self._exact_limit
        bits = None if allowed is None else np.packbits(allowed, bitorder="little")
        selector = None if bits is None else self._faiss.IDSelectorBitmap(bits)
        if exact:
            parameters = None if selector is None else self._faiss.SearchParameters(sel=selector)
        else:
            breadth = max(GRAPH_SEARCH_BREADTH, count)
            parameters = self._faiss.SearchParametersHNSW(efSearch=breadth, **({"sel": selector} if selector else {}))
        index = self._flat if exact else self._graph
        positions: Positions = index.search(query[np.newaxis, :], count, params=parameters)[1][0]
        return positions[positions >= 0]

    def similarities(self, query: npt.NDArray[np.float32], positions: Positions) -> npt.NDArray[np.float32]:
        """Inner products of `query` (dimension,) with the documents at `positions`, in their order."""
        if not len(positions):
            return np.zeros(0, dtype=np.float32)
        vectors: Embeddings = self._flat.reconstruct_batch(positions)
        # einsum keeps to one thread and one summation order whatever the number of rows
        similarities: npt.NDArray[np.float32] = np.einsum("nd,d->n", vectors, query)
        return similarities
