"""Blobs: bytes by a digest, in an SQLite file that several processes share."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pml_gateway.log import get_logger
from pml_gateway.storage.kinds import VECTORS
from pml_gateway.storage.places import CACHE, warn_unwritable
from pml_gateway.storage.tables import Connection, Tables, TablesError, keep_newest

logger = get_logger(__name__)

LOOKUP_BATCH = 500
"""Host parameters of one statement; old SQLite builds allow 999."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS blobs (
    space TEXT NOT NULL, digest BLOB NOT NULL, blob BLOB NOT NULL, used INTEGER NOT NULL,
    PRIMARY KEY (space, digest)
)
"""
"""The table has row ids, so that two vectors of 384 numbers fit on a page; without, each takes over one."""


class BlobTable:
    """Blobs by space and digest in one SQLite file.

    They can be made anew, so an unusable file is done without.
    """

    def __init__(self, path: Path, max_entries: int) -> None:
        self._tables, self._max_entries = Tables(VECTORS, path, _SCHEMA), max_entries

    def read(self, space: str, digests: Sequence[bytes]) -> dict[bytes, object]:
        """Return the stored blobs among these digests."""
        distinct = list(dict.fromkeys(digests))

        def ask(connection: Connection) -> dict[bytes, object]:
            found: dict[bytes, object] = {}
            for start in range(0, len(distinct), LOOKUP_BATCH):
                batch = distinct[start : start + LOOKUP_BATCH]
                marks = ",".join("?" * len(batch))
                found |= connection.execute(
                    f"SELECT digest, blob FROM blobs WHERE space = ? AND digest IN ({marks})", (space, *batch)
                )
            return found

        try:
            return self._tables.read(ask, {})
        except TablesError as exc:
            logger.warning("the cache is not read: %s", exc)
            return {}

    def write(self, space: str, blobs: Mapping[bytes, bytes]) -> None:
        """Store blobs; delete the oldest entries if there are too many."""
        now = time.time_ns()
        rows = [(space, digest, blob, now) for digest, blob in blobs.items()]

        def update(connection: Connection) -> None:
            connection.executemany("INSERT OR REPLACE INTO blobs VALUES (?, ?, ?, ?)", rows)
            self._trim(connection, min(map(len, blobs.values())))

        try:
            self._tables.change(update)
        except TablesError as exc:
            warn_unwritable(CACHE, self._tables.path.parent, exc)

    def _trim(self, connection: Connection, blob_bytes: int) -> None:
        (pages,), (free,), (page_bytes,) = (
            connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count", "page_size")
        )
        if (pages - free) * page_bytes < self._max_entries * blob_bytes:
            return  # counting reads the whole index, and the file is too small for more than `max_entries`
        keep_newest(connection, "blobs", "used, digest", self._max_entries)
