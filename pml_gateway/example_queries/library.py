"""The library: examples by the hash of the definition that they were written for, in a file that processes share."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pml_gateway.catalog.hidden_characters import visible
from pml_gateway.example_queries.sharing import SharedLibrary, shared_file, shared_library
from pml_gateway.files import Signature
from pml_gateway.index.text import MAX_EXAMPLES, well_formed
from pml_gateway.log import get_logger
from pml_gateway.storage.kinds import EXAMPLE_QUERIES
from pml_gateway.storage.tables import Connection, Tables, TablesError, keep_newest

if TYPE_CHECKING:
    from pml_gateway.storage.shared_documents import SharedDocuments

logger = get_logger(__name__)

MAX_CHARACTERS = 300
"""Of one example; longer ones are tasks, and the model reads 256 tokens."""

MAX_OFFERED = 8 * MAX_EXAMPLES
"""Texts of one definition that are looked at; what is offered beyond them is no choice any more."""

MAX_ENTRIES = 200_000
"""Definitions with examples of one origin each, some 200 MB; those that no catalog has had for longest go first."""

KEPT_DAYS = 60
"""A definition may be away for so long, with a server that is switched off or a version that is tried out."""

_SECONDS_A_DAY = 86_400
_SCHEMA = """
CREATE TABLE IF NOT EXISTS examples (
    digest TEXT NOT NULL, origin TEXT NOT NULL, name TEXT NOT NULL, server TEXT NOT NULL, texts TEXT NOT NULL,
    seen INTEGER NOT NULL,
    PRIMARY KEY (digest, origin)
)
"""


class ExampleOrigin(StrEnum):
    """Origin of examples, in order of priority if there are too many."""

    OWNER = "owner"
    """The owner's language model wrote them, or the owner did."""
    USE = "use"
    """Clients asked so, and then called the tool."""
    SHIPPED = "shipped"
    """They came with the gateway, for a tool that it recognises."""


@dataclass(frozen=True, slots=True)
class ExampleQuery:
    """Query of a person who needs a tool."""

    text: str
    origin: ExampleOrigin


@dataclass(frozen=True, slots=True)
class LibraryEntry:
    """The examples of one origin for one definition; its name and its server are for people who read the library."""

    digest: str
    name: str
    server: str
    origin: ExampleOrigin
    examples: tuple[str, ...]


