"""The library: requests by the hash of the definition that they were written for, in a file that processes share."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pml_gateway.catalog.hidden_characters import visible
from pml_gateway.errors import GatewayError
from pml_gateway.files import make_own_file
from pml_gateway.index.text import MAX_REQUESTS, well_formed
from pml_gateway.log import get_logger

logger = get_logger(__name__)

MAX_CHARACTERS = 300
"""Of one request; longer ones are tasks, and the model reads 256 tokens."""

MAX_OFFERED = 8 * MAX_REQUESTS
"""Texts of one definition that are looked at; what is offered beyond them is no choice any more."""

MAX_ENTRIES = 200_000
"""Definitions with requests of one origin each, some 200 MB; those that no catalog has had for longest go first."""

KEPT_DAYS = 60
"""A definition may be away for so long, with a server that is switched off or a version that is tried out."""

LOCK_SECONDS = 5.0
BATCH = 500
"""Host parameters of one statement; old SQLite builds allow 999."""

VERSION = 1
_SECONDS_A_DAY = 86_400
_CHANGES = slice(24, 28)
"""Offset of the change counter in an SQLite file."""

_OPEN = threading.Lock()
"""Held by whoever in this process has the file open: closing it drops the locks that SQLite has in other threads."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS requests (
    digest TEXT NOT NULL, origin TEXT NOT NULL, name TEXT NOT NULL, server TEXT NOT NULL, texts TEXT NOT NULL,
    seen INTEGER NOT NULL,
    PRIMARY KEY (digest, origin)
)
"""


class RequestOrigin(StrEnum):
    """Origin of requests, in order of priority if there are too many."""

    OWNER = "owner"
    """The owner's language model wrote them, or the owner did."""
    USE = "use"
    """Clients asked so, and then called the tool."""
    SHIPPED = "shipped"
    """They came with the gateway, for a tool that it recognises."""


@dataclass(frozen=True, slots=True)
class ExampleRequest:
    """Request of a person who needs a tool."""

    text: str
    origin: RequestOrigin


@dataclass(frozen=True, slots=True)
class LibraryEntry:
    """The requests of one origin for one definition; its name and its server are for people who read the library."""

    digest: str
    name: str
    server: str
    origin: RequestOrigin
    requests: tuple[str, ...]


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
    return [tuple(line for line in each if line not in risky)[:MAX_REQUESTS] for each in lines]


def _lines(texts: Iterable[str]) -> list[str]:
    found: dict[str, str] = {}
    for text, _ in zip(texts, range(MAX_OFFERED), strict=False):
        line = " ".join(well_formed(text).split())
        if line and _is_line(line) and visible(line) == line:
            found.setdefault(line.casefold().rstrip(" .?!"), line)
    return list(found.values())


def _is_line(text: str) -> bool:
    return len(text) <= MAX_CHARACTERS and text.isprintable()


def chosen(requests: Iterable[ExampleRequest]) -> tuple[ExampleRequest, ...]:
    """Return the requests that are kept if a tool has too many: each once, the owner's first."""
    order = tuple(RequestOrigin)
    found: dict[str, ExampleRequest] = {}
    for request in sorted(requests, key=lambda each: order.index(each.origin)):
        found.setdefault(request.text.casefold(), request)
    return tuple(found.values())[:MAX_REQUESTS]


@dataclass(frozen=True, slots=True)
class _Kept:
    """Content of the file when it was read."""

    stamp: bytes = b""
    requests: Mapping[str, tuple[ExampleRequest, ...]] = field(default_factory=lambda: MappingProxyType({}))


