"""The interface of embedding models: the methods that search needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Embeddings = npt.NDArray[np.float32]
"""(n, dimension), each row of Euclidean length 1."""


class Embedder(Protocol):
    """An embedding model: the inner product of two vectors is their similarity; thread-safe."""

    @property
    def model_id(self) -> str:
        """Return an id that changes whenever the vectors of the same text may change; part of every cache key."""
        ...

    @property
    def dimension(self) -> int:
        """Return the length of one vector."""
        ...

    def encode(self, texts: Sequence[str]) -> Embeddings:
        """Embed texts, one row each, in their order."""
        ...


@runtime_checkable
class QueryEmbedder(Protocol):
    """An embedder that encodes queries differently from documents."""

    def encode_queries(self, texts: Sequence[str]) -> Embeddings:
        """Embed queries, one row each, in their order."""
        ...


def embed_query(embedder: Embedder, query: str) -> npt.NDArray[np.float32]:
    """Return the vector (dimension,) of one query."""
    encode = embedder.encode_queries if isinstance(embedder, QueryEmbedder) else embedder.encode
    vector: npt.NDArray[np.float32] = encode([query])[0]
    return vector
