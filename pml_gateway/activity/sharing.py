"""Exchange of activity records between replicas by a Redis stream: the file of each has the calls of all."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, fields
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
from cachetools import FIFOCache

from pml_gateway.activity.database import activity_tables, note_gap
from pml_gateway.activity.recorder import (
    AccessRow,
    ListBody,
    ListRow,
    Recorder,
    Row,
    SearchRow,
    digest_of,
    insert_list,
    insert_search,
    tools_in,
)
from pml_gateway.errors import GatewayError, SharedStateError
from pml_gateway.log import get_logger
from pml_gateway.storage.redis import MAX_TTL, OPERATION_SECONDS, PREFIX, RedisServer
from pml_gateway.storage.tables import Connection
from pml_gateway.text import counted
from pml_gateway.types import JsonObject

if TYPE_CHECKING:
    from redis.asyncio import Redis

logger = get_logger(__name__)

STREAM: Final = f"{PREFIX}:activity"

BATCH_SECONDS = 1.0
"""Time between two batches of one replica, and between two reads of the stream."""

MAX_BATCH_WEIGHT = 1_000_000
"""Characters of a batch, some 2,000 calls; about a tenth of that once it is compressed."""

MAX_BATCHES = 1000
"""Maximum batches in the stream: what a replica that was away can still read."""

MAX_WAITING = 20_000
MAX_WAITING_WEIGHT = 16_000_000
"""Maximum records, and their characters, queued in memory while Redis is away; the oldest are dropped and counted."""

READ_AT_ONCE = 20
"""Batches read before they are written: fewer characters than wait for the disk at most."""

SENDERS_KEPT_SECONDS = 7 * 86_400.0
"""Time after which the number of a sender's last batch is forgotten; the stream expires before."""

MAX_BODIES = 256

_ACCESS_FIELDS = [field.name for field in fields(AccessRow) if field.name not in ("config", "replica")]
_access_values = attrgetter(*_ACCESS_FIELDS)
_SEARCH_FIELDS = [field.name for field in fields(SearchRow) if field.name != "config"]
_LIST_FIELDS = ["at", "client", "mode", "stage", "program"]


@dataclass(frozen=True, slots=True)
class ReceivedBatch:
    """Records of another replica; `entry` is the id of the batch in the stream."""

    entry: str
    sender: str
    number: int
    replica: str
    dropped: int
    weight: int
    columns: tuple[str, ...]
    accesses: list[list[object]]
    """The values of `columns` of each access, configuration and replica first."""
    searches: list[SearchRow]
    lists: list[tuple[JsonObject, ListBody, ListBody]]

    @classmethod
    def read(cls, content: JsonObject, entry: str, config: str) -> ReceivedBatch:
        """Read a batch; fields of a replica of another version are left out.

        Raises:
            LookupError: it lacks a field that this version writes.
        """
        names, rows, replica = content["accesses"]["fields"], content["accesses"]["rows"], content["replica"]
        if names != _ACCESS_FIELDS:
            known = [at for at, name in enumerate(names) if name in _ACCESS_FIELDS]
            names, rows = [names[at] for at in known], [[row[at] for at in known] for row in rows]
        return cls(
            entry,
            content["sender"],
            content["number"],
            replica,
            content["dropped"],
            content["weight"],
            ("config", "replica", *names),
            [[config, replica, *row] for row in rows],
            [
                SearchRow(config=config, **{name: row[name] for name in _SEARCH_FIELDS if name in row})
                for row in content["searches"]
            ],
            [
                (
                    {"config": config, **{name: row[name] for name in _LIST_FIELDS}},
                    ListBody(*row["bodies"][0]),
                    ListBody(*row["bodies"][1]),
                )
                for row in content["lists"]
            ],
        )

    def write(self, connection: Connection) -> None:
        """Write the records, unless a process with the same file has already done so."""
        row = connection.execute("SELECT number FROM batches WHERE sender = ?", (self.sender,)).fetchone()
        last = None if row is None else int(row[0])
        if last is not None and self.number <= last:
            return
        now = time.time()
        if last is None:
            connection.execute("DELETE FROM batches WHERE at < ?", (now - SENDERS_KEPT_SECONDS,))
        elif missed := self.number - last - 1:
            note_gap(connection, f"{counted(missed, 'batch', 'batches')} of replica {self.replica} did not arrive")
        if self.dropped:
            what = f"{counted(self.dropped, 'record')} of replica {self.replica}"
            note_gap(connection, f"{what} dropped: Redis did not answer for too long")
        columns = f"({', '.join(self.columns)}) VALUES ({', '.join('?' * len(self.columns))})"
        connection.executemany(f"INSERT INTO accesses {columns}", self.accesses)
        for search in self.searches:
            insert_search(connection, search)
        for given in self.lists:
            insert_list(connection, *given)
        values = (self.sender, self.number, self.entry, now)
        connection.execute("INSERT OR REPLACE INTO batches (sender, number, entry, at) VALUES (?, ?, ?, ?)", values)


