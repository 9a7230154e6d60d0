"""A recorder of calls, searches and lists in the usage database: in batches, in a thread, without secrets."""

from __future__ import annotations

import hashlib
import json
import threading
import time
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from pml_gateway.catalog.wire import decoded_items
from pml_gateway.config.settings import UsageSettings
from pml_gateway.log import get_logger
from pml_gateway.secrets.judgement import MASK, Keys
from pml_gateway.secrets.known import KNOWN_SECRETS, without_secrets
from pml_gateway.secrets.masking import mask_text, mask_tree
from pml_gateway.secrets.names import is_secret_name
from pml_gateway.storage.places import USAGE, warn_unwritable
from pml_gateway.storage.tables import Connection, TablesError
from pml_gateway.types import JsonObject
from pml_gateway.usage.database import prune, usage_tables

logger = get_logger(__name__)

MAX_TEXT = 500
"""Characters of a query or an intent that are kept."""

MAX_ARGUMENTS = 2000

BATCH_SECONDS = 0.5

MAX_WAITING = 10_000
"""Records in memory that wait for the disk; beyond, the oldest are dropped."""

RETRY_SECONDS = 30.0
"""Pause after a fault of the disk; a full one may have room again."""

PRUNE_SECONDS = 3600.0
CLOSE_SECONDS = 3.0

MAX_UNCOUNTED = 64
"""Different lists kept until a command counts their tokens; the tokenizer takes 66 MB and 0.15 s of a gateway."""

_CALL = f"INSERT INTO calls (at, config, upstream, tool, client, code, seconds, how, mode, stage, intent, search, rank, arguments) VALUES ({', '.join('?' * 14)})"  # noqa: E501 - one statement
_SEARCH = "INSERT INTO searches (at, config, key, client, mode, stage, query, hits) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_LIST = "INSERT INTO lists (at, config, client, mode, stage, digest, full_digest) VALUES (?, ?, ?, ?, ?, ?, ?)"


def masked(text: str | None) -> str | None:
    """Return a query or an intent without secrets, cut to MAX_TEXT characters."""
    if text is None:
        return None
    return without_secrets(text[:MAX_TEXT].encode(errors="replace").decode())


def shown_arguments(arguments: JsonObject | None) -> str | None:
    """Return arguments as JSON without secrets, cut to MAX_ARGUMENTS characters; None if they are not recorded."""
    if arguments is None:
        return None
    text = json.dumps(mask_tree(arguments, _kept), ensure_ascii=False, separators=(",", ":"), default=str)
    return KNOWN_SECRETS.masked(text[:MAX_ARGUMENTS].encode(errors="replace").decode(), MASK)


def _kept(value: Any, at: Keys) -> Any:
    """Mask a value under the name of a secret; cut and mask any other text."""
    match value:
        case _ if at and is_secret_name(at[-1]):
            return MASK
        case str():
            return mask_text(value[:MAX_ARGUMENTS])
        case list():
            return [_kept(item, ()) if isinstance(item, str) else item for item in value]
        case _:
            return value


@dataclass(frozen=True, slots=True)
class CallRow:
    """One finished call: `search` is the key of the search that led to it, `rank` the rank of its tool there."""

    at: float
    config: str
    upstream: str
    tool: str
    client: str
    code: str
    seconds: float
    how: str
    mode: str
    stage: str
    intent: str | None = None
    search: int | None = None
    rank: int | None = None
    arguments: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class SearchRow:
    """One search and its hits as (upstream, tool), best first."""

    at: float
    config: str
    key: int
    client: str
    mode: str
    stage: str
    query: str
    hits: tuple[tuple[str, str], ...]


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


Row = CallRow | SearchRow | ListRow


