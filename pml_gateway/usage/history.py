"""Recorded calls, searches and lists of one configuration, and the tools called most."""

from __future__ import annotations

import json
import sqlite3
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pml_gateway.errors import GatewayError
from pml_gateway.exposure.token_count import count_tokens
from pml_gateway.log import get_logger
from pml_gateway.usage.database import open_for_reading

ToolKey = tuple[str, str]
"""An upstream and its own name of a tool, which stay when the qualified name changes."""

INSIDE = "composite"
"""Route of a composite tool's steps; clients neither list nor search them."""


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


@dataclass(frozen=True, slots=True)
class History:
    """Return the records, oldest first."""

    calls: tuple[RecordedCall, ...] = ()
    searches: tuple[RecordedSearch, ...] = ()
    lists: RecordedLists = RecordedLists()


def read_history(path: Path, wanted: RecordFilter, *, lists: bool = False) -> History:
    """Return the records that are asked for; those of lists only with `lists`, since their tokens have to be counted.

    Raises:
        GatewayError: the database cannot be read.
    """
    with _reading(path) as connection:
        if connection is None:
            return History()
        return History(_calls(connection, wanted), _searches(connection, wanted), _lists(connection, wanted, lists))


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection | None]:
    connection = open_for_reading(path)
    if connection is None:
        yield None
        return
    with closing(connection):
        try:
            yield connection
        except sqlite3.Error as exc:
            raise GatewayError(f"{path} cannot be read ({exc})", hint="if it is broken, remove the file") from exc


def _where(wanted: RecordFilter, table: str) -> tuple[str, list[object]]:
    conditions, values = [f"{table}.config = ?"], [wanted.config]
    given: list[object] = list(values)
    if wanted.since is not None:
        conditions.append(f"{table}.at >= ?")
        given.append(wanted.since)
    if wanted.client is not None:
        conditions.append(f"{table}.client = ?")
        given.append(wanted.client)
    if wanted.upstream is not None and table == "calls":
        conditions.append("calls.upstream = ?")
        given.append(wanted.upstream)
    return " AND ".join(conditions), given


def _calls(connection: sqlite3.Connection, wanted: RecordFilter) -> tuple[RecordedCall, ...]:
    where, values = _where(wanted, "calls")
    rows = connection.execute(
        "SELECT calls.at, upstream, tool, calls.client, code, seconds, how, calls.stage, intent, query, rank"
        f" FROM calls LEFT JOIN searches ON searches.key = calls.search WHERE {where} AND how != ? ORDER BY calls.id",
        (*values, INSIDE),
    )
    return tuple(RecordedCall(at, (upstream, tool), *rest) for at, upstream, tool, *rest in rows)


def _searches(connection: sqlite3.Connection, wanted: RecordFilter) -> tuple[RecordedSearch, ...]:
    where, values = _where(wanted, "searches")
    rows = connection.execute(
        "SELECT at, client, stage, query, hits, NOT EXISTS (SELECT 1 FROM calls WHERE search = searches.key)"
        f" FROM searches WHERE {where} ORDER BY id",
        values,
    )
    return tuple(
        RecordedSearch(at, client, stage, query, tuple(map(_key, json.loads(hits))), bool(missed))
        for at, client, stage, query, hits, missed in rows
    )


def _key(pair: list[str]) -> ToolKey:
    upstream, tool = pair
    return (upstream, tool)


def _lists(connection: sqlite3.Connection, wanted: RecordFilter, counted: bool) -> RecordedLists:
    where, values = _where(wanted, "lists")
    if not counted:
        return RecordedLists()
    _count_bodies(connection)
    # Lists beyond those that were kept whole are judged by the tokens per byte of the others.
    tokens = "coalesce({0}.tokens, {0}.bytes * (SELECT total(tokens) / total(bytes) FROM bodies WHERE tokens > 0))"
    [(count, listed, full)] = connection.execute(
        f"SELECT count(*), total({tokens.format('shown')}), total({tokens.format('whole')}) FROM lists"
        " JOIN bodies shown ON shown.digest = lists.digest JOIN bodies whole ON whole.digest = lists.full_digest"
        f" WHERE {where}",
        values,
    ).fetchall()
    return RecordedLists(int(count), round(listed), round(full))


def _count_bodies(connection: sqlite3.Connection) -> None:
    """Count the tokens of lists that nobody counted yet, and let go of their text."""
    rows = connection.execute("SELECT digest, body FROM bodies WHERE tokens IS NULL AND body IS NOT NULL").fetchall()
    for digest, body in rows:
        tokens = count_tokens(zlib.decompress(body).decode())
        connection.execute("UPDATE bodies SET tokens = ?, body = NULL WHERE digest = ?", (tokens, digest))


def read_daily_counts(path: Path, config: str) -> list[tuple[ToolKey, int, int]]:
    """(tool, day since the epoch, calls) of everything recorded for a configuration, in a fixed order.

    Raises:
        GatewayError: the database cannot be read.
    """
    with _reading(path) as connection:
        if connection is None:
            return []
        rows = connection.execute(
            "SELECT upstream, tool, CAST(at / 86400 AS INTEGER) AS day, count(*) FROM calls"
            " WHERE config = ? AND how != ? GROUP BY upstream, tool, day ORDER BY day, upstream, tool",
            (config, INSIDE),
        )
        return [((upstream, tool), day, count) for upstream, tool, day, count in rows]


logger = get_logger(__name__)

HALF_LIFE_DAYS = 14.0
"""A call counts half after this time. The decay is exponential, so that the order depends on the calls alone and not on
when it is computed: gateways that start at different times give the same list."""


def most_used(path: Path, config: str) -> tuple[ToolKey, ...]:
    """Return the tools of a configuration, most used first; none if nothing was recorded or can be read."""
    try:
        counts = read_daily_counts(path, config)
    except GatewayError as error:
        logger.warning("lists are filled without usage: %s", error)
        return ()
    return ranked(counts)


def ranked(counts: list[tuple[ToolKey, int, int]]) -> tuple[ToolKey, ...]:
    """Tools by (tool, day, calls), most used first, equal ones by name; days count from the epoch."""
    last = max((day for _, day, _ in counts), default=int(time.time() // 86400))
    weights: dict[ToolKey, float] = defaultdict(float)
    for key, day, calls in counts:
        weights[key] += calls * 0.5 ** ((last - day) / HALF_LIFE_DAYS)
    return tuple(sorted(weights, key=lambda key: (-weights[key], key)))
