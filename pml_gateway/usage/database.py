"""The usage database: a file of its owner alone, shared by processes, bounded."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from pml_gateway.errors import GatewayError
from pml_gateway.files import make_own_file

BUSY_SECONDS = 2.0
"""Seconds that a statement waits for another process; only the writer's thread or a command waits."""

VERSION = 1
TABLES = ("calls", "searches", "lists")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS calls (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, config TEXT NOT NULL, upstream TEXT NOT NULL, tool TEXT NOT NULL,
    client TEXT NOT NULL, code TEXT NOT NULL, seconds REAL NOT NULL, how TEXT NOT NULL, mode TEXT NOT NULL,
    stage TEXT NOT NULL, intent TEXT, search INTEGER, rank INTEGER, arguments TEXT
);
CREATE INDEX IF NOT EXISTS calls_at ON calls (at);
CREATE INDEX IF NOT EXISTS calls_search ON calls (search) WHERE search IS NOT NULL;
CREATE TABLE IF NOT EXISTS searches (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, config TEXT NOT NULL, key INTEGER NOT NULL, client TEXT NOT NULL,
    mode TEXT NOT NULL, stage TEXT NOT NULL, query TEXT NOT NULL, hits TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS searches_key ON searches (key);
CREATE TABLE IF NOT EXISTS lists (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, config TEXT NOT NULL, client TEXT NOT NULL, mode TEXT NOT NULL,
    stage TEXT NOT NULL, digest TEXT NOT NULL, full_digest TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS bodies (
    digest TEXT PRIMARY KEY, tools INTEGER NOT NULL, bytes INTEGER NOT NULL, tokens INTEGER, body BLOB
);
"""


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Return the database, made if it is missing, so that only its owner can read it.

    Raises:
        OSError, sqlite3.Error: it cannot be used.
    """
    # SQLite gives the files beside it the same mode.
    make_own_file(path)
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        [(version,)] = connection.execute("PRAGMA user_version").fetchall()
        if version > VERSION:
            raise sqlite3.DatabaseError(f"{path.name} was written by a later version of the gateway")
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA user_version={VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection | None:
    """Return the database as commands read it; None where nothing was recorded yet.

    Raises:
        GatewayError: it cannot be read.
    """
    try:
        if not path.exists():
            return None
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            [(version,)] = connection.execute("PRAGMA user_version").fetchall()
            if version == 0:
                connection.close()
                return None
            connection.execute("SELECT 1 FROM calls LIMIT 1").fetchall()
        except BaseException:
            connection.close()
            raise
    except (OSError, sqlite3.Error) as exc:
        raise GatewayError(
            f"{path} cannot be read ({exc})", hint="another process may hold it; if it is broken, remove the file"
        ) from exc
    return connection


def prune(connection: sqlite3.Connection, oldest: float, max_rows: int) -> None:
    """Delete what is older than `oldest`, the oldest rows beyond `max_rows`, and lists that no row names."""
    for table in TABLES:
        connection.execute(f"DELETE FROM {table} WHERE at < ?", (oldest,))
        connection.execute(
            f"DELETE FROM {table} WHERE id <= (SELECT id FROM {table} ORDER BY id DESC LIMIT 1 OFFSET ?)", (max_rows,)
        )
    connection.execute(
        "DELETE FROM bodies WHERE digest NOT IN (SELECT digest FROM lists UNION SELECT full_digest FROM lists)"
    )


def rename_server(path: Path, config: str, before: str, now: str) -> None:
    """Put what a configuration recorded of one server under another id.

    Raises:
        GatewayError: it cannot be read or written.
    """
    connection = open_for_reading(path)
    if connection is None:
        return
    with closing(connection):
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("UPDATE calls SET upstream = ? WHERE config = ? AND upstream = ?", (now, config, before))
            searches = connection.execute(
                "SELECT id, hits FROM searches WHERE config = ? AND instr(hits, ?)", (config, json.dumps(before))
            ).fetchall()
            for key, text in searches:
                hits = [[now if upstream == before else upstream, tool] for upstream, tool in json.loads(text)]
                connection.execute("UPDATE searches SET hits = ? WHERE id = ?", (json.dumps(hits), key))
            connection.execute("COMMIT")
        except sqlite3.Error as exc:
            raise GatewayError(f"{path} cannot be written ({exc})", hint="try again in a moment") from exc


def clear(path: Path) -> int:
    """Forget everything; how many calls there were. Gateways that run go on recording.

    Raises:
        GatewayError: it cannot be read or written.
    """
    connection = open_for_reading(path)
    if connection is None:
        return 0
    with closing(connection):
        try:
            connection.execute("PRAGMA secure_delete=ON")
            connection.execute("BEGIN IMMEDIATE")
            [(count,)] = connection.execute("SELECT count(*) FROM calls").fetchall()
            for table in (*TABLES, "bodies"):
                connection.execute(f"DELETE FROM {table}")
            connection.execute("COMMIT")
            with suppress(sqlite3.OperationalError):
                # Another process may read at this moment; the rows are gone either way.
                connection.execute("VACUUM")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as exc:
            raise GatewayError(f"{path} cannot be cleared ({exc})", hint="try again in a moment") from exc
    return int(count)
