"""Recorded accesses: every attempt to use a tool, prompt or resource, and how it was decided and ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pml_gateway.activity.database import activity_tables
from pml_gateway.storage.tables import Connection
from pml_gateway.types import JsonObject

OUTCOMES = ("ok", "failed", "refused")
"""Filters for several codes each; a filter can also be a single code."""

REQUEST_ACCESSES = 200
"""Accesses of one request that are shown; a batch has fewer."""

REQUEST_SECONDS = 300.0
"""A client may send the same request id again and again; what is further away belongs to another request."""


@dataclass(frozen=True, slots=True)
class RecordedAccess:
    """One attempt to use something, as its client asked for it, and how it ended.

    Args:
        id: number of the record.
        at: when it began, as wall-clock time.
        client: name of a configured client, else its kind.
        program: name that the client's program gives itself, which nothing may depend on.
        replica: the gateway that it was asked, of several that share a Redis server.
        method: method of the protocol; `tools/call` also for what another call contained.
        server: the server, empty for what the gateway itself offers.
        tool: the server's own name of its tool, empty if it is none.
        target: the name that clients know, or the one in the call if it means nothing.
        effect: effect that the tool declares.
        code: outcome, `OK` or an error code.
        refused: True if it was decided that the call is not made.
        rule: the rule that decided.
        approval: id of the approval that it was made by.
        request: id of the request that it was part of.
        how: route of the call: direct, call_tool, batch, workflow or composite.
        mode: exposure mode of the client.
        intent: intent of the client.
        query: the search that led to it, and `rank` the place of the tool among its hits.
        seconds: until it ended; `server_seconds` of it until the server had answered.
        sends: times that it was sent to the server.
        given: characters of the arguments, and `answered` of the result, as JSON.
        kept: how arguments are kept: off, keys, masked or whole.
        arguments: with `keys`, the sizes by key; otherwise the arguments, secrets masked.
    """

    id: int
    at: float
    client: str
    program: str
    replica: str
    method: str
    server: str
    tool: str
    target: str
    effect: str
    code: str
    refused: bool
    rule: str
    approval: str
    request: str
    how: str
    mode: str
    intent: str | None
    query: str | None
    rank: int | None
    seconds: float
    server_seconds: float
    sends: int
    given: int
    answered: int
    kept: str
    arguments: JsonObject | None


@dataclass(frozen=True, slots=True)
class AccessFilter:
    """The filter for accesses of one configuration; None is no limit.

    `tool` is a name or a pattern with `*`, `outcome` one of OUTCOMES or a code in any case, `after` an id, and `text`
    part of a name, rule, intent or argument.
    """

    config: str
    client: str | None = None
    tool: str | None = None
    server: str | None = None
    outcome: str | None = None
    since: float | None = None
    after: int | None = None
    until: float | None = None
    text: str | None = None
    program: str | None = None


COLUMNS = (
    "accesses.id, accesses.at, accesses.client, accesses.program, replica, method, server, tool, target, effect, code,"
    " refused, rule, approval, request, how, accesses.mode, intent, query, rank, seconds, server_seconds, sends, given,"
    " answered, kept, arguments"
)
FROM = "FROM accesses LEFT JOIN searches ON searches.key = accesses.search"


def read_accesses(path: Path, wanted: AccessFilter, limit: int) -> list[RecordedAccess]:
    """Return the latest accesses that are asked for, oldest first.

    Raises:
        TablesError: the database cannot be read.
    """
    conditions = dict(conditions_of(wanted))
    # Ids follow the order of writing; times, which the indexes have, the order of beginning.
    order = "accesses.at DESC, accesses.id DESC" if wanted.after is None else "accesses.id DESC"
    query = f"SELECT {COLUMNS} {FROM} WHERE {' AND '.join(conditions)} ORDER BY {order} LIMIT ?"
    values = [value for value in conditions.values() if value is not None]
    rows = activity_tables(path).rows(query, (*values, limit))
    return [access_of(row) for row in reversed(rows)]


def conditions_of(wanted: AccessFilter) -> Iterator[tuple[str, object]]:
    """Yield each condition in SQL, with its value if it has one."""
    # Unary plus: the index of a narrower filter is better than that of the configuration.
    yield "+accesses.config = ?", wanted.config
    if wanted.client is not None:
        yield "accesses.client = ?", wanted.client
    if wanted.program is not None:
        yield "accesses.program = ?", wanted.program
    if wanted.tool is not None:
        yield ("target GLOB ?" if "*" in wanted.tool else "target = ?"), wanted.tool
    if wanted.server is not None:
        yield "server = ?", wanted.server
    match wanted.outcome:
        case None:
            pass
        case "ok":
            yield "code = 'OK'", None
        case "failed":
            yield "code != 'OK' AND code != 'INPUT_REQUIRED'", None
        case "refused":
            yield "code != 'OK' AND refused", None
        case code:
            # The first condition is that of the index.
            yield "code != 'OK' AND code = ?", code.upper()
    if wanted.since is not None:
        yield "accesses.at >= ?", wanted.since
    if wanted.after is not None:
        yield "accesses.id > ?", wanted.after
    if wanted.until is not None:
        yield "accesses.at < ?", wanted.until
    if wanted.text is not None:
        searched = " || char(10) || ".join(f"coalesce({column}, '')" for column in _SEARCHED)
        yield f"{searched} LIKE ? ESCAPE '\\'", like(wanted.text)


_SEARCHED = ("target", "rule", "accesses.client", "accesses.program", "request", "intent", "arguments")


def like(part: str) -> str:
    """Return the pattern of LIKE for a text that contains this part."""
    escaped = part.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"


def access_of(row: tuple[Any, ...]) -> RecordedAccess:
    """Return the access of a row of COLUMNS."""
    access = RecordedAccess(*row)
    arguments = None if row[-1] is None else json.loads(row[-1])
    return replace(access, refused=bool(access.refused), arguments=arguments)


@dataclass(frozen=True, slots=True)
class AccessInRequest:
    """One access with the others of the same request, in the order in which they ended."""

    access: RecordedAccess
    request: tuple[RecordedAccess, ...]


def read_access(path: Path, number: int) -> AccessInRequest | None:
    """Return an access with the others of its request; None if the id is unknown or no longer kept.

    Raises:
        TablesError: the database cannot be read.
    """

    def ask(connection: Connection) -> AccessInRequest | None:
        row = connection.execute(f"SELECT {COLUMNS} {FROM} WHERE accesses.id = ?", (number,)).fetchone()
        if row is None:
            return None
        access = access_of(row)
        others = connection.execute(
            f"SELECT {COLUMNS} {FROM} WHERE accesses.client = ? AND accesses.at BETWEEN ? AND ?"
            " AND request = ? AND request != '' AND accesses.id != ? ORDER BY accesses.id LIMIT ?",
            (access.client, *_around(access), access.request, number, REQUEST_ACCESSES),
        )
        return AccessInRequest(access, tuple(map(access_of, others)))

    return activity_tables(path).read(ask, None)


def _around(access: RecordedAccess) -> tuple[float, float]:
    return access.at - REQUEST_SECONDS, access.at + access.seconds + REQUEST_SECONDS


def read_gaps(path: Path, since: float | None = None) -> list[tuple[float, str]]:
    """Return when records were found missing, and why, oldest first.

    Raises:
        TablesError: the database cannot be read.
    """
    rows = activity_tables(path).rows("SELECT at, reason FROM gaps WHERE at >= ? ORDER BY id", (since or 0.0,))
    return sorted([*((at, reason) for at, reason in rows), *_damaged(path)])


def _damaged(path: Path) -> Iterator[tuple[float, str]]:
    """Yield each file that was set aside, with the time; also older ones, since all of their records are missing."""
    for aside in path.parent.glob(f"{path.name}.damaged*"):
        if not aside.name.endswith(("-wal", "-shm")):
            with suppress(OSError):
                at = aside.stat().st_ctime
                yield at, f"the file was damaged, and is kept as {aside}; delete it to no longer read this"


def last_id(path: Path) -> int:
    """Return the id of the last access; 0 if there is none.

    Raises:
        TablesError: the database cannot be read.
    """
    return last_ids(path)[0]


def last_ids(path: Path) -> tuple[int, int, int]:
    """Return the ids of the last access, search and list; 0 if there is none.

    Raises:
        TablesError: the database cannot be read.
    """
    ids = ", ".join(f"(SELECT coalesce(max(id), 0) FROM {table})" for table in ("accesses", "searches", "lists"))
    [(access, search, given)] = activity_tables(path).rows(f"SELECT {ids}") or [(0, 0, 0)]
    return int(access), int(search), int(given)
