"""Vector search: every vector of a small catalog, the nearest clusters of a large one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pml_gateway.index.embedder import Embeddings

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

EXACT_LIMIT = 50_000
"""Tools. Up to here an exhaustive scan takes at most about 10 ms, building seconds in the background, and nothing but
the embeddings is worth a file; beyond it the best are looked for among likely candidates, in files that are mapped."""

SCANNED_ALLOWED = 2_000
"""Tools that a policy leaves of a large catalog; so few are compared one by one, in 2 ms."""


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


class PartialVectors:
    """Vectors of some documents, while those of the others are being computed."""

    def __init__(self, vectors: VectorIndex, positions: Positions, size: int) -> None:
        """Put together.

        Args:
            vectors: of k documents.
            positions: (k,) which documents those are, increasing.
            size: how many documents there are.
        """
        self._vectors, self._positions = vectors, positions
        self._rows = np.full(size, -1, dtype=np.int64)
        self._rows[positions] = np.arange(len(positions))

    def nearest(self, query: npt.NDArray[np.float32], count: int, allowed: Mask | None = None) -> Positions:
        """The `count` allowed documents nearest to `query` (dimension,) of those that have a vector, best first."""
        rows = self._vectors.nearest(query, count, None if allowed is None else allowed[self._positions])
        nearest: Positions = self._positions[rows]
        return nearest

    def similarities(self, query: npt.NDArray[np.float32], positions: Positions) -> npt.NDArray[np.float32]:
        """Inner products of `query` (dimension,) with the documents at `positions`; NaN where there is no vector."""
        rows = self._rows[positions]
        similarities = np.full(len(positions), np.nan, dtype=np.float32)
        similarities[rows >= 0] = self._vectors.similarities(query, rows[rows >= 0])
        return similarities


CLUSTERS_PER_ROOT = 4
MAX_CLUSTERS = 4_096
"""Clusters for n tools: four times the root of n, where finding the nearest clusters costs as much as scanning them."""

TRAINED_ON = 40
TRAINING_ROUNDS = 10
"""Vectors per cluster that place it, and rounds of placing; more of either gains no recall."""

PROBED_SHARE = 0.125
MAX_PROBED = 128
"""Of the clusters, looked into: recall@10 of .99 on tools of published servers, see `benchmarks/run_scale.py`."""

RERANKED = 2
"""Times the wanted count that is ranked anew by its stored vectors, because the scan reads them in 8 bits."""

MIN_RERANKED = 200
ADDED_AT_ONCE = 10_000
SEED = 7

Stored = npt.NDArray[np.float16]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Clusters:
    """Vectors of a catalog as they were when it was last arranged; what has changed since is kept beside it."""

    vectors: Stored
    """(n, dimension), in memory or mapped from a file; 16 bits change a cosine by less than 0.001."""
    inverted: Any
    """FAISS IVF over the rows of `vectors`, 8 bits per component."""

    def __len__(self) -> int:
        return len(self.vectors)

    @classmethod
    def place(cls, vectors: Stored, pause: Callable[[], None]) -> Clusters:
        """Cluster vectors from nothing: minutes of one core at a million, with a `pause` every few seconds."""
        import faiss  # imported late: see pml_gateway/index/__init__.py

        faiss.omp_set_num_threads(1)
        count, dimension = vectors.shape
        clusters = min(MAX_CLUSTERS, int(CLUSTERS_PER_ROOT * count**0.5), max(1, count // TRAINED_ON))
        sample = np.random.default_rng(SEED).choice(count, min(count, clusters * TRAINED_ON), replace=False)
        training = vectors[np.sort(sample)].astype(np.float32)
        clustering, quantizer = faiss.Clustering(dimension, clusters), faiss.IndexFlatIP(dimension)
        clustering.niter, clustering.seed, clustering.spherical = 1, SEED, True
        clustering.min_points_per_centroid = 1
        for _ in range(TRAINING_ROUNDS):
            pause()
            clustering.train(training, quantizer)  # goes on from the centroids it has
        inverted = _empty(faiss, quantizer, clusters)
        inverted.train(training)
        for start in range(0, count, ADDED_AT_ONCE):
            pause()
            inverted.add(vectors[start : start + ADDED_AT_ONCE].astype(np.float32))
        return cls(vectors, inverted)

    def rearranged(self, moved: Rows, fresh: Embeddings, places: Rows) -> Clusters:
        """The clusters of a changed catalog, in place of those that stay.

        Args:
            moved: (n,) the new row of each one, -1 where it is gone.
            fresh: (k, dimension) vectors that came.
            places: (k,) their rows.
        """
        import faiss  # imported late, as above

        faiss.omp_set_num_threads(1)
        stays = moved >= 0
        vectors = np.empty((int(np.count_nonzero(stays)) + len(places), self.vectors.shape[1]), dtype=np.float16)
        vectors[moved[stays]] = self.vectors[stays]
        vectors[places] = fresh
        before = self.inverted
        inverted = _empty(faiss, faiss.clone_index(before.quantizer), before.nlist)
        inverted.sq, inverted.is_trained = before.sq, True
        for number in range(before.nlist):
            size = before.invlists.list_size(number)
            if not size:
                continue
            owners, codes = before.invlists.get_ids(number), before.invlists.get_codes(number)
            rows = moved[faiss.rev_swig_ptr(owners, size)]
            kept = rows >= 0
            values = faiss.rev_swig_ptr(codes, size * before.code_size).reshape(size, -1)[kept].copy()
            rows = rows[kept].copy()
            inverted.invlists.add_entries(number, len(rows), faiss.swig_ptr(rows), faiss.swig_ptr(values))
            inverted.ntotal += len(rows)
        if len(places):
            inverted.add_with_ids(fresh, places)
        return Clusters(vectors, inverted)


class ClusteredVectors:
    """Inverted lists over a catalog as it was, tombstones for what has gone since, and a scan of what has come."""

    def __init__(self, clusters: Clusters, positions: Rows, fresh: Embeddings, fresh_positions: Rows) -> None:
        """Put together.

        Args:
            clusters: of n rows.
            positions: (n,) the position of each row, -1 where its tool has gone.
            fresh: (k, dimension) vectors that are in no cluster yet.
            fresh_positions: (k,) theirs.
        """
        import faiss  # imported late, as above

        self._faiss: Any = faiss
        self.clusters = clusters
        self._positions = positions
        self._fresh, self._fresh_positions = fresh, fresh_positions
        self._size = int(np.count_nonzero(positions >= 0)) + len(fresh)
        # a position is a row, or minus one minus the number of a fresh vector
        self._places = np.zeros(self._size, dtype=np.int64)
        alive = np.flatnonzero(positions >= 0)
        self._places[positions[alive]] = alive
        self._places[fresh_positions] = -1 - np.arange(len(fresh))

    @property
    def changes(self) -> int:
        """Tombstones and vectors in no cluster, each of which costs every search."""
        return len(self._fresh) + len(self._positions) - int(np.count_nonzero(self._positions >= 0))

    def nearest(self, query: npt.NDArray[np.float32], count: int, allowed: Mask | None = None) -> Positions:
        """About the `count` allowed documents nearest to `query` (dimension,), best first.

        Never one that is not allowed, and `count` of them or all that are allowed; some may not be the nearest.
        """
        available = self._size if allowed is None else int(np.count_nonzero(allowed))
        count = min(count, available)
        if count <= 0:
            return np.zeros(0, dtype=np.int64)
        if allowed is not None and available <= max(SCANNED_ALLOWED, count):
            candidates = np.flatnonzero(allowed)
        else:
            rows = self._rows(query, count, allowed)
            fresh = self._fresh_positions if allowed is None else self._fresh_positions[allowed[self._fresh_positions]]
            candidates = np.concatenate((self._positions[rows], fresh))
        similarities = self.similarities(query, candidates)
        best: Positions = candidates[np.lexsort((candidates, -similarities))[:count]]
        return best

    def similarities(self, query: npt.NDArray[np.float32], positions: Positions) -> npt.NDArray[np.float32]:
        """Inner products of `query` (dimension,) with the documents at `positions` (k,), in their order."""
        places = self._places[positions]
        similarities = np.zeros(len(places), dtype=np.float32)
        stored = places >= 0
        vectors = self.clusters.vectors[places[stored]].astype(np.float32)
        similarities[stored] = np.einsum("nd,d->n", vectors, query)
        similarities[~stored] = np.einsum("nd,d->n", self._fresh[-1 - places[~stored]], query)
        return similarities

    def _rows(self, query: npt.NDArray[np.float32], count: int, allowed: Mask | None) -> Rows:
        """Rows of living, allowed documents that are among the nearest by their 8-bit codes."""
        living, bits = self._living if allowed is None else self._selected(allowed)
        wanted = min(max(RERANKED * count, MIN_RERANKED), living)
        if not wanted:
            return np.zeros(0, dtype=np.int64)
        selector = None if bits is None else self._faiss.IDSelectorBitmap(bits)
        lists = self.clusters.inverted.nlist
        # the fewer are allowed, the more clusters it takes to meet as many of them, at the same cost
        probed = min(PROBED_SHARE * lists, MAX_PROBED) * len(self._positions) / max(living, 1)
        for probes in (min(lists, max(1, round(probed))), lists):
            parameters = self._faiss.SearchParametersIVF(nprobe=probes, **({"sel": selector} if selector else {}))
            rows: Rows = self.clusters.inverted.search(query[np.newaxis, :], wanted, params=parameters)[1][0]
            rows = rows[rows >= 0]
            if len(rows) >= min(count, living):
                break
        return rows

    def _selected(self, allowed: Mask) -> tuple[int, npt.NDArray[np.uint8]]:
        selected = allowed[self._positions] & (self._positions >= 0)
        return int(np.count_nonzero(selected)), np.packbits(selected, bitorder="little")

    @cached_property
    def _living(self) -> tuple[int, npt.NDArray[np.uint8] | None]:
        living = self._positions >= 0
        count = int(np.count_nonzero(living))
        return count, None if count == len(living) else np.packbits(living, bitorder="little")


def _empty(faiss: Any, quantizer: Any, clusters: int) -> Any:
    dimension = quantizer.d
    return faiss.IndexIVFScalarQuantizer(
        quantizer, dimension, clusters, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
    )
