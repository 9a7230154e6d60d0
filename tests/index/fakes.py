"""A deterministic embedder that means something: texts are similar when they share words."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from pml_gateway.index.embedder import Embeddings


class HashedWords:
    """Each word adds one fixed random direction; remembers what it was asked to encode."""

    def __init__(self, dimension: int = 128, model_id: str = "hashed-words") -> None:
        self.model_id = model_id
        self.dimension = dimension
        self.encoded: list[str] = []

    def encode(self, texts: Sequence[str]) -> Embeddings:
        """Embed texts as the normalised sum of their words; a text without words gets a direction of its own."""
        self.encoded += texts
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in re.findall(r"\w+", text.lower()) or [text]:
                vectors[row] += _direction(word, self.dimension)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


@lru_cache(maxsize=10_000)
def _direction(word: str, dimension: int) -> Embeddings:
    seed = int.from_bytes(hashlib.sha256(word.encode("utf-8", "surrogatepass")).digest()[:8], "big")
    return np.random.default_rng(seed).standard_normal(dimension).astype(np.float32)