class ActivitySharing:
    """The exchange: records of this replica are sent to the others, and theirs written to its file."""

    def __init__(
        self, server: RedisServer, recorder: Recorder, replica: str, config: str, is_recording: Callable[[], bool]
    ) -> None:
        self._server = server
        self._recorder = recorder
        self.replica = replica
        self._config = config
        self._is_recording = is_recording
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, str, Any]] = deque()
        self._weight = 0
        self._dropped = 0
        self._unsent: tuple[int, bytes] | None = None
        self._number = 0
        self._file_id = self._sender = ""
        self._tool_counts: FIFOCache[str, int] = FIFOCache(MAX_BODIES)

    def take(self, row: Row) -> Row:
        """Queue a record for the other replicas, and return it. Called in the recorder's thread."""
        match row:
            case AccessRow():
                self._enqueue(row.weight, "accesses", _access_values(row))
            case SearchRow():
                self._enqueue(row.weight, "searches", {name: getattr(row, name) for name in _SEARCH_FIELDS})
            case ListRow():
                told = {name: getattr(row, name) for name in _LIST_FIELDS}
                bodies = [self._list_body(each) for each in (row.body, row.full())]
                self._enqueue(row.weight, "lists", {**told, "bodies": bodies})
            case _:
                pass
        return row

    def _list_body(self, body: bytes) -> ListBody:
        digest = digest_of(body)
        if digest not in self._tool_counts:
            self._tool_counts[digest] = tools_in(body)
        return ListBody(digest, self._tool_counts[digest], len(body))

    def _enqueue(self, weight: int, kind: str, content: object) -> None:
        with self._lock:
            self._waiting.append((weight, kind, content))
            self._weight += weight
            while len(self._waiting) > MAX_WAITING or self._weight > MAX_WAITING_WEIGHT:
                self._weight -= self._waiting.popleft()[0]
                if not self._dropped:
                    logger.warning("the oldest records of activity are not passed on: Redis does not answer")
                self._dropped += 1

    async def run(self) -> None:
        """Send records and write those of others, for as long as the owner's task group lives."""
        try:
            last: str | None = None
            while True:
                await anyio.sleep(BATCH_SECONDS)
                # The recorder warns of an unwritable file.
                with suppress(GatewayError):
                    if last is None:
                        last = await anyio.to_thread.run_sync(self._read_position, self._recorder.path)
                    await self._send()
                    last = await self._read(last)
        finally:
            with anyio.move_on_after(OPERATION_SECONDS, shield=True):
                await anyio.to_thread.run_sync(self._recorder.flush)
                with suppress(SharedStateError):
                    while await self._send():
                        pass
            if self._waiting:
                logger.warning("%s could not be passed on", counted(len(self._waiting), "record"))

    def _read_position(self, path: Path) -> str:
        """Return the id of the last batch in the file. All processes with one file have one id for it."""

        def ask(connection: Connection) -> tuple[str, list[str]]:
            connection.execute(
                "INSERT INTO file SELECT ? WHERE NOT EXISTS (SELECT 1 FROM file)", (secrets.token_hex(6),)
            )
            [(name,)] = connection.execute("SELECT id FROM file LIMIT 1").fetchall()
            return name, [entry for (entry,) in connection.execute("SELECT entry FROM batches")]

        with closing(activity_tables(path)) as tables:
            self._file_id, entries = tables.change(ask)
        self._sender = f"{self._file_id}.{secrets.token_hex(4)}"
        return max(entries, key=lambda entry: tuple(map(int, entry.split("-"))), default="0-0")

    async def _send(self) -> bool:
        """Send a batch; return False if there is nothing to send."""
        if self._unsent is None and (self._waiting or self._dropped) and self._sender:
            self._unsent = await anyio.to_thread.run_sync(self._next_batch)
        if self._unsent is None:
            return False
        number, sealed = self._unsent

        async def add(redis: Redis) -> None:
            async with redis.pipeline(transaction=False) as commands:
                entry = {"sender": self._sender, "number": number, "batch": sealed}
                commands.xadd(STREAM, entry, maxlen=MAX_BATCHES, approximate=True)  # type: ignore[arg-type]  # mixed
                commands.pexpire(STREAM, int(MAX_TTL * 1000))
                await commands.execute()

        # If its answer is lost, it is sent again: the others know it by its number.
        await self._server.run(add)
        self._unsent = None
        return True

    def _next_batch(self) -> tuple[int, bytes]:
        content: dict[str, list[Any]] = {"accesses": [], "searches": [], "lists": []}
        weight = 0
        with self._lock:
            dropped, self._dropped = self._dropped, 0
            while self._waiting and weight < MAX_BATCH_WEIGHT:
                each, kind, row = self._waiting.popleft()
                content[kind].append(row)
                weight += each
            self._weight -= weight
        self._number += 1
        value = {
            **content,
            "accesses": {"fields": _ACCESS_FIELDS, "rows": content["accesses"]},
            "sender": self._sender,
            "number": self._number,
            "replica": self.replica,
            "dropped": dropped,
            "weight": weight,
        }
        return self._number, self._server.seal(STREAM, value, compressed=True)

    async def _read(self, last: str) -> str:
        """Queue the batches of others after this id for writing; return the id of the last one."""
        while True:

            async def look(redis: Redis, after: str = last) -> Any:
                return await redis.xread({STREAM: after}, count=READ_AT_ONCE)

            found = await self._server.run(look)
            entries = found[0][1] if found else []
            for entry, given in entries:
                last = entry.decode()
                # Whoever can write to Redis can put anything here.
                sender, batch = given.get(b"sender", b""), given.get(b"batch", b"")
                if self._is_recording() and not sender.startswith(f"{self._file_id}.".encode()):
                    self._recorder.add(partial(self._unseal_batch, last, batch))
            if len(entries) < READ_AT_ONCE:
                return last
            await anyio.to_thread.run_sync(self._recorder.flush)

    def _unseal_batch(self, entry: str, sealed: bytes) -> ReceivedBatch | None:
        value = self._server.unseal(STREAM, sealed)
        # The stream still has what was sealed with the storage.key of before.
        return None if value is None else ReceivedBatch.read(value, entry, self._config)