class RequestLibrary:
    """Requests in one SQLite file, read at once into memory, and again when another process changed it.

    Reading never fails: a damaged file is set aside, and without one there are no requests. Writing tells why it
    could not. Every method blocks: call it in a thread.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / "requests.sqlite3"
        self._kept = _Kept()
        self._noted = 0, frozenset[str]()
        """The day, and what was seen on it."""

    def of(self, digest: str) -> tuple[ExampleRequest, ...]:
        """Return the requests of a definition, the owner's first."""
        return self.all().get(digest, ())

    def all(self) -> Mapping[str, tuple[ExampleRequest, ...]]:
        """All requests by definition, each list as `of` gives it; the same object until something changes."""
        stamp = self._stamp()
        if stamp != self._kept.stamp:
            self._kept = self._read(stamp)
        return self._kept.requests

    def entries(self) -> list[LibraryEntry]:
        """All that is kept, by server and name."""
        return [entry for columns in self._rows() or () if (entry := _entry(columns)) is not None]

    def put(
        self, digest: str, texts: Iterable[str], origin: RequestOrigin, *, name: str = "", server: str = ""
    ) -> tuple[str, ...]:
        """Keep these requests of a definition instead of those it had of this origin; gives what was kept of them.

        Raises:
            GatewayError: the file cannot be written.
        """
        [kept] = self.put_all([LibraryEntry(digest, name, server, origin, tuple(texts))])
        return kept.requests

    def put_all(self, entries: Iterable[LibraryEntry]) -> list[LibraryEntry]:
        """Return the same for many at once: all of them or none.

        Raises:
            GatewayError: the file cannot be written.
        """
        offered = list(entries)
        kept = [
            LibraryEntry(entry.digest, entry.name, entry.server, entry.origin, requests)
            for entry, requests in zip(offered, sound_lists(entry.requests for entry in offered), strict=True)
        ]
        rows = [
            (
                entry.digest,
                entry.origin.value,
                *map(well_formed, (entry.name, entry.server)),
                json.dumps(entry.requests),
            )
            for entry in kept
            if entry.requests
        ]
        emptied = [(entry.digest, entry.origin.value) for entry in kept if not entry.requests]
        with self._writing() as connection:
            connection.executemany(f"INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?, ?, {_today()})", rows)
            connection.executemany("DELETE FROM requests WHERE digest = ? AND origin = ?", emptied)
            _trim(connection)
        return kept

    def remove(self, digests: Iterable[str], origin: RequestOrigin | None = None) -> int:
        """Forget the requests of definitions, of one origin or of all; for how many there were any.

        Raises:
            GatewayError: the file cannot be written.
        """
        wanted = list(dict.fromkeys(digests))
        if not self.all():
            return 0
        gone: set[str] = set()
        with self._writing() as connection:
            for batch in _batches(wanted):
                where = f"digest IN ({','.join('?' * len(batch))})" + (" AND origin = ?" if origin else "")
                values = (*batch, origin.value) if origin else batch
                gone.update(
                    digest for (digest,) in connection.execute(f"SELECT digest FROM requests WHERE {where}", values)
                )
                connection.execute(f"DELETE FROM requests WHERE {where}", values)
        return len(gone)

    def rename_server(self, before: str, now: str) -> None:
        """Show the requests of one server under another id.

        Raises:
            GatewayError: the file cannot be written.
        """
        if self.all():
            with self._writing() as connection:
                connection.execute("UPDATE requests SET server = ? WHERE server = ?", (now, before))

    def keep_only(self, digests: Collection[str]) -> int:
        """Forget the requests of all other definitions; of how many.

        Raises:
            GatewayError: the file cannot be written.
        """
        return self.remove(set(self.all()) - set(digests))

    def note_seen(self, digests: Collection[str]) -> None:
        """Note that a catalog has these definitions, once a day; what none has had for KEPT_DAYS is forgotten.

        Raises:
            GatewayError: the file cannot be written.
        """
        known = self.all()
        seen = [digest for digest in digests if digest in known]
        day, noted = self._noted
        if not known or (day == _today() and noted.issuperset(seen)):
            return
        self._noted = _today(), noted.union(seen) if day == _today() else frozenset(seen)
        with self._writing() as connection:
            for batch in _batches(seen):
                marks = ",".join("?" * len(batch))
                connection.execute(
                    f"UPDATE requests SET seen = ? WHERE seen < ? AND digest IN ({marks})", (_today(), _today(), *batch)
                )
            connection.execute("DELETE FROM requests WHERE seen < ?", (_today() - KEPT_DAYS,))

    def _stamp(self) -> bytes:
        """Return a stamp that differs after every change, or None without a file."""
        try:
            with _OPEN, self.path.open("rb") as file:
                return b"%d " % os.fstat(file.fileno()).st_ino + file.read(_CHANGES.stop)[_CHANGES]
        except OSError:
            return b""

    def _read(self, stamp: bytes) -> _Kept:
        rows = self._rows()
        if rows is None:
            return self._kept  # with its stamp, so that the file is read again
        found: dict[str, list[ExampleRequest]] = {}
        for columns in rows:
            entry = _entry(columns)
            if entry is not None:
                found.setdefault(entry.digest, []).extend(ExampleRequest(text, entry.origin) for text in entry.requests)
        return _Kept(stamp, {digest: chosen(requests) for digest, requests in found.items()})

    def _rows(self) -> list[tuple[Any, ...]] | None:
        """Return the content of the file, or None if it cannot be read now."""
        try:
            if not self.path.exists():
                return []
            with _OPEN, closing(sqlite3.connect(self.path, timeout=LOCK_SECONDS)) as connection:
                if _version(connection) == 0:
                    return []
                return connection.execute(
                    "SELECT digest, name, server, origin, texts FROM requests ORDER BY server, name, digest"
                ).fetchall()
        except (OSError, sqlite3.OperationalError) as exc:
            logger.warning("the requests in %s cannot be read: %s", self.path, exc)
            return None
        except (sqlite3.DatabaseError, UnicodeDecodeError) as exc:
            self._set_aside(exc)
            return []

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        remedy = "try again in a moment; the file can be removed, and its requests are forgotten then"
        try:
            # SQLite gives the files beside it the same mode.
            make_own_file(self.path)
            with _OPEN, closing(sqlite3.connect(self.path, timeout=LOCK_SECONDS)) as connection, connection:
                if _version(connection) == 0:
                    connection.execute(_SCHEMA)
                    connection.execute(f"PRAGMA user_version={VERSION}")
                yield connection
        except (OSError, sqlite3.Error, UnicodeDecodeError) as exc:
            if type(exc) in _DAMAGED:
                self._set_aside(exc)
            raise GatewayError(f"{self.path} cannot be written ({exc})", hint=remedy) from exc

    def _set_aside(self, reason: Exception) -> None:
        aside = self.path.with_name(f"{self.path.name}.damaged")
        try:
            self.path.replace(aside)
        except OSError as exc:
            logger.warning("%s is damaged (%s), and cannot be set aside: %s", self.path, reason, exc)
        else:
            logger.warning("%s is damaged (%s), and starts afresh; set aside as %s", self.path, reason, aside.name)


