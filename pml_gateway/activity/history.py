"""Recorded calls, searches and lists of one configuration, and the tools called most."""

from __future__ import annotations

import json
import time
import zlib
from collections import defaultdict
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pml_gateway.activity.database import activity_tables
from pml_gateway.exposure.token_count import count_tokens
from pml_gateway.log import get_logger
from pml_gateway.storage.tables import Connection, TablesError
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

ToolKey = tuple[str, str]
"""An upstream and its own name of a tool, which stay when the qualified name changes."""

INSIDE = "composite"
"""Route of a composite tool's steps; clients neither list nor search them."""

HALF_LIFE_DAYS = 14.0
"""A call counts half after this time. The decay is exponential, so that the order depends on the calls alone and not on
when it is computed: gateways that start at different times give the same list."""


MAX_LOOKED_AT, MAX_RECORDED = 5000, 3
"""Maximum number of the latest calls or searches that are looked at, and of examples of one tool."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call a client made; `query` is the search that led to it, `rank` the tool's place in its answer."""

    at: float
    tool: ToolKey
    client: str
    code: str
    seconds: float
    how: str
    stage: str
    intent: str | None
    query: str | None
    rank: int | None
    program: str = ""

    @property
    def succeeded(self) -> bool:
        """Return True if the call succeeded."""
        return self.code == "OK"


@dataclass(frozen=True, slots=True)
class RecordedSearch:
    """One search; a miss is one after which none of its hits was called."""

    at: float
    client: str
    stage: str
    query: str
    hits: tuple[ToolKey, ...]
    missed: bool


@dataclass(frozen=True, slots=True)
class RecordedLists:
    """Lists that clients were given, with tokens of o200k_base; `full_tokens` is what full_proxy would have cost."""

    count: int = 0
    tokens: int = 0
    full_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """The filter for records; None is no limit."""

    config: str
    since: float | None = None
    client: str | None = None
    upstream: str | None = None
    program: str | None = None


@dataclass(frozen=True, slots=True)
class History:
    """Recorded calls, searches and lists, oldest first."""

    calls: tuple[RecordedCall, ...] = ()
    searches: tuple[RecordedSearch, ...] = ()
    lists: RecordedLists = RecordedLists()


def read_history(path: Path, wanted: RecordFilter, *, lists: bool = False) -> History:
    """Return the records that are asked for; those of lists only with `lists`, since their tokens have to be counted.

    Raises:
        TablesError: the database cannot be read.
    """
    if lists:
        count_bodies(path)
    return activity_tables(path).read(
        lambda connection: History(
            _calls(connection, wanted),
            _searches(connection, wanted),
            _lists(connection, wanted) if lists else RecordedLists(),
        ),
        History(),
    )


def _where(wanted: RecordFilter, table: str) -> tuple[str, list[object]]:
    limits: dict[str, object] = {
        "config =": wanted.config,
        "at >=": wanted.since,
        "client =": wanted.client,
        "program =": wanted.program,
    }
    if table == "accesses":
        limits["server ="] = wanted.upstream
    given = {f"{table}.{limit} ?": value for limit, value in limits.items() if value is not None}
    return " AND ".join(given), list(given.values())


def _calls(connection: Connection, wanted: RecordFilter) -> tuple[RecordedCall, ...]:
    where, values = _where(wanted, "accesses")
    rows = connection.execute(
        "SELECT accesses.at, server, tool, accesses.client, code, seconds, how, accesses.stage, intent, query, rank,"
        " accesses.program FROM accesses LEFT JOIN searches ON searches.key = accesses.search"
        f" WHERE {where} AND counts AND how != ? ORDER BY accesses.id",
        (*values, INSIDE),
    )
    return tuple(RecordedCall(at, (upstream, tool), *rest) for at, upstream, tool, *rest in rows)


def _searches(connection: Connection, wanted: RecordFilter) -> tuple[RecordedSearch, ...]:
    where, values = _where(wanted, "searches")
    rows = connection.execute(
        "SELECT at, client, stage, query, hits, NOT EXISTS (SELECT 1 FROM accesses WHERE search = searches.key)"
        f" FROM searches WHERE {where} ORDER BY id",
        values,
    )
    return tuple(
        RecordedSearch(at, client, stage, query, tuple(map(_key, json.loads(hits))), bool(missed))
        for at, client, stage, query, hits, missed in rows
    )


def read_queries(path: Path, config: str) -> list[str]:
    """Return what the latest searches of a configuration asked for, oldest first.

    Raises:
        TablesError: the database cannot be read.
    """
    query = "SELECT query FROM searches WHERE config = ? ORDER BY id DESC LIMIT ?"
    return [text for (text,) in reversed(activity_tables(path).rows(query, (config, MAX_LOOKED_AT)))]


