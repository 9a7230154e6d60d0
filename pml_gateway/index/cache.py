"""The embedding cache: remembers the vectors of texts on disk, shared by all gateway processes."""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from pml_gateway.files import make_own_file
from pml_gateway.home import CACHE, warn_unwritable
from pml_gateway.index.embedder import Embedder, Embeddings
from pml_gateway.index.request_vectors import EncodedRequests, Requests, encoded
from pml_gateway.index.vectors import Positions

MAX_ENTRIES = 50_000
"""Maximum number of tools, enough for the catalogs of several large gateways: about 110 MB of 384-dimensional vectors,
and 210 MB if each tool has eight requests."""

ENTRIES_PER_TOOL = 1.25
"""Minimum number of entries kept for each tool of a catalog: encoding a large one takes an hour, and must not be
repeated at every start."""

LOCK_SECONDS = 5.0
"""Seconds to wait for another process that writes; after that the vectors are computed without the cache."""

LOOKUP_BATCH = 500
"""Host parameters of one statement; old SQLite builds allow 999."""

READ_AT_ONCE = 10_000
"""Number of vectors read at once; they are in memory twice for a moment, 15 MB."""

LENGTH_TOLERANCE = 1e-3
"""Maximum deviation from length 1 of a stored vector; beyond it, the vector is damaged."""

CHECKSUM_BYTES = 4
"""Bytes of the checksum before the vectors of requests."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS embeddings (
    model TEXT NOT NULL, digest BLOB NOT NULL, vector BLOB NOT NULL, used INTEGER NOT NULL,
    PRIMARY KEY (model, digest)
)
"""
"""The table has row ids, so that two vectors fit on a page; without, each would take more than one page."""

_logger = logging.getLogger(__name__)


class EmbeddingCache:
    """A cache of vectors by model and content hash: one for each text, and one entry for all requests of a tool."""

    def __init__(self, directory: Path, *, max_entries: int = MAX_ENTRIES) -> None:
        """Use a directory shared with other processes; `max_entries` limits texts and requests separately."""
        self._texts = _Table(directory / "embeddings.sqlite3", max_entries)
        self._requests = _Table(directory / "requests.sqlite3", max_entries)

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

    def encode_requests(self, embedder: Embedder, requests: Requests) -> list[EncodedRequests]:
        """Return the vectors of the requests of n tools, each with at least one; only missing vectors are computed."""
        stored = self.stored_requests(embedder, requests)
        missing = [texts for texts, vectors in zip(requests, stored, strict=True) if vectors is None]
        fresh = encoded(embedder, missing)
        if missing:
            blobs = {_digest("\0".join(texts)): _blob(each) for texts, each in zip(missing, fresh, strict=True)}
            self._requests.write(embedder.model_id, blobs)
        computed = iter(fresh)
        return [next(computed) if vectors is None else vectors for vectors in stored]

    def stored_requests(self, embedder: Embedder, requests: Requests) -> list[EncodedRequests | None]:
        """Return the stored vectors of the requests of n tools; None for a tool whose vectors are not stored."""
        digests = [_digest("\0".join(texts)) for texts in requests]
        blobs = self._requests.read(embedder.model_id, digests)
        return [
            _requests_in(blobs.get(digest), len(texts), embedder.dimension)
            for digest, texts in zip(digests, requests, strict=True)
        ]

    def _known(self, embedder: Embedder, digests: Sequence[bytes]) -> dict[bytes, Embeddings]:
        blobs = self._texts.read(embedder.model_id, digests)
        return {digest: vector for digest, blob in blobs.items() if (vector := _vector(blob, embedder)) is not None}


