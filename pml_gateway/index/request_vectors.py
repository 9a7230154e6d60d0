"""Request vectors: what somebody asks who needs a tool, in 8 bits a component, compared with what is asked now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pml_gateway.index.embedder import Embedder, Embeddings
from pml_gateway.index.text import well_formed
from pml_gateway.index.vectors import Mask, Positions, Rows

LEVELS = 127
"""Of a component on either side of nothing. Scaled to the largest component of its vector, a cosine changes by 0.0004;
scaled to 1, as means are, by 0.002, which is good enough for finding candidates."""

READ_AT_ONCE = 500
"""Tools whose vectors are in memory twice for a moment, 3 kB each."""

Codes = npt.NDArray[np.int8]
Scales = npt.NDArray[np.float32]

Requests = Sequence[tuple[str, ...]]
"""The texts of each of n tools."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """The vectors of the r requests of one tool."""

    codes: Codes
    """(r, dimension), each vector divided by its scale."""
    scales: Scales
    """(r,)"""

    @classmethod
    def of(cls, vectors: Embeddings) -> Encoded:
        """Vectors (r, dimension) in 8 bits."""
        scales = np.abs(vectors).max(axis=1) / np.float32(LEVELS)
        scales[scales == 0] = 1
        return cls(np.rint(vectors / scales[:, np.newaxis]).astype(np.int8), scales)


Item = TypeVar("Item", bound=Encoded | None)

Encode = Callable[[Requests], Sequence[Item]]
"""The vectors of the requests of tools, each of which has some; None for those that are not to be had."""


def encoded(embedder: Embedder, requests: Requests) -> list[Encoded]:
    """The vectors of the requests of n tools, each of which has some.

    They are read as documents are, so that cosines of queries with both are on one scale.
    """
    if not requests:
        return []
    vectors = embedder.encode([well_formed(text) for texts in requests for text in texts])
    return [Encoded.of(part) for part in np.split(vectors, np.cumsum([len(texts) for texts in requests])[:-1])]


@dataclass(frozen=True, slots=True)
class RequestCodes:
    """The m vectors of the requests of n tools, each of which has some."""

    starts: Rows
    """(n + 1,): those of tool number i are the rows from starts[i] to starts[i + 1]."""
    codes: Codes
    """(m, dimension), in memory or mapped from a file."""
    scales: Scales
    """(m,)"""
    means: Any
    """FAISS scan of the means of each tool (n, dimension), 8 bits per component."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, number: int) -> Encoded:
        rows = slice(self.starts[number], self.starts[number + 1])
        return Encoded(self.codes[rows], self.scales[rows])

    @classmethod
    def gathered(
        cls, tools: Iterable[Encoded | None], counts: Sequence[int], dimension: int
    ) -> tuple[RequestCodes, Positions]:
        """Put together the requests of tools, of which there are `counts` each, and the numbers of those there are."""
        import faiss  # imported late: see pml_gateway/index/__init__.py

        faiss.omp_set_num_threads(1)
        # pages of arrays that nothing is written to take no memory
        codes = np.empty((sum(counts), dimension), dtype=np.int8)
        scales = np.empty(len(codes), dtype=np.float32)
        levels = np.empty((len(counts), dimension), dtype=np.float32)
        numbers, starts = list[int](), [0]
        for number, tool in enumerate(tools):
            if tool is not None:
                rows = slice(starts[-1], starts[-1] + len(tool.scales))
                codes[rows], scales[rows] = tool.codes, tool.scales
                levels[len(numbers)] = np.rint(np.float32(LEVELS / len(tool.scales)) * (tool.scales @ tool.codes))
                numbers.append(number)
                starts.append(rows.stop)
        means = faiss.IndexScalarQuantizer(
            dimension, faiss.ScalarQuantizer.QT_8bit_direct_signed, faiss.METRIC_INNER_PRODUCT
        )
        means.add(levels[: len(numbers)])
        here = slice(starts[-1])
        return cls(np.asarray(starts, dtype=np.int64), codes[here], scales[here], means), np.asarray(numbers, np.int64)


def in_turn(
    requests: Requests, positions: Positions, encode: Encode[Item], pause: Callable[[], None]
) -> Iterator[Item]:
    """The vectors of the requests of the tools at `positions`, some at a time, with a `pause` before each."""
    for start in range(0, len(positions), READ_AT_ONCE):
        pause()
        yield from encode([requests[at] for at in positions[start : start + READ_AT_ONCE].tolist()])


