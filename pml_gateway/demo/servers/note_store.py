"""Keeps notes, their tags and links in one SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pml_gateway.demo.servers.launch import RefusedError

BUSY_SECONDS = 5.0
"""How long a statement waits for another process that writes the same file."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS notes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    title TEXT NOT NULL,
    body TEXT NOT NULL,
    pinned INTEGER NOT NULL DEFAULT 0,
    archived INTEGER NOT NULL DEFAULT 0,
    created TEXT NOT NULL,
    modified TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS tags (
    note_id INTEGER NOT NULL REFERENCES notes(id) ON DELETE CASCADE,
    tag TEXT NOT NULL,
    PRIMARY KEY (note_id, tag)
);
CREATE TABLE IF NOT EXISTS links (
    from_id INTEGER NOT NULL REFERENCES notes(id) ON DELETE CASCADE,
    to_id INTEGER NOT NULL REFERENCES notes(id) ON DELETE CASCADE,
    PRIMARY KEY (from_id, to_id)
);
"""


@dataclass(frozen=True, slots=True)
class Note:
    id: int
    title: str
    body: str
    tags: list[str]
    links: list[int]
    pinned: bool
    archived: bool
    created: str
    modified: str


def open_store(path: Path) -> NoteStore:
    """The store in a file, created with its folder when missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    store = NoteStore(path)
    with store.transaction() as database:
        database.executescript(SCHEMA)
    return store


@dataclass(frozen=True, slots=True)
class NoteStore:
    """One SQLite file. A connection lives for one transaction, since tools run in any thread."""

    path: Path

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A connection whose changes are kept together or not at all."""
        database = sqlite3.connect(self.path, timeout=BUSY_SECONDS)
        try:
            database.execute("PRAGMA foreign_keys = ON")
            # SQLite's own lower() knows ASCII only.
            database.create_function("casefold", 1, str.casefold, deterministic=True)
            with database:
                yield database
        except sqlite3.DatabaseError as exc:
            raise RefusedError(f"the note file cannot be used now: {exc}") from exc
        finally:
            database.close()

    def add(self, title: str, body: str, tags: Sequence[str]) -> Note:
        now = _now()
        with self.transaction() as database:
            row = database.execute(
                "INSERT INTO notes (title, body, created, modified) VALUES (?, ?, ?, ?)", (title, body, now, now)
            )
            assert row.lastrowid is not None
            _tag(database, row.lastrowid, tags)
            return _note(database, row.lastrowid)

    def get(self, note_id: int) -> Note:
        with self.transaction() as database:
            return _note(database, note_id)

    def change(
        self,
        note_id: int,
        *,
        title: str | None = None,
        body: str | None = None,
        pinned: bool | None = None,
        archived: bool | None = None,
    ) -> Note:
        """Set what is given and leave the rest."""
        with self.transaction() as database:
            old = _note(database, note_id)
            database.execute(
                "UPDATE notes SET title = ?, body = ?, pinned = ?, archived = ?, modified = ? WHERE id = ?",
                (
                    old.title if title is None else title,
                    old.body if body is None else body,
                    old.pinned if pinned is None else pinned,
                    old.archived if archived is None else archived,
                    _now(),
                    note_id,
                ),
            )
            return _note(database, note_id)

    def append(self, note_id: int, text: str) -> Note:
        with self.transaction() as database:
            _note(database, note_id)
            database.execute("UPDATE notes SET body = body || ?, modified = ? WHERE id = ?", (text, _now(), note_id))
            return _note(database, note_id)

    def delete(self, note_id: int) -> Note:
        with self.transaction() as database:
            note = _note(database, note_id)
            database.execute("DELETE FROM notes WHERE id = ?", (note_id,))
            return note

    def tag(self, note_id: int, tags: Sequence[str]) -> Note:
        with self.transaction() as database:
            _note(database, note_id)
            _tag(database, note_id, tags)
            return _note(database, note_id)

    def untag(self, note_id: int, tags: Sequence[str]) -> Note:
        with self.transaction() as database:
            _note(database, note_id)
            database.executemany(
                "DELETE FROM tags WHERE note_id = ? AND tag = ?", [(note_id, clean_tag(tag)) for tag in tags]
            )
            return _note(database, note_id)

    def link(self, from_id: int, to_id: int) -> Note:
        with self.transaction() as database:
            _note(database, from_id)
            _note(database, to_id)
            database.execute("INSERT OR IGNORE INTO links VALUES (?, ?)", (from_id, to_id))
            return _note(database, from_id)

    def unlink(self, from_id: int, to_id: int) -> Note:
        with self.transaction() as database:
            _note(database, from_id)
            database.execute("DELETE FROM links WHERE from_id = ? AND to_id = ?", (from_id, to_id))
            return _note(database, from_id)

    def linking_to(self, note_id: int) -> list[Note]:
        with self.transaction() as database:
            _note(database, note_id)
            rows = database.execute("SELECT from_id FROM links WHERE to_id = ? ORDER BY from_id", (note_id,))
            return [_note(database, number) for (number,) in rows.fetchall()]

    def select(self, *, words: Sequence[str] = (), tag: str | None = None, archived: bool = False) -> list[Note]:
        """Notes that hold every word in title or body, pinned first, then newest change first."""
        conditions = ["archived = ?"]
        values: list[object] = [archived]
        for word in words:
            conditions.append("instr(casefold(title || char(10) || body), ?) > 0")
            values.append(word.casefold())
        if tag is not None:
            conditions.append("id IN (SELECT note_id FROM tags WHERE tag = ?)")
            values.append(clean_tag(tag))
        query = f"SELECT id FROM notes WHERE {' AND '.join(conditions)} ORDER BY pinned DESC, modified DESC, id DESC"
        with self.transaction() as database:
            return [_note(database, number) for (number,) in database.execute(query, values).fetchall()]

    def tags(self) -> dict[str, int]:
        """Every tag with the number of notes that carry it."""
        with self.transaction() as database:
            return dict(database.execute("SELECT tag, count(*) FROM tags GROUP BY tag ORDER BY tag").fetchall())


def clean_tag(tag: str) -> str:
    """Tags are compared without a leading '#' and in lower case."""
    cleaned = tag.strip().removeprefix("#").lower()
    if not cleaned or len(cleaned) > 50 or any(character.isspace() for character in cleaned):
        raise RefusedError(f"{tag!r} is not a tag: use 1 to 50 characters without spaces")
    return cleaned


def _tag(database: sqlite3.Connection, note_id: int, tags: Sequence[str]) -> None:
    database.executemany("INSERT OR IGNORE INTO tags VALUES (?, ?)", [(note_id, clean_tag(tag)) for tag in tags])


def _note(database: sqlite3.Connection, note_id: int) -> Note:
    row = database.execute(
        "SELECT title, body, pinned, archived, created, modified FROM notes WHERE id = ?", (note_id,)
    ).fetchone()
    if row is None:
        raise RefusedError(f"there is no note {note_id}; list_notes and search_notes show the ids")
    title, body, pinned, archived, created, modified = row
    tags = database.execute("SELECT tag FROM tags WHERE note_id = ? ORDER BY tag", (note_id,)).fetchall()
    links = database.execute("SELECT to_id FROM links WHERE from_id = ? ORDER BY to_id", (note_id,)).fetchall()
    return Note(
        id=note_id,
        title=title,
        body=body,
        tags=[tag for (tag,) in tags],
        links=[number for (number,) in links],
        pinned=bool(pinned),
        archived=bool(archived),
        created=created,
        modified=modified,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