class _Table:
    """Blobs by model and digest in one SQLite file.

    SQLite provides atomic writes and locks between processes. A cache must never make a search fail: a damaged file is
    replaced, and an unusable one is ignored.
    """

    def __init__(self, path: Path, max_entries: int) -> None:
        self._path, self._max_entries = path, max_entries

    def read(self, model_id: str, digests: Sequence[bytes]) -> dict[bytes, object]:
        """Return the stored blobs among these digests."""
        found: dict[bytes, object] = {}
        distinct = list(dict.fromkeys(digests))
        try:
            if not self._path.exists():
                return found
            with self._connection() as connection:
                for start in range(0, len(distinct), LOOKUP_BATCH):
                    batch = distinct[start : start + LOOKUP_BATCH]
                    marks = ",".join("?" * len(batch))
                    rows = connection.execute(
                        f"SELECT digest, vector FROM embeddings WHERE model = ? AND digest IN ({marks})",
                        (model_id, *batch),
                    )
                    found |= dict(rows)
        except (OSError, sqlite3.OperationalError) as exc:
            _logger.warning("embedding cache %s not read: %s", self._path, exc)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as exc:
            self._discard(exc)
        return found

    def write(self, model_id: str, blobs: Mapping[bytes, bytes]) -> None:
        """Store blobs; delete the oldest entries if there are too many."""
        now = time.time_ns()
        rows = [(model_id, digest, blob, now) for digest, blob in blobs.items()]
        try:
            # SQLite gives its journal files the same mode.
            make_own_file(self._path)
            with self._connection() as connection, connection:
                connection.executemany("INSERT OR REPLACE INTO embeddings VALUES (?, ?, ?, ?)", rows)
                self._trim(connection, min(map(len, blobs.values())))
        except (OSError, sqlite3.OperationalError) as exc:
            warn_unwritable(CACHE, self._path.parent, exc)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as exc:
            self._discard(exc)

    def _trim(self, connection: sqlite3.Connection, vector_bytes: int) -> None:
        (pages,), (free,), (page_bytes,) = (
            connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count", "page_size")
        )
        if (pages - free) * page_bytes < self._max_entries * vector_bytes:
            return  # counting reads the whole index, and the file is too small for more than `max_entries`
        (count,) = connection.execute("SELECT count(*) FROM embeddings").fetchone()
        if count > self._max_entries:
            connection.execute(
                "DELETE FROM embeddings WHERE (model, digest) IN "
                "(SELECT model, digest FROM embeddings ORDER BY used, digest LIMIT ?)",
                (count - self._max_entries,),
            )

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=LOCK_SECONDS)) as connection:
            connection.execute(_SCHEMA)
            yield connection

    def _discard(self, reason: Exception) -> None:
        _logger.warning("embedding cache %s is damaged and starts afresh: %s", self._path, reason)
        try:
            self._path.unlink(missing_ok=True)
        except OSError as exc:
            _logger.warning("embedding cache %s cannot be removed: %s", self._path, exc)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _blob(requests: EncodedRequests) -> bytes:
    content = requests.scales.astype("<f4").tobytes() + requests.codes.tobytes()
    return zlib.crc32(content).to_bytes(CHECKSUM_BYTES, "little") + content


def _requests_in(blob: object, count: int, dimension: int) -> EncodedRequests | None:
    if not isinstance(blob, bytes) or len(blob) != CHECKSUM_BYTES + count * (4 + dimension):
        return None
    if zlib.crc32(memoryview(blob)[CHECKSUM_BYTES:]) != int.from_bytes(blob[:CHECKSUM_BYTES], "little"):
        return None
    scales = np.frombuffer(blob, dtype="<f4", count=count, offset=CHECKSUM_BYTES).astype(np.float32)
    codes = np.frombuffer(blob, dtype=np.int8, offset=CHECKSUM_BYTES + 4 * count)
    return EncodedRequests(codes.reshape(count, dimension), scales)


def _vector(blob: object, embedder: Embedder) -> Embeddings | None:
    if not isinstance(blob, bytes) or len(blob) != 4 * embedder.dimension:
        return None
    vector = np.frombuffer(blob, dtype="<f4").astype(np.float32)
    return vector if abs(float(np.linalg.norm(vector)) - 1) <= LENGTH_TOLERANCE else None
