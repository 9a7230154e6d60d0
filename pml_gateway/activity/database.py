"""The activity database: one bounded SQLite file, private to its owner, shared by processes."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import closing
from pathlib import Path

from pml_gateway.storage.kinds import ACTIVITY
from pml_gateway.storage.tables import Connection, Tables

TABLES = ("accesses", "searches", "lists", "gaps")

PRUNED_SHARE = 20
"""One part in so many of each table, the oldest, is deleted at a time while the file is too large."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS accesses (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, config TEXT NOT NULL, client TEXT NOT NULL,
    method TEXT NOT NULL, server TEXT NOT NULL, tool TEXT NOT NULL, target TEXT NOT NULL, effect TEXT NOT NULL,
    code TEXT NOT NULL, refused INTEGER NOT NULL, rule TEXT NOT NULL, approval TEXT NOT NULL, request TEXT NOT NULL,
    how TEXT NOT NULL, mode TEXT NOT NULL, stage TEXT NOT NULL, intent TEXT, search INTEGER, rank INTEGER,
    seconds REAL NOT NULL, server_seconds REAL NOT NULL, sends INTEGER NOT NULL, given INTEGER NOT NULL,
    answered INTEGER NOT NULL, kept TEXT NOT NULL, arguments TEXT, counts INTEGER NOT NULL,
    program TEXT NOT NULL DEFAULT '', replica TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS accesses_at ON accesses (at);
