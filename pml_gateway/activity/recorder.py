"""A recorder of calls, searches and lists in the activity database: in batches, in a thread, without secrets."""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, Protocol

import anyio
import anyio.to_thread

from pml_gateway.activity.database import activity_tables, begin_writing, end_writing, make_room, note_gap, prune
from pml_gateway.catalog.wire import decoded_items
from pml_gateway.config.settings import ActivitySettings
from pml_gateway.log import get_logger
from pml_gateway.storage.background_writer import BackgroundWriter
from pml_gateway.storage.places import ACTIVITY, warn_unwritable
from pml_gateway.storage.tables import Connection, TablesError
from pml_gateway.text import counted
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

PRUNE_SECONDS = 3600.0

MAX_UNCOUNTED = 64
"""Different lists kept until a command counts their tokens; the tokenizer takes 66 MB and 0.15 s of a gateway."""

ROW_WEIGHT = 500
"""Characters of a row beside its longest text."""


@dataclass(frozen=True, slots=True)
class AccessRow:
    """One ended attempt to use something; see `RecordedAccess` for the fields.

    `search` is the key of the search that led to it, and `counts` says that it is a call that statistics count.
    """

    at: float
    config: str
    client: str
    method: str
    server: str
    tool: str
    target: str
    effect: str
    code: str
    refused: bool
    rule: str = ""
    approval: str = ""
    request: str = ""
    how: str = "direct"
    mode: str = ""
    stage: str = ""
    intent: str | None = None
    search: int | None = None
    rank: int | None = None
    seconds: float = 0.0
    server_seconds: float = 0.0
    sends: int = 0
    given: int = 0
    answered: int = 0
    kept: str = "off"
    arguments: str | None = None
    counts: bool = False
    program: str = ""
    replica: str = ""

    @property
    def weight(self) -> int:
        """The characters that it holds."""
        return ROW_WEIGHT + len(self.arguments or "")


