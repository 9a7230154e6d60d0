"""The embedding cache: remembers the vectors of texts on disk, shared by all gateway processes."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pml_gateway.index.embedder import Embedder, Embeddings
from pml_gateway.index.evidence import Positions
from pml_gateway.index.vectors import EncodedExamples, Examples, encoded
from pml_gateway.storage.tables import BlobTable

MAX_ENTRIES = 50_000
"""Maximum number of tools, enough for the catalogs of several large gateways: about 110 MB of 384-dimensional vectors,
and 210 MB if each tool has eight examples."""

ENTRIES_PER_TOOL = 1.25
"""Minimum number of entries kept for each tool of a catalog: encoding a large one takes an hour, and must not be
repeated at every start."""

READ_AT_ONCE = 10_000
"""Number of vectors read at once; they are in memory twice for a moment, 15 MB."""

LENGTH_TOLERANCE = 1e-3
"""Maximum deviation from length 1 of a stored vector; beyond it, the vector is damaged."""

CHECKSUM_BYTES = 4
"""Bytes of the checksum before the vectors of examples."""


class EmbeddingCache:
    """A cache of vectors by model and content hash: one for each text, and one entry for all examples of a tool."""

    def __init__(self, directory: Path, *, max_entries: int = MAX_ENTRIES) -> None:
        """Use a directory shared with other processes; `max_entries` limits texts and examples separately."""
        self._texts = BlobTable(directory / "embeddings.sqlite3", max_entries)
        self._examples = BlobTable(directory / "examples.sqlite3", max_entries)

    @classmethod
    def of_catalog(cls, cache_dir: Path, tools: int) -> EmbeddingCache:
        """Return the cache in `cache_dir`, large enough for a catalog of this size."""
        return cls(cache_dir / "embeddings", max_entries=max(MAX_ENTRIES, round(ENTRIES_PER_TOOL * tools)))

    def encode(self, embedder: Embedder, texts: Sequence[str]) -> Embeddings:
        """Embed texts (n,) as (n, dimension), asking the embedder only for those not stored yet."""
        digests = [_digest(text) for text in texts]
        known = self._known(embedder, digests)
        missing = {digest: text for digest, text in zip(digests, texts, strict=True) if digest not in known}
        if missing:
            fresh = dict(zip(missing, embedder.encode(list(missing.values())), strict=True))
            blobs = {digest: vector.astype("<f4").tobytes() for digest, vector in fresh.items()}
            self._texts.write(embedder.model_id, blobs)
            known |= fresh
        vectors = np.zeros((len(texts), embedder.dimension), dtype=np.float32)
        for row, digest in enumerate(digests):
            vectors[row] = known[digest]
        return vectors

    def stored(self, embedder: Embedder, texts: Sequence[str]) -> tuple[Embeddings, Positions]:
        """Return the vectors (k, dimension) that are stored already, and the positions (k,) of their texts."""
        # pages of an array that are never written take no memory
        vectors = np.empty((len(texts), embedder.dimension), dtype=np.float32)
        positions = list[int]()
        for start in range(0, len(texts), READ_AT_ONCE):
            digests = [_digest(text) for text in texts[start : start + READ_AT_ONCE]]
            known = self._known(embedder, digests)
            for at, digest in enumerate(digests, start):
                if digest in known:
                    vectors[len(positions)] = known[digest]
                    positions.append(at)
        return vectors[: len(positions)], np.asarray(positions, dtype=np.int64)

    def encode_examples(self, embedder: Embedder, examples: Examples) -> list[EncodedExamples]:
        """Return the vectors of the examples of n tools, each with at least one; only missing vectors are computed."""
        stored = self.stored_examples(embedder, examples)
        missing = [texts for texts, vectors in zip(examples, stored, strict=True) if vectors is None]
        fresh = encoded(embedder, missing)
        if missing:
            blobs = {_digest("\0".join(texts)): _blob(each) for texts, each in zip(missing, fresh, strict=True)}
            self._examples.write(embedder.model_id, blobs)
        computed = iter(fresh)
        return [next(computed) if vectors is None else vectors for vectors in stored]

    def stored_examples(self, embedder: Embedder, examples: Examples) -> list[EncodedExamples | None]:
        """Return the stored vectors of the examples of n tools; None for a tool whose vectors are not stored."""
        digests = [_digest("\0".join(texts)) for texts in examples]
        blobs = self._examples.read(embedder.model_id, digests)
        return [
            _examples_in(blobs.get(digest), len(texts), embedder.dimension)
            for digest, texts in zip(digests, examples, strict=True)
        ]

    def _known(self, embedder: Embedder, digests: Sequence[bytes]) -> dict[bytes, Embeddings]:
        blobs = self._texts.read(embedder.model_id, digests)
        return {digest: vector for digest, blob in blobs.items() if (vector := _vector(blob, embedder)) is not None}


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _blob(examples: EncodedExamples) -> bytes:
    content = examples.scales.astype("<f4").tobytes() + examples.codes.tobytes()
    return zlib.crc32(content).to_bytes(CHECKSUM_BYTES, "little") + content


def _examples_in(blob: object, count: int, dimension: int) -> EncodedExamples | None:
    if not isinstance(blob, bytes) or len(blob) != CHECKSUM_BYTES + count * (4 + dimension):
        return None
    if zlib.crc32(memoryview(blob)[CHECKSUM_BYTES:]) != int.from_bytes(blob[:CHECKSUM_BYTES], "little"):
        return None
    scales = np.frombuffer(blob, dtype="<f4", count=count, offset=CHECKSUM_BYTES).astype(np.float32)
    codes = np.frombuffer(blob, dtype=np.int8, offset=CHECKSUM_BYTES + 4 * count)
    return EncodedExamples(codes.reshape(count, dimension), scales)


def _vector(blob: object, embedder: Embedder) -> Embeddings | None:
    if not isinstance(blob, bytes) or len(blob) != 4 * embedder.dimension:
        return None
    vector = np.frombuffer(blob, dtype="<f4").astype(np.float32)
    return vector if abs(float(np.linalg.norm(vector)) - 1) <= LENGTH_TOLERANCE else None