CREATE INDEX IF NOT EXISTS accesses_client ON accesses (client, at);
CREATE INDEX IF NOT EXISTS accesses_target ON accesses (target, at);
CREATE INDEX IF NOT EXISTS accesses_server ON accesses (server, at);
CREATE INDEX IF NOT EXISTS accesses_failed ON accesses (at) WHERE code != 'OK';
CREATE INDEX IF NOT EXISTS accesses_search ON accesses (search) WHERE search IS NOT NULL;
CREATE TABLE IF NOT EXISTS searches (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, config TEXT NOT NULL, key INTEGER NOT NULL, client TEXT NOT NULL,
    mode TEXT NOT NULL, stage TEXT NOT NULL, query TEXT NOT NULL, hits TEXT NOT NULL,
    program TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS searches_key ON searches (key);
CREATE INDEX IF NOT EXISTS searches_at ON searches (at);
CREATE TABLE IF NOT EXISTS lists (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, config TEXT NOT NULL, client TEXT NOT NULL, mode TEXT NOT NULL,
    stage TEXT NOT NULL, digest TEXT NOT NULL, full_digest TEXT NOT NULL, program TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS lists_at ON lists (at);
CREATE TABLE IF NOT EXISTS bodies (
    digest TEXT PRIMARY KEY, tools INTEGER NOT NULL, bytes INTEGER NOT NULL, tokens INTEGER, body BLOB
);
CREATE TABLE IF NOT EXISTS gaps (id INTEGER PRIMARY KEY, at REAL NOT NULL, reason TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS file (id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS batches (
    sender TEXT PRIMARY KEY, number INTEGER NOT NULL, entry TEXT NOT NULL, at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS writers (key TEXT PRIMARY KEY, process INTEGER NOT NULL, at REAL NOT NULL);
"""

_UPGRADES = {
    2: [
        *(f"ALTER TABLE {table} ADD COLUMN program TEXT NOT NULL DEFAULT ''" for table in TABLES[:3]),
        "ALTER TABLE accesses ADD COLUMN replica TEXT NOT NULL DEFAULT ''",
    ]
}


def activity_tables(path: Path) -> Tables:
    """Return the tables of an activity database; whoever changes them closes them."""
    return Tables(ACTIVITY, path, _SCHEMA, version=2, upgrades=_UPGRADES, keeps_open=True)


def prune(connection: Connection, oldest: float) -> None:
    """Delete what is older than `oldest`, and bodies of lists that no row names."""
    for table in TABLES:
        connection.execute(f"DELETE FROM {table} WHERE at < ?", (oldest,))
    _drop_unnamed(connection)


def make_room(connection: Connection, max_bytes: int) -> None:
    """Delete the oldest rows until the used part of the file has at most `max_bytes`."""
    while _used_bytes(connection) > max_bytes:
        before = connection.total_changes
        for table in TABLES:
            [(first, last)] = connection.execute(f"SELECT min(id), max(id) FROM {table}").fetchall()
            if first is not None:
                connection.execute(f"DELETE FROM {table} WHERE id <= ?", (first + (last - first) // PRUNED_SHARE,))
        _drop_unnamed(connection)
        if connection.total_changes == before:
            return


def _used_bytes(connection: Connection) -> int:
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _drop_unnamed(connection: Connection) -> None:
    connection.execute(
        "DELETE FROM bodies WHERE digest NOT IN (SELECT digest FROM lists UNION SELECT full_digest FROM lists)"
    )


def begin_writing(connection: Connection, key: str, own: frozenset[str]) -> list[str]:
    """Note that a recorder writes. Note a gap for each recorder that was killed, and return the reasons.

    `own` are the keys of the recorders of this process.
    """
    killed = [
        (other, process, at)
        for other, process, at in connection.execute("SELECT key, process, at FROM writers").fetchall()
        if other not in own and not _is_running(process)
    ]
    reasons = [
        f"process {process} was killed; it recorded from {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))} on"
        for _, process, at in killed
    ]
    for (other, _, _), reason in zip(killed, reasons, strict=True):
        connection.execute("DELETE FROM writers WHERE key = ?", (other,))
        note_gap(connection, reason)
    connection.execute("INSERT INTO writers (key, process, at) VALUES (?, ?, ?)", (key, os.getpid(), time.time()))
    return reasons


def note_gap(connection: Connection, reason: str) -> None:
    """Note that records are missing before this moment."""
    connection.execute("INSERT INTO gaps (at, reason) VALUES (?, ?)", (time.time(), reason))


def end_writing(connection: Connection, key: str) -> None:
    """Note that a recorder has written everything."""
    connection.execute("DELETE FROM writers WHERE key = ?", (key,))


def _is_running(process: int) -> bool:
    if process == os.getpid():
        # In a container, the process that was killed had the same number.
        return False
    if sys.platform == "win32":
        # There, signal 0 is no question but Ctrl-C.
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        # It is another user's.
        pass
    return True


def rename_server(path: Path, config: str, before: str, now: str) -> None:
    """Rename a server in the records of a configuration.

    Raises:
        TablesError: it cannot be read or written.
    """

    def update(connection: Connection) -> None:
        connection.execute("UPDATE accesses SET server = ? WHERE config = ? AND server = ?", (now, config, before))
        searches = connection.execute(
            "SELECT id, hits FROM searches WHERE config = ? AND instr(hits, ?)", (config, json.dumps(before))
        ).fetchall()
        for key, text in searches:
            hits = [[now if server == before else server, tool] for server, tool in json.loads(text)]
            connection.execute("UPDATE searches SET hits = ? WHERE id = ?", (json.dumps(hits), key))

    with closing(activity_tables(path)) as tables:
        if tables.exist():
            tables.change(update)


def clear(path: Path) -> int:
    """Delete all records; return the number of calls. Running gateways continue to record.

    Raises:
        TablesError: it cannot be read or written.
    """

    def update(connection: Connection) -> int:
        connection.execute("PRAGMA secure_delete=ON")
        [(count,)] = connection.execute("SELECT count(*) FROM accesses").fetchall()
        for table in (*TABLES, "bodies"):
            connection.execute(f"DELETE FROM {table}")
        return int(count)

    with closing(activity_tables(path)) as tables:
        calls = tables.change(update) if tables.exist() else 0
        tables.shrink()
    return calls