def _key(pair: list[str]) -> ToolKey:
    upstream, tool = pair
    return (upstream, tool)


def _lists(connection: Connection, wanted: RecordFilter) -> RecordedLists:
    where, values = _where(wanted, "lists")
    # Lists beyond those that were kept whole are judged by the tokens per byte of the others.
    tokens = "coalesce({0}.tokens, {0}.bytes * (SELECT total(tokens) / total(bytes) FROM bodies WHERE tokens > 0))"
    [(count, listed, full)] = connection.execute(
        f"SELECT count(*), total({tokens.format('shown')}), total({tokens.format('whole')}) FROM lists"
        " JOIN bodies shown ON shown.digest = lists.digest JOIN bodies whole ON whole.digest = lists.full_digest"
        f" WHERE {where}",
        values,
    ).fetchall()
    return RecordedLists(int(count), round(listed), round(full))


def count_bodies(path: Path) -> None:
    """Count the tokens of lists that are not counted yet, and delete their text."""
    uncounted = "SELECT digest, body FROM bodies WHERE tokens IS NULL AND body IS NOT NULL"
    counted = "UPDATE bodies SET tokens = ?, body = NULL WHERE digest = ?"
    with closing(activity_tables(path)) as tables:
        bodies = tables.rows(uncounted)
        tokens = [(count_tokens(zlib.decompress(body).decode()), digest) for digest, body in bodies]
        if tokens:
            tables.change(lambda connection: connection.executemany(counted, tokens))


def read_arguments(path: Path, config: str, client: str, tools: Collection[ToolKey]) -> dict[ToolKey, list[JsonObject]]:
    """Return the arguments of a client's latest calls of these tools that succeeded, newest first; none if unreadable.

    Secrets are masked in them. Calls of which no values were kept are left out.
    """
    query = (
        "SELECT server, tool, arguments FROM accesses WHERE config = ? AND client = ? AND counts AND code = 'OK'"
        " AND how != ? AND kept IN ('masked', 'whole') ORDER BY at DESC LIMIT ?"
    )
    found: dict[ToolKey, list[JsonObject]] = {}
    try:
        rows = activity_tables(path).rows(query, (config, client, INSIDE, MAX_LOOKED_AT))
    except TablesError as error:
        logger.warning("no examples from recorded calls: %s", error)
        return found
    for upstream, tool, text in rows:
        known = found.setdefault((upstream, tool), []) if (upstream, tool) in tools else None
        if known is not None and len(known) < MAX_RECORDED:
            known.append(json.loads(text))
    return found


def read_daily_counts(path: Path, config: str) -> list[tuple[ToolKey, int, int]]:
    """(tool, day since the epoch, calls) of everything recorded for a configuration, in a fixed order.

    Raises:
        TablesError: the database cannot be read.
    """
    query = (
        "SELECT server, tool, CAST(at / 86400 AS INTEGER) AS day, count(*) FROM accesses"
        " WHERE config = ? AND counts AND how != ? GROUP BY server, tool, day ORDER BY day, server, tool"
    )
    rows = activity_tables(path).rows(query, (config, INSIDE))
    return [((upstream, tool), day, count) for upstream, tool, day, count in rows]


def read_clients(path: Path, config: str, column: str = "client") -> list[str]:
    """Return the clients of everything recorded for a configuration, or their programs, by name.

    Raises:
        TablesError: the database cannot be read.
    """
    tables = ("accesses", "searches", "lists")
    query = " UNION ".join(f"SELECT {column} FROM {table} WHERE config = ?" for table in tables)
    return sorted(client for (client,) in activity_tables(path).rows(query, (config,) * 3))


def most_used(path: Path, config: str) -> tuple[ToolKey, ...]:
    """Return the tools of a configuration, most used first; none if nothing was recorded or can be read."""
    try:
        counts = read_daily_counts(path, config)
    except TablesError as error:
        logger.warning("menus and lists do not follow usage: %s", error)
        return ()
    return ranked(counts)


def ranked(counts: list[tuple[ToolKey, int, int]]) -> tuple[ToolKey, ...]:
    """Tools by (tool, day, calls), most used first, equal ones by name; days count from the epoch."""
    last = max((day for _, day, _ in counts), default=int(time.time() // 86400))
    weights: dict[ToolKey, float] = defaultdict(float)
    for key, day, calls in counts:
        weights[key] += calls * 0.5 ** ((last - day) / HALF_LIFE_DAYS)
    return tuple(sorted(weights, key=lambda key: (-weights[key], key)))