def definition_digest(name: str, description: str, parameters: Iterable[str]) -> str:
    """Return the hash of a definition: its own name, description, and parameter names in any order."""
    text = json.dumps([name, description, sorted(parameters)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def sound(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the texts that may be kept: unique, on one visible line, and not flagged by the lint.

    CPU work, a tenth of a millisecond a text: call it in a thread.
    """
    return sound_lists([texts])[0]


def sound_lists(lists: Iterable[Iterable[str]]) -> list[tuple[str, ...]]:
    """Return the same for the texts of several definitions."""
    # Imported late: who only reads a library needs no lint, which takes its time to load.
    from pml_gateway.trust.lint import Linter
    from pml_gateway.trust.verdict import Subject, SubjectKind

    lines = [_lines(texts) for texts in lists]
    distinct = list(dict.fromkeys(line for each in lines for line in each))
    subjects = [Subject(SubjectKind.TOOL, "", {"name": "request", "description": line}) for line in distinct]
    risky = {line for line, verdict in zip(distinct, Linter().judge(subjects), strict=True) if verdict.is_attack}
    return [tuple(line for line in each if line not in risky)[:MAX_EXAMPLES] for each in lines]


def _lines(texts: Iterable[str]) -> list[str]:
    found: dict[str, str] = {}
    for text, _ in zip(texts, range(MAX_OFFERED), strict=False):
        line = " ".join(well_formed(text).split())
        if line and _is_line(line) and visible(line) == line:
            found.setdefault(line.casefold().rstrip(" .?!"), line)
    return list(found.values())


def _is_line(text: str) -> bool:
    return len(text) <= MAX_CHARACTERS and text.isprintable()


def chosen(examples: Iterable[ExampleQuery]) -> tuple[ExampleQuery, ...]:
    """Return the examples that are kept if a tool has too many: each once, the owner's first."""
    order = tuple(ExampleOrigin)
    found: dict[str, ExampleQuery] = {}
    for example in sorted(examples, key=lambda each: order.index(each.origin)):
        found.setdefault(example.text.casefold(), example)
    return tuple(found.values())[:MAX_EXAMPLES]


@dataclass(frozen=True, slots=True)
class _FileContent:
    """Examples by digest as last read, and the stamp of the file at that time."""

    stamp: bytes = b""
    examples: Mapping[str, tuple[ExampleQuery, ...]] = field(default_factory=lambda: MappingProxyType({}))


class ExampleLibrary:
    """Examples in one SQLite file, read at once into memory, and again when another process changed it.

    Reading never fails: a damaged file is set aside, and without one there are no examples. Writing tells why it
    could not. Every method blocks: call it in a thread.
    """

    def __init__(self, directory: Path, documents: SharedDocuments | None = None) -> None:
        """Name the folder; `documents` is what replicas have in common, if this configuration is that of several."""
        self._tables = Tables(EXAMPLE_QUERIES, directory / "examples.sqlite3", _SCHEMA)
        self._copy = shared_file(directory)
        self._shared = None if documents is None else shared_library(documents, directory)
        self._applied: Signature = None
        self._kept = _FileContent()
        self._noted = 0, frozenset[str]()
        """The day, and what was seen on it."""

    @property
    def path(self) -> Path:
        """Return the path of the file."""
        return self._tables.path

    @property
    def shared_path(self) -> Path:
        """Return the path of the copy of what replicas share."""
        return self._copy.path

    def of(self, digest: str) -> tuple[ExampleQuery, ...]:
        """Return the examples of a definition, the owner's first."""
        return self.all().get(digest, ())

    def all(self) -> Mapping[str, tuple[ExampleQuery, ...]]:
        """All examples by definition, each list as `of` gives it; the same object until something changes."""
        self._apply_shared()
        stamp = self._tables.signature
        if stamp != self._kept.stamp:
            self._kept = self._read(stamp)
        return self._kept.examples

    def entries(self) -> list[LibraryEntry]:
        """All that is kept, by server and name."""
        self._apply_shared()
        return [entry for columns in self._rows() or () if (entry := _entry(columns)) is not None]

    def put(
        self, digest: str, texts: Iterable[str], origin: ExampleOrigin, *, name: str = "", server: str = ""
    ) -> tuple[str, ...]:
        """Keep these examples of a definition instead of those it had of this origin; gives what was kept of them.

        Raises:
            TablesError: the file cannot be written.
        """
        [kept] = self.put_all([LibraryEntry(digest, name, server, origin, tuple(texts))])
        return kept.examples

    def put_all(self, entries: Iterable[LibraryEntry]) -> list[LibraryEntry]:
        """Return the same for many at once: all of them or none.

        Raises:
            TablesError: the file cannot be written.
            SharedStateError: replicas share the examples, and Redis does not answer.
        """
        offered = list(entries)
        kept = [
            LibraryEntry(entry.digest, entry.name, entry.server, entry.origin, examples)
            for entry, examples in zip(offered, sound_lists(entry.examples for entry in offered), strict=True)
        ]
        rows = [
            (
                entry.digest,
                entry.origin.value,
                *map(well_formed, (entry.name, entry.server)),
                json.dumps(entry.examples),
            )
            for entry in kept
            if entry.examples
        ]
        emptied = [(entry.digest, entry.origin.value) for entry in kept if not entry.examples]
        self._share({(each.digest, each.origin.value): (each.name, each.server, each.examples) for each in kept})

        def update(connection: Connection) -> None:
            connection.executemany(f"INSERT OR REPLACE INTO examples VALUES (?, ?, ?, ?, ?, {today()})", rows)
            connection.executemany("DELETE FROM examples WHERE digest = ? AND origin = ?", emptied)
            keep_newest(connection, "examples", "seen, rowid", MAX_ENTRIES)

        self._tables.change(update)
        return kept

    def replace_all(self, entries: Sequence[LibraryEntry], origin: ExampleOrigin) -> None:
        """Keep these entries as the only ones of their origin.

        Raises:
            TablesError: the file cannot be written.
        """
        stale = {entry.digest for entry in self.entries() if entry.origin is origin}
        self.put_all(entries)
        self.remove(stale - {entry.digest for entry in entries}, origin)

    def remove(self, digests: Iterable[str], origin: ExampleOrigin | None = None) -> int:
        """Forget the examples of definitions, of one origin or of all; for how many there were any.

        Raises:
            TablesError: the file cannot be written.
            SharedStateError: replicas share the examples, and Redis does not answer.
        """
        wanted = [(digest, *([origin.value] if origin else ())) for digest in dict.fromkeys(digests)]
        statement = "DELETE FROM examples WHERE digest = ?" + (" AND origin = ?" if origin else "")
        if not self.all():
            return 0
        gone = {each.digest for each in self.entries()}.intersection(digest for digest, *_ in wanted)
        origins = (origin,) if origin else tuple(ExampleOrigin)
        self._share({(digest, each.value): ("", "", ()) for digest in gone for each in origins})
        return self._tables.change(
            lambda connection: sum(connection.execute(statement, each).rowcount > 0 for each in wanted)
        )

    def rename_server(self, before: str, now: str) -> None:
        """Show the examples of one server under another id.

        Raises:
            TablesError: the file cannot be written.
        """
        if self.all():
            rename = "UPDATE examples SET server = ? WHERE server = ?"
            self._tables.change(lambda connection: connection.execute(rename, (now, before)))

    def note_seen(self, digests: Collection[str]) -> None:
        """Note that a catalog has these definitions, once a day; what none has had for KEPT_DAYS is forgotten.

        Raises:
            TablesError: the file cannot be written.
        """
        known = self.all()
        seen = [digest for digest in digests if digest in known]
        day, noted = self._noted
        if not known or (day == today() and noted.issuperset(seen)):
            return
        self._noted = today(), noted.union(seen) if day == today() else frozenset(seen)
        seen_now = [(today(), today(), digest) for digest in seen]

        def update(connection: Connection) -> None:
            connection.executemany("UPDATE examples SET seen = ? WHERE seen < ? AND digest = ?", seen_now)
            connection.execute("DELETE FROM examples WHERE seen < ?", (today() - KEPT_DAYS,))

        self._tables.change(update)

    def _share(self, written: Mapping[tuple[str, str], tuple[str, str, tuple[str, ...]]]) -> None:
        """Have replicas take over what is about to be written here, and what they do not know of the rest."""
        if self._shared is None:
            return
        own = {(each.digest, each.origin.value): (each.name, each.server, each.examples) for each in self.entries()}

        def update(known: SharedLibrary) -> SharedLibrary:
            unknown = {key: entry for key, entry in own.items() if ":".join(key) not in known.entries}
            return known.having({**unknown, **written})

        try:
            self._shared.change(update)
        except OSError as error:
            raise TablesError(f"{self._copy.path} cannot be written: {error}") from error

    def _apply_shared(self) -> None:
        """Take over what another replica has written."""
        stamp = self._copy.signature
        if stamp == self._applied:
            return
        self._applied = stamp
        found = [
            (*key.split(":", 1), each.name, each.server, json.dumps(each.texts))
            for key, each in self._copy.read().entries.items()
        ]

        def update(connection: Connection) -> None:
            known = {
                tuple(row) for row in connection.execute("SELECT digest, origin, name, server, texts FROM examples")
            }
            for row in found:
                if row[-1] == "[]":
                    connection.execute("DELETE FROM examples WHERE digest = ? AND origin = ?", row[:2])
                elif row not in known:
                    connection.execute(f"INSERT OR REPLACE INTO examples VALUES (?, ?, ?, ?, ?, {today()})", row)

        try:
            self._tables.change(update)
        except TablesError as error:
            logger.warning("examples of other replicas are not taken over: %s", error)

    def _read(self, stamp: bytes) -> _FileContent:
        rows = self._rows()
        if rows is None:
            return self._kept  # with its stamp, so that the file is read again
        found: dict[str, list[ExampleQuery]] = {}
        for columns in rows:
            entry = _entry(columns)
            if entry is not None:
                found.setdefault(entry.digest, []).extend(ExampleQuery(text, entry.origin) for text in entry.examples)
        return _FileContent(stamp, {digest: chosen(examples) for digest, examples in found.items()})

    def _rows(self) -> list[tuple[Any, ...]] | None:
        """Return the content of the file, or None if it cannot be read now."""
        ask = "SELECT digest, name, server, origin, texts FROM examples ORDER BY server, name, digest"
        try:
            return self._tables.rows(ask)
        except TablesError as exc:
            logger.warning("the examples are not read: %s", exc)
            return None


def _entry(columns: Sequence[Any]) -> LibraryEntry | None:
    """Return a row of the file; nothing where somebody else wrote it."""
    digest, name, server, origin, texts = columns
    if not all(isinstance(each, str) for each in (digest, name, server)):
        return None
    try:
        found = tuple(text for text in json.loads(texts) if isinstance(text, str) and _is_line(text))
        return LibraryEntry(digest, name, server, ExampleOrigin(origin), found[:MAX_EXAMPLES])
    except (TypeError, ValueError, RecursionError):
        return None


def today() -> int:
    """Return the number of the current day."""
    return int(time.time() // _SECONDS_A_DAY)