@dataclass(frozen=True, slots=True)
class SearchRow:
    """One search and its hits as (server, tool), best first."""

    at: float
    config: str
    key: int
    client: str
    mode: str
    stage: str
    query: str
    hits: tuple[tuple[str, str], ...]
    program: str = ""

    @property
    def weight(self) -> int:
        """The characters that it holds."""
        return ROW_WEIGHT * (1 + len(self.hits) // 10)


@dataclass(frozen=True, slots=True)
class ListRow:
    """One list sent to a client; `full` returns the list that the mode full_proxy would have sent."""

    at: float
    config: str
    client: str
    mode: str
    stage: str
    body: bytes
    full: Callable[[], bytes]
    program: str = ""

    @property
    def weight(self) -> int:
        """The characters that it holds; lists are shared."""
        return ROW_WEIGHT


class OtherRows(Protocol):
    """Rows of another gateway, which write themselves."""

    @property
    def weight(self) -> int: ...

    def write(self, connection: Connection) -> None:
        """Write them."""


Row = AccessRow | SearchRow | ListRow | OtherRows


class ListBody(NamedTuple):
    """A list without its text: its digest, and how large it is."""

    digest: str
    tools: int
    size: int


_ACCESS_FIELDS = [field.name for field in fields(AccessRow)]
_ACCESS = f"INSERT INTO accesses ({', '.join(_ACCESS_FIELDS)}) VALUES ({', '.join('?' * len(_ACCESS_FIELDS))})"
_values = attrgetter(*_ACCESS_FIELDS)
_SEARCH = (
    "INSERT INTO searches (at, config, key, client, mode, stage, query, program, hits)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_LIST = (
    "INSERT INTO lists (at, config, client, mode, stage, program, digest, full_digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)

_OWN: set[str] = set()
"""Keys of the recorders of this process."""


class Recorder:
    """Writer of activity: takes rows on the event loop and writes them in its own thread, so no call fails by it."""

    def __init__(self, path: Path, *limits: Callable[[], ActivitySettings]) -> None:
        self._limits = [*limits]
        self._last_limits: tuple[ActivitySettings, ...] = ()
        self.path = path
        self._tables = activity_tables(path)
        self._key = os.urandom(8).hex()
        self._has_begun = False
        self._pruned = 0.0
        self._writer: BackgroundWriter[Row] = BackgroundWriter(
            "activity", self._write, lambda row: row.weight, lambda error: warn_unwritable(ACTIVITY, path, error)
        )

    def add(self, make: Callable[[], Row | None]) -> None:
        """Queue one row, which is made in the thread, unless that is None; takes microseconds and raises nothing."""
        self._writer.add(make)

    @asynccontextmanager
    async def limited_by(self, limits: Callable[[], ActivitySettings]) -> AsyncIterator[None]:
        """Keep no more than these settings allow either; the last ones hold until there are others."""
        self._limits.append(limits)
        try:
            yield
        finally:
            self._limits.remove(limits)
            self._last_limits = (limits(),)

    def flush(self, timeout: float = 3.0) -> bool:
        """Wait until every queued row is written or dropped; return False on timeout. Blocks."""
        return self._writer.flush(timeout)

    def close(self) -> None:
        """Write the queued rows and end the thread, or give up after a few seconds. Blocks."""
        self._writer.close()
        if self._has_begun:
            with suppress(TablesError):
                self._tables.change(lambda connection: end_writing(connection, self._key))
            _OWN.discard(self._key)
        self._tables.close()

    def _write(self, rows: list[Row], dropped: int) -> None:
        if told := self._tables.change(lambda connection: self._write_rows(connection, rows, dropped)):
            logger.warning("the last calls before its end may not be recorded: %s", "; ".join(told))
        self._has_begun = True

    def _write_rows(self, connection: Connection, rows: list[Row], dropped: int) -> list[str]:
        told = []
        if not self._has_begun:
            _OWN.add(self._key)
            told = begin_writing(connection, self._key, frozenset(_OWN))
        if dropped:
            note_gap(connection, f"{counted(dropped, 'record')} dropped: too many at once, or the disk was full")
        insert_accesses(connection, [row for row in rows if isinstance(row, AccessRow)])
        for row in rows:
            match row:
                case SearchRow():
                    insert_search(connection, row)
                case ListRow():
                    digests = (_keep_body(connection, row.body), _keep_body(connection, row.full()))
                    given = (row.at, row.config, row.client, row.mode, row.stage, row.program)
                    connection.execute(_LIST, (*given, *digests))
                case AccessRow():
                    pass
                case _:
                    row.write(connection)
        limits = [each() for each in tuple(self._limits)] or self._last_limits
        now = time.monotonic()
        if limits and (not self._pruned or now - self._pruned > PRUNE_SECONDS):
            prune(connection, time.time() - min(each.max_days for each in limits) * 86400)
            self._pruned = now
        if limits:
            make_room(connection, min(each.max_bytes for each in limits))
        return told


def insert_accesses(connection: Connection, rows: Sequence[AccessRow]) -> None:
    """Insert rows into the table of accesses."""
    connection.executemany(_ACCESS, map(_values, rows))


def insert_search(connection: Connection, row: SearchRow) -> None:
    """Insert a row into the table of searches."""
    about = (row.at, row.config, row.key, row.client, row.mode, row.stage, row.query, row.program)
    connection.execute(_SEARCH, (*about, json.dumps(row.hits)))


def insert_list(connection: Connection, row: JsonObject, shown: ListBody, whole: ListBody) -> None:
    """Insert a row of another gateway into the table of lists; its tokens are known once this one gave the same."""
    for body in (shown, whole):
        connection.execute(_BODY, (*body, None))
    about = [row[name] for name in ("at", "config", "client", "mode", "stage", "program")]
    connection.execute(_LIST, (*about, shown.digest, whole.digest))


_BODY = "INSERT OR IGNORE INTO bodies (digest, tools, bytes, tokens, body) VALUES (?, ?, ?, NULL, ?)"


def tools_in(body: bytes) -> int:
    """Return the number of tools on a list."""
    return sum(1 for _ in decoded_items(body))


def digest_of(body: bytes) -> str:
    """Return the name by which the text of a list is known."""
    return hashlib.sha256(body).hexdigest()[:32]


def _keep_body(connection: Connection, body: bytes) -> str:
    """Return the digest of a list; store a new list until its tokens are counted, unless too many are stored."""
    digest = digest_of(body)
    found = connection.execute("SELECT tokens IS NULL AND body IS NULL FROM bodies WHERE digest = ?", (digest,))
    known = found.fetchone()
    if known is None or known[0]:
        [(uncounted,)] = connection.execute("SELECT count(*) FROM bodies WHERE body IS NOT NULL").fetchall()
        kept = zlib.compress(body, 6) if uncounted < MAX_UNCOUNTED else None
        if known is None:
            connection.execute(_BODY, (digest, tools_in(body), len(body), kept))
        elif kept is not None:
            connection.execute("UPDATE bodies SET body = ? WHERE digest = ?", (kept, digest))
    return digest


@asynccontextmanager
async def open_recorder(path: Path) -> AsyncIterator[Recorder]:
    """Open a recorder whose rows are on disk when this context ends."""
    recorder = Recorder(path)
    try:
        yield recorder
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(recorder.close)
