"""An MCP server for notes: short texts with tags and links, kept in one SQLite file."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastmcp.server import FastMCP
from pydantic import Field

from pml_gateway.demo.servers.launch import QUIET, READS, REPLACES, WRITES, add_tools

# Whole numbers that every JSON reader keeps exactly.
NoteId = Annotated[int, Field(ge=1, le=2**53, description="Number of the note, as list_notes shows it.")]
Title = Annotated[str, Field(min_length=1, max_length=200, description="One line that names the note.")]
Body = Annotated[str, Field(max_length=100_000, description="Text of the note; Markdown is fine.")]
Tag = Annotated[str, Field(max_length=50, pattern=r"^#?[^#\s]\S*$")]
Tags = Annotated[list[Tag], Field(max_length=20, description="Single words such as 'work' or '#idea'.")]
OnlyTag = Annotated[str, Field(description="Only notes that carry this tag.")]
OnlyArchived = Annotated[bool, Field(description="List the archived notes instead.")]
Query = Annotated[str, Field(min_length=1, max_length=300, description="Words that must all occur.")]
Limit = Annotated[int, Field(ge=1, le=200, description="At most this many notes.")]
Undoable = Annotated[bool, Field(description="False undoes it.")]

EXCERPT = 120  # characters of the body in lists: enough to recognise a note, little enough to list fifty
BUSY_SECONDS = 5.0  # for another process that writes the same file


@dataclass(frozen=True, slots=True)
class Note:
    id: int
    title: str
    body: str
    tags: list[str]
    links: list[int]
    pinned: bool = False
    archived: bool = False
    modified: str = ""


@dataclass(frozen=True, slots=True)
class Notes:
    """The tools of one SQLite file. A connection lives for one call, since tools run in any thread."""

    path: Path

    def create_note(self, title: Title, body: Body = "", tags: Tags | None = None) -> Note:
        """Write down a new note, idea, reminder or to-do, optionally with tags."""
        with self._database() as database:
            number = database.execute("INSERT INTO notes (note) VALUES ('')").lastrowid or 0
            return _saved(database, Note(number, title, body, _cleaned(tags or []), []))

    def get_note(self, note_id: NoteId) -> Note:
        """Read one note in full, with its tags and links."""
        with self._database() as database:
            return _note(database, note_id)

    def update_note(self, note_id: NoteId, title: Title | None = None, body: Body | None = None) -> Note:
        """Replace the title, the body or both of a note. What is not given stays."""
        given: dict[str, Any] = {name: text for name, text in (("title", title), ("body", body)) if text is not None}
        return self._change(note_id, lambda note: replace(note, **given))

    def list_notes(self, tag: OnlyTag = "", archived: OnlyArchived = False, limit: Limit = 50) -> list[Note]:
        """List notes with an excerpt: pinned ones first, then the most recently changed."""
        wanted = {*_cleaned([tag])} - {""}
        return self._found(lambda note: note.archived == archived and wanted <= {*note.tags}, limit)

    def search_notes(self, query: Query, limit: Limit = 20) -> list[Note]:
        """Find notes by the words in their title or text. Archived notes are left out."""
        words = query.casefold().split()
        return self._found(
            lambda note: not note.archived and all(word in f"{note.title}\n{note.body}".casefold() for word in words),
            limit,
        )

    def tag_note(self, note_id: NoteId, tags: Tags) -> Note:
        """Put one or more tags on a note."""
        return self._change(note_id, lambda note: replace(note, tags=_cleaned([*note.tags, *tags])))

    def list_tags(self) -> dict[str, int]:
        """List every tag in use with the number of notes that carry it."""
        with self._database() as database:
            return Counter(tag for note in _all(database) for tag in note.tags)

    def link_notes(self, from_id: NoteId, to_id: NoteId) -> Note:
        """Link one note to another, as 'see also'."""
        linked = self.get_note(to_id).id
        return self._change(from_id, lambda note: replace(note, links=sorted({*note.links, linked})))

    def find_backlinks(self, note_id: NoteId) -> list[Note]:
        """List the notes that link to a given note."""
        return self._found(lambda note: note_id in note.links)

    def pin_note(self, note_id: NoteId, pinned: Undoable = True) -> Note:
        """Pin a note so that it is listed first, or unpin it."""
        return self._change(note_id, lambda note: replace(note, pinned=pinned))

    def archive_note(self, note_id: NoteId, archived: Undoable = True) -> Note:
        """Put a note away without deleting it, or bring it back from the archive."""
        return self._change(note_id, lambda note: replace(note, archived=archived))

    def delete_note(self, note_id: NoteId) -> str:
        """Delete a note for good, with its tags and links. archive_note keeps it."""
        with self._database() as database:
            note = _note(database, note_id)
            database.execute("DELETE FROM notes WHERE id = ?", (note_id,))
            for each in _all(database):
                if note_id in each.links:
                    _saved(database, replace(each, links=[link for link in each.links if link != note_id]))
        return f"deleted note {note_id}: {note.title}"

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """Open the file; changes are committed together or not at all."""
        with closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY AUTOINCREMENT, note TEXT)")
            database.execute("BEGIN IMMEDIATE")
            yield database

    def _change(self, note_id: int, changed: Callable[[Note], Note]) -> Note:
        with self._database() as database:
            return _saved(database, changed(_note(database, note_id)))

    def _found(self, fits: Callable[[Note], bool], limit: int = 200) -> list[Note]:
        with self._database() as database:
            notes = [note for note in _all(database) if fits(note)]
        notes.sort(key=lambda note: (note.pinned, note.modified), reverse=True)
        return [replace(note, body=" ".join(note.body.split())[:EXCERPT]) for note in notes[:limit]]


def _cleaned(tags: Sequence[str]) -> list[str]:
    """Return tags in lower case without a leading '#', each once."""
    return sorted({tag.removeprefix("#").lower() for tag in tags})


def _all(database: sqlite3.Connection) -> list[Note]:
    return [Note(**json.loads(text)) for (text,) in database.execute("SELECT note FROM notes")]


def _note(database: sqlite3.Connection, note_id: int) -> Note:
    for (text,) in database.execute("SELECT note FROM notes WHERE id = ?", (note_id,)):
        return Note(**json.loads(text))
    raise ValueError(f"there is no note {note_id}; list_notes and search_notes show the ids")


def _saved(database: sqlite3.Connection, note: Note) -> Note:
    note = replace(note, modified=datetime.now(UTC).isoformat(timespec="microseconds"))
    database.execute("UPDATE notes SET note = ? WHERE id = ?", (json.dumps(asdict(note)), note.id))
    return note


def build(path: Path) -> FastMCP[None]:
    """Return the server for the notes in one SQLite file, created when missing."""
    server = FastMCP[None]("notes", "Keeps short notes with tags and links between sessions.")
    path.parent.mkdir(parents=True, exist_ok=True)
    notes = Notes(path)
    add_tools(
        server, READS, notes.get_note, notes.list_notes, notes.search_notes, notes.list_tags, notes.find_backlinks
    )
    add_tools(server, WRITES, notes.create_note, notes.tag_note, notes.link_notes, notes.pin_note, notes.archive_note)
    add_tools(server, REPLACES, notes.update_note, notes.delete_note)
    return server


if __name__ == "__main__":
    build(Path(*sys.argv[1:2] or ["notes.sqlite3"])).run(**QUIET)
