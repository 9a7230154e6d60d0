"""Tables: changes are made whole, by one process at a time, and a damaged file harms no one for long."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pml_gateway.storage.kinds import EXAMPLE_QUERIES, VECTORS
from pml_gateway.storage.tables import Connection, Tables, TablesError

SCHEMA = "CREATE TABLE IF NOT EXISTS numbers (number INTEGER)"
WRITE = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"


@pytest.fixture(params=[False, True])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Tables:
    made = Tables(EXAMPLE_QUERIES, tmp_path / "folder" / "some.db", SCHEMA, keeps_open=request.param)
    request.addfinalizer(made.close)
    return made


def add(tables: Tables, number: int) -> None:
    tables.change(lambda connection: connection.execute("INSERT INTO numbers VALUES (?)", (number,)))


def numbers(tables: Tables) -> list[int]:
    return [number for (number,) in tables.rows("SELECT number FROM numbers ORDER BY number")]


def test_nothing_is_there_before_the_first_change_and_all_is_its_owners_alone(tables: Tables) -> None:
    assert (tables.exist(), numbers(tables)) == (False, [])
    assert not tables.path.parent.exists()
    add(tables, 1)
    assert (tables.exist(), numbers(tables)) == (True, [1])
    assert {stat.S_IMODE(path.stat().st_mode) for path in tables.path.parent.iterdir()} == {0o600}


def test_a_change_is_made_whole_or_not_at_all(tables: Tables) -> None:
    add(tables, 1)

    def update(connection: Connection) -> None:
        connection.execute("DELETE FROM numbers")
        raise LookupError

    with pytest.raises(LookupError):
        tables.change(update)
    assert numbers(tables) == [1]


def test_a_damaged_file_is_set_aside_and_a_later_change_starts_afresh(tables: Tables) -> None:
    add(tables, 1)
    tables.close()
    tables.path.write_bytes(b"no database at all" * 1000)
    with pytest.raises(TablesError, match="cannot be written"):
        add(tables, 2)
    add(tables, 3)
    assert numbers(tables) == [3]
    assert tables.path.with_name("some.db.damaged").read_bytes().startswith(b"no database")


def test_of_many_damaged_files_the_first_ones_and_the_last_are_kept(tables: Tables) -> None:
    for number in range(1, 9):
        add(tables, number)
        tables.close()
        tables.path.write_bytes(b"damage %d" % number * 1000)
        with pytest.raises(TablesError, match="cannot be written"):
            add(tables, number)
    damaged = [path for path in tables.path.parent.glob("*.damaged*") if not path.name.endswith("-wal")]
    kept = [path.read_bytes()[:8].decode() for path in sorted(damaged)]
    assert kept == ["damage 1", "damage 2", "damage 3", "damage 4", "damage 8"]


def test_damaged_blobs_are_deleted_as_they_can_be_made_anew(tmp_path: Path) -> None:
    blobs = Tables(VECTORS, tmp_path / "some.db", SCHEMA)
    blobs.path.write_bytes(b"no database at all" * 1000)
    assert numbers(blobs) == []
    assert not list(tmp_path.iterdir())


def test_a_file_that_others_removed_is_made_anew(tables: Tables) -> None:
    add(tables, 1)
    tables.path.unlink()
    add(tables, 2)
    assert numbers(tables) == [2]


def test_a_file_of_a_later_version_is_left_alone(tables: Tables) -> None:
    later = Tables(EXAMPLE_QUERIES, tables.path, SCHEMA, version=2)
    add(later, 1)
    for use in (tables.exist, lambda: add(tables, 2)):
        with pytest.raises(TablesError, match="later version"):
            use()
    assert numbers(later) == [1]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_who_cannot_write_reads(tables: Tables) -> None:
    add(tables, 1)
    tables.close()
    tables.path.chmod(0o400)
    with pytest.raises(TablesError, match="it cannot be written"):
        add(tables, 2)
    assert numbers(tables) == [1]


def test_who_looks_for_changes_leaves_other_threads_their_locks(tmp_path: Path) -> None:
    tables, other = (Tables(EXAMPLE_QUERIES, tmp_path / "some.db", SCHEMA) for _ in range(2))
    add(tables, 1)
    before, found = tables.signature, list[bytes]()
    looking = threading.Thread(target=lambda: found.append(other.signature))

    def update(connection: Connection) -> bytes:
        connection.execute("DELETE FROM numbers")
        looking.start()
        return subprocess.run([sys.executable, "-c", WRITE, tables.path], capture_output=True, check=False).stderr

    assert b"database is locked" in tables.change(update)
    looking.join()
    assert found == [tables.signature] != [before]
