"""Tables, and blobs by a digest: SQLite files that several processes share, each for its owner alone."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pml_gateway.errors import GatewayError
from pml_gateway.files import OWNER_ONLY, make_private
from pml_gateway.log import get_logger
from pml_gateway.storage.kinds import VECTORS, StorageShape, StoredKind
from pml_gateway.storage.places import CACHE, free_aside, warn_unwritable

logger = get_logger(__name__)

LOCK_SECONDS = 5.0
"""Seconds that a statement waits for another process; only threads and commands wait."""

Connection = sqlite3.Connection
ResultT = TypeVar("ResultT")

_DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)
"""Errors of SQLite, but not of their subclasses, for files that are not databases; its message may not be text."""

_CHANGES = slice(24, 28)
"""Offset of the change counter in an SQLite file."""

_MAKING = threading.Lock()
_TURNS: dict[Path, threading.Lock] = {}
"""Locks by file: whoever reads a signature closes the file, which drops SQLite's locks in other threads (POSIX)."""

LOOKUP_BATCH = 500
"""Host parameters of one statement; old SQLite builds allow 999."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS blobs (
    space TEXT NOT NULL, digest BLOB NOT NULL, blob BLOB NOT NULL, used INTEGER NOT NULL,
    PRIMARY KEY (space, digest)
)
"""
"""The table has row ids, so that two vectors of 384 numbers fit on a page; without, each takes over one."""


NO_UPGRADES: Mapping[int, Sequence[str]] = MappingProxyType({})


class TablesError(GatewayError):
    """Tables cannot be read or written; its cause is the fault below."""


class DamagedTablesError(TablesError):
    """Tables were damaged; now there are none."""


