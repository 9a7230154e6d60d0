"""An MCP server for notes: short texts with tags and links, kept in one SQLite file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from fastmcp.server import FastMCP
from pydantic import Field

from pml_gateway.demo.servers.launch import ADDS, CHANGES, READS, REPLACES, SETS, path_argument, serve, server_of, tool
from pml_gateway.demo.servers.note_store import Note, NoteStore, open_store

# Whole numbers that every JSON reader keeps exactly.
NoteId = Annotated[int, Field(ge=1, le=2**53, description="Number of the note, as list_notes shows it.")]
Title = Annotated[str, Field(min_length=1, max_length=200, description="One line that names the note.")]
Body = Annotated[str, Field(max_length=100_000, description="Text of the note; Markdown is fine.")]
Tags = Annotated[list[str], Field(max_length=20, description="Single words such as 'work' or '#idea'.")]
Limit = Annotated[int, Field(ge=1, le=200, description="At most this many notes.")]

EXCERPT = 120
"""Characters of the body in lists: enough to recognise a note, little enough to list fifty."""


@dataclass(frozen=True, slots=True)
class Summary:
    id: int
    title: str
    excerpt: str
    tags: list[str]
    pinned: bool
    modified: str


@dataclass(frozen=True, slots=True)
class Summaries:
    notes: list[Summary]
    total: int


@dataclass(frozen=True, slots=True)
class TagCount:
    tag: str
    notes: int


@dataclass(frozen=True, slots=True)
class Statistics:
    notes: int
    archived: int
    pinned: int
    tags: int
    words: int


def _summaries(notes: list[Note], limit: int) -> Summaries:
    shown = [
        Summary(note.id, note.title, " ".join(note.body.split())[:EXCERPT], note.tags, note.pinned, note.modified)
        for note in notes[:limit]
    ]
    return Summaries(shown, len(notes))


def _markdown(note: Note) -> str:
    tags = " ".join(f"#{tag}" for tag in note.tags)
    links = ", ".join(f"note {number}" for number in note.links)
    parts = (f"# {note.title}", tags, note.body, f"See also: {links}" if links else "")
    return "\n\n".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Notes:
    """The tools of one note store."""

    store: NoteStore

    @tool(ADDS)
    def create_note(self, title: Title, body: Body = "", tags: Tags | None = None) -> Note:
        """Write down a new note, idea, reminder or to-do, optionally with tags."""
        return self.store.add(title, body, tags or [])

    @tool(READS)
    def get_note(self, note_id: NoteId) -> Note:
        """Read one note in full, with its tags and links."""
        return self.store.get(note_id)

    @tool(REPLACES)
    def update_note(self, note_id: NoteId, title: Title | None = None, body: Body | None = None) -> Note:
        """Replace the title, the body or both of a note. What is not given stays."""
        return self.store.change(note_id, title=title, body=body)

    @tool(ADDS)
    def append_to_note(
        self, note_id: NoteId, text: Annotated[str, Field(min_length=1, max_length=100_000, description="To add.")]
    ) -> Note:
        """Add a paragraph at the end of a note, on a new line."""
        return self.store.append(note_id, f"\n{text}" if self.store.get(note_id).body else text)

    @tool(READS)
    def list_notes(
        self,
        tag: Annotated[str | None, Field(description="Only notes that carry this tag.")] = None,
        archived: Annotated[bool, Field(description="List the archived notes instead.")] = False,
        limit: Limit = 50,
    ) -> Summaries:
        """List notes with an excerpt: pinned ones first, then the most recently changed."""
        return _summaries(self.store.select(tag=tag, archived=archived), limit)

    @tool(READS)
    def search_notes(
        self,
        query: Annotated[str, Field(min_length=1, max_length=300, description="Words that must all occur.")],
        tag: Annotated[str | None, Field(description="Only notes that carry this tag.")] = None,
        limit: Limit = 20,
    ) -> Summaries:
        """Find notes by the words in their title or text. Archived notes are left out."""
        return _summaries(self.store.select(words=query.split(), tag=tag), limit)

    @tool(SETS)
    def tag_note(self, note_id: NoteId, tags: Tags) -> Note:
        """Put one or more tags on a note."""
        return self.store.tag(note_id, tags)

    @tool(SETS)
    def untag_note(self, note_id: NoteId, tags: Tags) -> Note:
        """Take one or more tags off a note."""
        return self.store.untag(note_id, tags)

    @tool(READS)
    def list_tags(self) -> list[TagCount]:
        """List every tag in use with the number of notes that carry it."""
        return [TagCount(tag, count) for tag, count in self.store.tags().items()]

    @tool(SETS)
    def link_notes(self, from_id: NoteId, to_id: NoteId) -> Note:
        """Link one note to another, as 'see also'."""
        return self.store.link(from_id, to_id)

    @tool(SETS)
    def unlink_notes(self, from_id: NoteId, to_id: NoteId) -> Note:
        """Remove the link from one note to another; both notes stay."""
        return self.store.unlink(from_id, to_id)

    @tool(READS)
    def find_backlinks(self, note_id: NoteId) -> Summaries:
        """List the notes that link to a given note."""
        notes = self.store.linking_to(note_id)
        return _summaries(notes, len(notes))

    @tool(SETS)
    def pin_note(
        self, note_id: NoteId, pinned: Annotated[bool, Field(description="False takes the pin off again.")] = True
    ) -> Note:
        """Pin a note so that it is listed first, or unpin it."""
        return self.store.change(note_id, pinned=pinned)

    @tool(SETS)
    def archive_note(
        self, note_id: NoteId, archived: Annotated[bool, Field(description="False brings it back.")] = True
    ) -> Note:
        """Put a note away without deleting it, or bring it back from the archive."""
        return self.store.change(note_id, archived=archived)

    @tool(CHANGES)
    def delete_note(self, note_id: NoteId) -> str:
        """Delete a note for good, with its tags and links. archive_note keeps it."""
        note = self.store.delete(note_id)
        return f"deleted note {note.id}: {note.title}"

    @tool(READS, plain_text=True)
    def export_notes(
        self,
        form: Annotated[Literal["markdown", "json"], Field(description="Format of the export.")] = "markdown",
        tag: Annotated[str | None, Field(description="Only notes that carry this tag.")] = None,
    ) -> str:
        """Export all notes that are not archived as one Markdown or JSON document."""
        notes = self.store.select(tag=tag)
        if form == "json":
            return json.dumps([asdict(note) for note in notes], indent=2, ensure_ascii=False)
        return "\n\n---\n\n".join(_markdown(note) for note in notes)

    @tool(READS)
    def note_statistics(self) -> Statistics:
        """Count the notes, archived and pinned ones, tags and words."""
        current, archived = self.store.select(), self.store.select(archived=True)
        return Statistics(
            notes=len(current),
            archived=len(archived),
            pinned=sum(note.pinned for note in current),
            tags=len(self.store.tags()),
            words=sum(len(note.body.split()) for note in current),
        )


def build(path: Path) -> FastMCP[None]:
    """The server for the notes in one SQLite file, created when missing."""
    return server_of(Notes(open_store(path)), "notes", "Keeps short notes with tags and links between sessions.")


if __name__ == "__main__":
    serve(build(path_argument("Serve the notes in one SQLite file over MCP (stdio).", "FILE")))