_DAMAGED = (sqlite3.DatabaseError, UnicodeDecodeError)
"""Errors of SQLite for files that are not databases, and of its messages that are not text."""


def _version(connection: sqlite3.Connection) -> int:
    [(version,)] = connection.execute("PRAGMA user_version").fetchall()
    if version > VERSION:
        raise sqlite3.OperationalError("it was written by a later version of the gateway")
    return int(version)


def _entry(columns: Sequence[Any]) -> LibraryEntry | None:
    """Return a row of the file; nothing where somebody else wrote it."""
    digest, name, server, origin, texts = columns
    if not all(isinstance(each, str) for each in (digest, name, server)):
        return None
    try:
        found = tuple(text for text in json.loads(texts) if isinstance(text, str) and _is_line(text))
        return LibraryEntry(digest, name, server, RequestOrigin(origin), found[:MAX_REQUESTS])
    except (TypeError, ValueError, RecursionError):
        return None


def _trim(connection: sqlite3.Connection) -> None:
    [(count,)] = connection.execute("SELECT count(*) FROM requests").fetchall()
    if count > MAX_ENTRIES:
        connection.execute(
            "DELETE FROM requests WHERE rowid IN (SELECT rowid FROM requests ORDER BY seen, rowid LIMIT ?)",
            (count - MAX_ENTRIES,),
        )


def _batches(values: Sequence[str]) -> Iterator[Sequence[str]]:
    return (values[start : start + BATCH] for start in range(0, len(values), BATCH))


def _today() -> int:
    return int(time.time() // _SECONDS_A_DAY)