class Recorder:
    """Writer of usage rows: takes them on the event loop and writes them in its own thread, so no call fails by it."""

    def __init__(self, path: Path, *limits: Callable[[], UsageSettings]) -> None:
        self._limits = [*limits]
        self._last_limits: tuple[UsageSettings, ...] = ()
        self._waiting: deque[Row] = deque(maxlen=MAX_WAITING)
        self._arrived = threading.Event()
        self._closing = threading.Event()
        self._written = threading.Condition()
        self._finished = 0
        self._taken = 0
        self._thread: threading.Thread | None = None
        self._tables = usage_tables(path)
        self._pruned = 0.0

    def add(self, row: Row) -> None:
        """Queue one row; takes microseconds and raises nothing."""
        self._waiting.append(row)
        self._taken += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pml-usage", daemon=True)
            self._thread.start()
        if not self._arrived.is_set():
            self._arrived.set()

    @asynccontextmanager
    async def limited_by(self, limits: Callable[[], UsageSettings]) -> AsyncIterator[None]:
        """Keep no more than these settings allow either; the last ones hold until there are others."""
        self._limits.append(limits)
        try:
            yield
        finally:
            self._limits.remove(limits)
            self._last_limits = (limits(),)

    def flush(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Wait until every queued row is written or dropped; return False on timeout. Blocks."""
        taken = self._taken
        with self._written:
            return self._written.wait_for(lambda: self._finished >= taken, timeout)

    def close(self) -> None:
        """Write the queued rows and end the thread, or give up after CLOSE_SECONDS. Blocks."""
        self._closing.set()
        self._arrived.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        with closing(self._tables):
            while not self._closing.is_set():
                self._arrived.wait()
                self._closing.wait(BATCH_SECONDS)
                self._arrived.clear()
                if not self._write_waiting():
                    self._closing.wait(RETRY_SECONDS)
                    self._arrived.set()
            self._write_waiting()

    def _write_waiting(self) -> bool:
        """Write all queued rows; after an error they stay queued, but the oldest are dropped if the queue is full."""
        rows = list(self._waiting)
        try:
            if rows:
                self._tables.change(lambda connection: self._write(connection, rows))
        except TablesError as error:
            warn_unwritable(USAGE, self._tables.path, error)
            return False
        except (ValueError, TypeError, RecursionError) as error:
            # A record that cannot be written must not hold up the others for ever, nor end the thread.
            logger.warning("%d records of usage are dropped (%s)", len(rows), error)
        for row in rows:
            # Rows that a full queue pushed out meanwhile were written as well.
            if self._waiting and self._waiting[0] is row:
                self._waiting.popleft()
        with self._written:
            self._finished = self._taken - len(self._waiting)
            self._written.notify_all()
        return True

    def _write(self, connection: Connection, rows: list[Row]) -> None:
        for row in rows:
            match row:
                case CallRow():
                    *fields, intent, search, rank, arguments = (getattr(row, name) for name in CallRow.__slots__)
                    connection.execute(_CALL, (*fields, masked(intent), search, rank, shown_arguments(arguments)))
                case SearchRow():
                    about = (row.at, row.config, row.key, row.client, row.mode, row.stage)
                    connection.execute(_SEARCH, (*about, masked(row.query), json.dumps(row.hits)))
                case ListRow():
                    digests = (_keep_body(connection, row.body), _keep_body(connection, row.full()))
                    connection.execute(_LIST, (row.at, row.config, row.client, row.mode, row.stage, *digests))
        now, limits = time.monotonic(), [each() for each in tuple(self._limits)] or self._last_limits
        if limits and (not self._pruned or now - self._pruned > PRUNE_SECONDS):
            oldest = time.time() - min(each.max_days for each in limits) * 86400
            prune(connection, oldest, min(each.max_rows for each in limits))
            self._pruned = now


def _keep_body(connection: Connection, body: bytes) -> str:
    """Return the digest of a list; store a new list until its tokens are counted, unless too many are stored."""
    digest = hashlib.sha256(body).hexdigest()[:32]
    if connection.execute("SELECT 1 FROM bodies WHERE digest = ?", (digest,)).fetchone() is None:
        [(uncounted,)] = connection.execute("SELECT count(*) FROM bodies WHERE body IS NOT NULL").fetchall()
        kept = zlib.compress(body, 6) if uncounted < MAX_UNCOUNTED else None
        tools = sum(1 for _ in decoded_items(body))
        connection.execute(
            "INSERT OR IGNORE INTO bodies (digest, tools, bytes, tokens, body) VALUES (?, ?, ?, NULL, ?)",
            (digest, tools, len(body), kept),
        )
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