class Tables:
    """Tables of one file. Every method blocks: call it in a thread.

    A damaged file is set aside, or deleted if it holds blobs, which can be made anew.
    """

    def __init__(
        self,
        kind: StoredKind,
        path: Path,
        schema: str,
        *,
        version: int = 1,
        upgrades: Mapping[int, Sequence[str]] = NO_UPGRADES,
        keeps_open: bool = False,
    ) -> None:
        """Name the tables; their file need not exist.

        Args:
            kind: their row in the table of kinds.
            path: the file.
            schema: statements that create what is missing.
            version: version of the schema; a file of a later one is left alone.
            upgrades: for some versions, statements that make a file of the version before it one of that version.
            keeps_open: many small changes by one thread: the connection is kept until `close`, with a log of writes.
        """
        self.kind = kind
        self.path = path
        self._schema = schema
        self._version = version
        self._upgrades = upgrades
        self._keeps_open = keeps_open
        self._turn: AbstractContextManager[object] = (
            nullcontext() if keeps_open else _TURNS.setdefault(path, threading.Lock())
        )
        self._connection: Connection | None = None
        self._file: int | None = None

    @property
    def signature(self) -> bytes:
        """Return a value that differs after every change of tables that are not kept open; b"" without a file."""
        try:
            with self._turn, self.path.open("rb") as file:
                return b"%d " % os.fstat(file.fileno()).st_ino + file.read(_CHANGES.stop)[_CHANGES]
        except OSError:
            return b""

    def read(self, ask: Callable[[Connection], ResultT], missing: ResultT) -> ResultT:
        """Return what `ask` finds; `missing` if nothing was ever written, or the file is damaged.

        Raises:
            TablesError: they cannot be read.
        """
        try:
            with self._turn, self._failures("read"):
                if not self.path.exists():
                    return missing
                with closing(self._connect()) as connection:
                    return ask(connection) if self._found_version(connection) else missing
        except DamagedTablesError:
            return missing

    def rows(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query, as `read` does; none if there is nothing to read."""
        return self.read(lambda connection: connection.execute(query, values).fetchall(), [])

    def exist(self) -> bool:
        """Return True if something was ever written; raises as `read` does."""
        return self.read(lambda _: True, missing=False)

    def change(self, update: Callable[[Connection], ResultT]) -> ResultT:
        """Make all changes of `update` or none; return its result.

        Raises:
            TablesError: they cannot be written.
        """
        with self._turn, self._failures("written"):
            make_own_file(self.path)
            try:
                with self._writable() as connection:
                    connection.execute("BEGIN IMMEDIATE")
                    return update(connection)
            except BaseException:
                self.close()
                raise
            finally:
                if not self._keeps_open:
                    self.close()

    def shrink(self) -> None:
        """Give back the room of deleted rows, unless another process is reading at this moment."""
        with suppress(TablesError):
            self.read(_shrink, None)

    def close(self) -> None:
        """Close the connection that is kept."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _writable(self) -> Connection:
        """Return the connection for changes; a new one if the file was removed since it was opened."""
        if self._connection is None or self._file != _inode(self.path):
            self.close()
            self._file, self._connection = _inode(self.path), self._connect()
            found = self._found_version(self._connection)
            if self._keeps_open:
                self._connection.execute("PRAGMA journal_mode=WAL")
                self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.executescript(self._schema)
            if found < self._version:
                self._connection.execute(f"PRAGMA user_version={self._version}")
        return self._connection

    def _connect(self) -> Connection:
        # SQLite gives the files next to it the same mode.
        return sqlite3.connect(self.path, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False)

    def _found_version(self, connection: Connection) -> int:
        """Return the version of the schema in the file, after the upgrades that it needs; 0 in a new one."""
        version = _version_of(connection)
        if version > self._version:
            raise sqlite3.OperationalError("it was written by a later version of the gateway")
        if version and any(version < upgrade for upgrade in self._upgrades):
            connection.execute("BEGIN IMMEDIATE")
            # Another process may have been faster.
            for upgrade in range(_version_of(connection) + 1, self._version + 1):
                for statement in self._upgrades.get(upgrade, ()):
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version={self._version}")
            connection.execute("COMMIT")
            return self._version
        return version

    @contextmanager
    def _failures(self, done: str) -> Iterator[None]:
        opened = _inode(self.path)
        try:
            yield
        except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
            is_damaged = type(error) in _DAMAGE
            if is_damaged and opened == _inode(self.path):  # else another process has discarded it
                self._discard(error)
            raise (DamagedTablesError if is_damaged else TablesError)(
                f"{self.path} cannot be {done} ({error})",
                hint="try again in a moment; if that does not help, move the file away",
            ) from error

    def _discard(self, reason: Exception) -> None:
        aside = free_aside(self.path.with_name(f"{self.path.name}.damaged"))
        is_blob = self.kind.shape is StorageShape.BLOB
        journal = self.path.with_name(f"{self.path.name}-wal")
        try:
            # SQLite removes what belongs to an earlier file of this name, and rows that others wrote may be in it.
            if not is_blob and journal.exists():
                journal.replace(aside.with_name(f"{aside.name}-wal"))
            self.path.unlink() if is_blob else self.path.replace(aside)
        except OSError as error:
            logger.warning("%s is damaged (%s), and cannot be removed: %s", self.path, reason, error)
        else:
            kept = "" if is_blob else f"; set aside as {aside.name}"
            logger.warning("%s is damaged (%s), and starts afresh%s", self.path, reason, kept)


def _version_of(connection: Connection) -> int:
    [(version,)] = connection.execute("PRAGMA user_version").fetchall()
    return int(version)


def keep_newest(connection: Connection, table: str, order: str, max_rows: int) -> None:
    """Delete the first rows in this order if there are more than `max_rows`."""
    [(count,)] = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
    if count > max_rows:
        surplus = f"SELECT rowid FROM {table} ORDER BY {order} LIMIT ?"
        connection.execute(f"DELETE FROM {table} WHERE rowid IN ({surplus})", (count - max_rows,))


def make_own_file(path: Path) -> None:
    """Have a file for its owner alone, for SQLite to write; one that is there is not opened.

    Whoever closes a file drops all locks that its process has on it (POSIX), also those of SQLite in other threads,
    and without them another process breaks the file.

    Raises:
        OSError: there is none, and none can be made; or it cannot be written.
    """
    make_private(path.parent)
    with _MAKING:
        if not path.exists():
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, OWNER_ONLY))
        elif not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, "it cannot be written", str(path))


def _inode(path: Path) -> int | None:
    """Return the number of the file that has this name now."""
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _shrink(connection: Connection) -> None:
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


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