def gathered_at(
    requests: Requests, positions: Positions, tools: Iterable[Encoded | None], dimension: int
) -> tuple[RequestCodes, Positions]:
    """Those of the tools at `positions` whose vectors there are, and which those are."""
    codes, numbers = RequestCodes.gathered(tools, [len(requests[at]) for at in positions.tolist()], dimension)
    return codes, positions[numbers]


def with_requests(requests: Requests) -> Positions:
    """Which tools have some."""
    return np.asarray([at for at, texts in enumerate(requests) if texts], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class RequestEvidence:
    """How near the requests of k tools are to q queries."""

    mean: npt.NDArray[np.float32]
    """(q, k) cosines; NaN for a tool without requests."""
    best: npt.NDArray[np.float32]
    """(q, k) cosines of the nearest request; NaN for a tool without requests."""
    which: npt.NDArray[np.int64]
    """(q, k) number of the nearest request among those of its tool; -1 for a tool without requests."""
    counts: npt.NDArray[np.int64]
    """(k,) requests of each tool."""


class RequestVectors:
    """The vectors of the requests of n tools, some of which may have none, or none yet."""

    def __init__(self, size: int, *parts: tuple[RequestCodes, Positions]) -> None:
        """Put together.

        Args:
            size: n.
            parts: requests of some tools, and which tools those are, -1 where a tool has gone.
        """
        import faiss  # imported late, as above

        self._faiss: Any = faiss
        self._parts = [(codes, positions) for codes, positions in parts if len(codes)]
        self.counts = np.zeros(size, dtype=np.int64)
        """(n,) requests of each tool whose vectors are here."""
        self._first = np.zeros(size, dtype=np.int64)
        offset = 0
        for codes, positions in self._parts:
            alive = positions >= 0
            self._first[positions[alive]] = codes.starts[:-1][alive] + offset
            self.counts[positions[alive]] = np.diff(codes.starts)[alive]
            offset += len(codes.codes)

    def __bool__(self) -> bool:
        return bool(self._parts)

    def nearest(self, query: npt.NDArray[np.float32], count: int, allowed: Mask | None = None) -> Positions:
        """The `count` allowed tools whose mean requests are nearest to `query` (dimension,), best first."""
        if not self:
            return np.zeros(0, dtype=np.int64)
        # the scan reads whole numbers only: it cuts off what stands behind the point
        asked = np.rint(query * (np.float32(LEVELS) / max(float(np.abs(query).max()), 1e-9)))[np.newaxis, :]
        found = [(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32))]
        for codes, positions in self._parts:
            alive = positions >= 0 if allowed is None else (positions >= 0) & allowed[positions]
            parameters = None
            if (available := int(np.count_nonzero(alive))) < len(positions):
                bits = np.packbits(alive, bitorder="little")
                parameters = self._faiss.SearchParameters(sel=self._faiss.IDSelectorBitmap(bits))
            if wanted := min(count, available):
                near, rows = codes.means.search(asked, wanted, params=parameters)
                found.append((positions[rows[0]], near[0]))
        tools, near = (np.concatenate(each) for each in zip(*found, strict=True))
        best: Positions = tools[np.lexsort((tools, -near))[: max(count, 0)]]
        return best

    def evidence(self, queries: npt.NDArray[np.float32], positions: Positions) -> RequestEvidence:
        """What the requests of the tools at `positions` (k,) say of `queries` (q, dimension).

        Bit for bit the same for a tool and a query whatever else is in the index or asked about.
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
        return RequestEvidence(mean, best, which, counts)

    def _cosines(self, queries: npt.NDArray[np.float32], rows: Rows) -> npt.NDArray[np.float32]:
        """(q, r), of the requests in rows (r,), counted through all parts."""
        cosines = np.empty((len(queries), len(rows)), dtype=np.float32)
        for codes, _ in self._parts:
            here = np.flatnonzero((rows >= 0) & (rows < len(codes.codes)))
            own = rows[here]
            vectors, scales = codes.codes[own].astype(np.float32), codes.scales[own]
            for query, near in zip(queries, cosines, strict=True):
                # einsum keeps to one thread and one summation order whatever the number of rows
                near[here] = np.einsum("nd,d->n", vectors, query) * scales
            rows = rows - len(codes.codes)
        return cosines
