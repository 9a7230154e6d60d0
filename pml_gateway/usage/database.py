"""The usage database: one bounded SQLite file, private to its owner, shared by processes."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from pml_gateway.storage.kinds import USAGE
from pml_gateway.storage.tables import Connection, Tables, keep_newest

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


def usage_tables(path: Path) -> Tables:
    """Return the tables of a usage database; whoever changes them closes them."""
    return Tables(USAGE, path, _SCHEMA, keeps_open=True)


def prune(connection: Connection, oldest: float, max_rows: int) -> None:
    """Delete what is older than `oldest`, the oldest rows beyond `max_rows`, and lists that no row names."""
    for table in TABLES:
        connection.execute(f"DELETE FROM {table} WHERE at < ?", (oldest,))
        keep_newest(connection, table, "id", max_rows)
    connection.execute(
        "DELETE FROM bodies WHERE digest NOT IN (SELECT digest FROM lists UNION SELECT full_digest FROM lists)"
    )


def rename_server(path: Path, config: str, before: str, now: str) -> None:
    """Rename a server in the records of a configuration.

    Raises:
        TablesError: it cannot be read or written.
    """

    def update(connection: Connection) -> None:
        connection.execute("UPDATE calls SET upstream = ? WHERE config = ? AND upstream = ?", (now, config, before))
        searches = connection.execute(
            "SELECT id, hits FROM searches WHERE config = ? AND instr(hits, ?)", (config, json.dumps(before))
        ).fetchall()
        for key, text in searches:
            hits = [[now if upstream == before else upstream, tool] for upstream, tool in json.loads(text)]
            connection.execute("UPDATE searches SET hits = ? WHERE id = ?", (json.dumps(hits), key))

    with closing(usage_tables(path)) as tables:
        if tables.exist():
            tables.change(update)


def clear(path: Path) -> int:
    """Delete all records; return the number of calls. Running gateways continue to record.

    Raises:
        TablesError: it cannot be read or written.
    """

    def update(connection: Connection) -> int:
        connection.execute("PRAGMA secure_delete=ON")
        [(count,)] = connection.execute("SELECT count(*) FROM calls").fetchall()
        for table in (*TABLES, "bodies"):
            connection.execute(f"DELETE FROM {table}")
        return int(count)

    with closing(usage_tables(path)) as tables:
        calls = tables.change(update) if tables.exist() else 0
        tables.shrink()
    return calls
