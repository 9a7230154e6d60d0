"""The embedding cache: remembers the vectors of texts on disk, shared by all gateway processes."""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from pml_gateway.files import OWNER_ONLY, make_private
from pml_gateway.home import CACHE, do_without
from pml_gateway.index.embedder import Embedder, Embeddings
from pml_gateway.index.vectors import Positions

MAX_ENTRIES = 50_000
"""About 110 MB of 384-dimensional vectors; the catalogs of several large gateways."""

LOCK_SECONDS = 5.0
"""How long to wait for another process that writes; after that the vectors are simply computed."""

LOOKUP_BATCH = 500
"""Host parameters of one statement; old SQLite builds allow 999."""

LENGTH_TOLERANCE = 1e-3
"""A stored vector whose length is not 1 within this is damaged."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS embeddings (
    model TEXT NOT NULL, digest BLOB NOT NULL, vector BLOB NOT NULL, used INTEGER NOT NULL,
    PRIMARY KEY (model, digest)
)
"""
"""With row ids, two vectors fit on a page; without, each would take more than a whole one."""

_logger = logging.getLogger(__name__)


class EmbeddingCache:
    """Vectors by model and content hash in one SQLite file.

    SQLite brings the atomic writes and the locks between processes. A cache must never stop a search: a damaged file
    is replaced, and one that cannot be used is passed over.
    """

    def __init__(self, directory: Path, *, max_entries: int = MAX_ENTRIES) -> None:
        self._path = directory / "embeddings.sqlite3"
        self._max_entries = max_entries

    def encode(self, embedder: Embedder, texts: Sequence[str]) -> Embeddings:
        """Embed texts (n,) as (n, dimension), asking the embedder only for those not stored yet."""
        digests = [_digest(text) for text in texts]
        known = self._read(embedder, list(dict.fromkeys(digests)))
        missing = {digest: text for digest, text in zip(digests, texts, strict=True) if digest not in known}
        if missing:
            fresh = dict(zip(missing, embedder.encode(list(missing.values())), strict=True))
            self._write(embedder.model_id, fresh)
            known |= fresh
        vectors = np.zeros((len(texts), embedder.dimension), dtype=np.float32)
        for row, digest in enumerate(digests):
            vectors[row] = known[digest]
        return vectors

    def stored(self, embedder: Embedder, texts: Sequence[str]) -> tuple[Embeddings, Positions]:
        """The vectors (k, dimension) that are stored already, and which of the texts (k,) they are of."""
        digests = [_digest(text) for text in texts]
        known = self._read(embedder, list(dict.fromkeys(digests)))
        positions = np.asarray([at for at, digest in enumerate(digests) if digest in known], dtype=np.int64)
        vectors = np.empty((len(positions), embedder.dimension), dtype=np.float32)
        for row, at in enumerate(positions.tolist()):
            vectors[row] = known[digests[at]]
        return vectors, positions

    def _read(self, embedder: Embedder, digests: Sequence[bytes]) -> dict[bytes, Embeddings]:
        found: dict[bytes, Embeddings] = {}
        try:
            if not self._path.exists():
                return found
            with self._connection() as connection:
                for start in range(0, len(digests), LOOKUP_BATCH):
                    batch = digests[start : start + LOOKUP_BATCH]
                    marks = ",".join("?" * len(batch))
                    rows = connection.execute(
                        f"SELECT digest, vector FROM embeddings WHERE model = ? AND digest IN ({marks})",
                        (embedder.model_id, *batch),
                    )
                    found |= {
                        digest: vector for digest, blob in rows if (vector := _vector(blob, embedder)) is not None
                    }
        except (OSError, sqlite3.OperationalError) as exc:
            _logger.warning("embedding cache %s not read: %s", self._path, exc)
        except sqlite3.DatabaseError as exc:
            self._discard(exc)
        return found

    def _write(self, model_id: str, fresh: dict[bytes, Embeddings]) -> None:
        now = time.time_ns()
        rows = [(model_id, digest, vector.astype("<f4").tobytes(), now) for digest, vector in fresh.items()]
        try:
            make_private(self._path.parent)
            # SQLite gives the files beside it the same mode.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, OWNER_ONLY))
            with self._connection() as connection, connection:
                connection.executemany("INSERT OR REPLACE INTO embeddings VALUES (?, ?, ?, ?)", rows)
                self._trim(connection, len(rows[0][2]))
        except (OSError, sqlite3.OperationalError) as exc:
            do_without(CACHE, self._path.parent, exc)
        except sqlite3.DatabaseError as exc:
            self._discard(exc)

    def _trim(self, connection: sqlite3.Connection, vector_bytes: int) -> None:
        (pages,), (free,), (page_bytes,) = (
            connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count", "page_size")
        )
        if (pages - free) * page_bytes < self._max_entries * vector_bytes:
            return  # counting reads the whole index, and so many vectors would not fit in
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

    def _discard(self, reason: sqlite3.DatabaseError) -> None:
        _logger.warning("embedding cache %s is damaged and starts afresh: %s", self._path, reason)
        try:
            self._path.unlink(missing_ok=True)
        except OSError as exc:
            _logger.warning("embedding cache %s cannot be removed: %s", self._path, exc)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _vector(blob: object, embedder: Embedder) -> Embeddings | None:
    if not isinstance(blob, bytes) or len(blob) != 4 * embedder.dimension:
        return None
    vector = np.frombuffer(blob, dtype="<f4").astype(np.float32)
    return vector if abs(float(np.linalg.norm(vector)) - 1) <= LENGTH_TOLERANCE else None
