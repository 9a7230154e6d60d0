"""Accesses, searches and lists as one feed, the latest first, read a page at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Any

from pml_gateway.activity.accesses import COLUMNS, FROM, AccessFilter, RecordedAccess, access_of, conditions_of, like
from pml_gateway.activity.database import activity_tables
from pml_gateway.policy.principal import OWNER
from pml_gateway.storage.tables import Connection

MAX_LOOKED_AT = 30_000
"""Maximum number of records that are looked at for a text or a pattern on one page, which no index finds."""

SHOWN_HITS = 5


class FeedPart(StrEnum):
    """The parts of a feed: everything, or records of one kind."""

    ALL = "all"
    CALLS = "calls"
    SEARCHES = "searches"
    MISSED = "missed"
    """Searches after which none of their hits was called."""
    LISTS = "lists"


@dataclass(frozen=True, slots=True, order=True)
class FeedPlace:
    """The place of a record in the feed; `kind` and `id` tell records of the same moment apart."""

    at: float
    kind: int = 0
    id: int = 0

    def __str__(self) -> str:
        return f"{self.at!r}_{self.kind}_{self.id}"

    @classmethod
    def parsed(cls, text: str) -> FeedPlace | None:
        """Return the place that was written as this text; None for any other text."""
        try:
            at, kind, number = text.split("_")
            place = cls(float(at), int(kind), int(number))
        except ValueError:
            return None
        return place if math.isfinite(place.at) else None


@dataclass(frozen=True, slots=True)
class SearchEntry:
    """One search: number of its hits, the first of them, and the number of calls that it led to."""

    id: int
    at: float
    client: str
    program: str
    mode: str
    query: str
    found: int
    hits: tuple[str, ...]
    calls: int


@dataclass(frozen=True, slots=True)
class GivenList:
    """One list that a client was given; `tokens` are None until they are counted."""

    id: int
    at: float
    client: str
    program: str
    mode: str
    tools: int
    bytes: int
    tokens: int | None


FeedEntry = RecordedAccess | SearchEntry | GivenList


@dataclass(frozen=True, slots=True)
class FeedPage:
    """Some records, the latest first.

    Args:
        entries: the records.
        older: place from which to read on; empty at the end of the feed.
        newer: place before which there may be newer ones; empty at the beginning of the feed.
        looked_back_to: time of the oldest record that was looked at, if that ended the page.
    """

    entries: Sequence[FeedEntry] = ()
    older: str = ""
    newer: str = ""
    looked_back_to: float | None = None


def read_feed(
    path: Path,
    wanted: AccessFilter,
    part: FeedPart = FeedPart.ALL,
    limit: int = 100,
    *,
    before: FeedPlace | None = None,
    after: FeedPlace | None = None,
) -> FeedPage:
    """Return the latest records that are asked for, before or after a place if one is given.

    Searches and lists are of no tool, server or outcome, and left out if one of these is asked for.

    Raises:
        TablesError: the database cannot be read.
    """
    return activity_tables(path).read(
        lambda connection: _Reading(connection, wanted, part, limit, before, after).page(), FeedPage()
    )


@dataclass(frozen=True, slots=True)
class _Table:
    columns: str
    origin: str
    table: str


_TABLES = (
    _Table(COLUMNS, FROM, "accesses"),
    _Table(
        "id, at, client, program, mode, query, hits, (SELECT count(*) FROM accesses WHERE search = searches.key)",
        "FROM searches",
        "searches",
    ),
    _Table(
        "lists.id, lists.at, lists.client, lists.program, lists.mode, bodies.tools, bodies.bytes, bodies.tokens",
        "FROM lists JOIN bodies ON bodies.digest = lists.digest",
        "lists",
    ),
)
_PARTS: dict[FeedPart, tuple[int, ...]] = {
    FeedPart.ALL: (0, 1, 2),
    FeedPart.CALLS: (0,),
    FeedPart.SEARCHES: (1,),
    FeedPart.MISSED: (1,),
    FeedPart.LISTS: (2,),
}


@dataclass(frozen=True, slots=True)
class _Reading:
    connection: Connection
    wanted: AccessFilter
    part: FeedPart
    limit: int
    before: FeedPlace | None
    after: FeedPlace | None
    bound: list[float] = field(default_factory=list)

    def page(self) -> FeedPage:
        kinds = _PARTS[self.part]
        if self.wanted.tool or self.wanted.server or self.wanted.outcome:
            kinds = tuple(kind for kind in kinds if kind == 0)
        found = sorted(chain.from_iterable(map(self._of, kinds)), key=lambda each: each[0], reverse=self.after is None)
        bound = max(self.bound, default=None)
        if bound is not None:
            found = [each for each in found if each[0].at >= bound]
        chosen = found[: self.limit]
        if self.after is not None:
            chosen.reverse()
        places = [place for place, _ in chosen]
        is_more = len(found) > self.limit
        has_older = is_more or self.after is not None
        has_newer = self.before is not None if self.after is None else is_more
        is_cut = bound is not None and not has_older
        older = str(places[-1]) if has_older and places else str(FeedPlace(bound)) if is_cut and bound else ""
        return FeedPage(
            [entry for _, entry in chosen],
            older,
            str(places[0]) if has_newer and places else "",
            bound if is_cut else None,
        )

    def _of(self, kind: int) -> Iterator[tuple[FeedPlace, FeedEntry]]:
        told = _TABLES[kind]
        conditions = [*self._conditions(kind)]
        direction = "DESC" if self.after is None else "ASC"
        order = f"ORDER BY {told.table}.at {direction}, {told.table}.id {direction}"
        if self.after is None and (self.wanted.text or "*" in (self.wanted.tool or "")):
            bound = self._oldest(kind)
            if bound is not None:
                self.bound.append(bound)
                conditions.append((f"{told.table}.at >= ?", bound))
        values = [value for _, value in conditions if value is not None]
        query = (
            f"SELECT {told.columns} {told.origin} WHERE {' AND '.join(each for each, _ in conditions)} {order} LIMIT ?"
        )
        for row in self.connection.execute(query, (*values, self.limit + 1)):
            entry = _ENTRIES[kind](row)
            yield FeedPlace(entry.at, kind, entry.id), entry

    def _oldest(self, kind: int) -> float | None:
        """Return the time of the oldest record to look at; None if there are few enough."""
        table = _TABLES[kind].table
        ends = [each for each in (self.wanted.until, self.before and self.before.at) if each is not None]
        where, values = ("WHERE at < ?", (min(ends),)) if ends else ("", ())
        row = self.connection.execute(
            f"SELECT at FROM {table} {where} ORDER BY at DESC LIMIT 1 OFFSET {MAX_LOOKED_AT}", values
        ).fetchone()
        return None if row is None else float(row[0])

    def _conditions(self, kind: int) -> Iterator[tuple[str, object]]:
        table, wanted = _TABLES[kind].table, self.wanted
        if kind == 0:
            yield from conditions_of(wanted)
            # Of the gateway's own tools: what the owner looks up is no activity of clients.
            yield "NOT (server = '' AND accesses.client = ?)", OWNER.shown
        else:
            yield f"+{table}.config = ?", wanted.config
            limits = {
                "client =": wanted.client,
                "program =": wanted.program,
                "at >=": wanted.since,
                "at <": wanted.until,
            }
            for limit, value in limits.items():
                if value is not None:
                    yield f"{table}.{limit} ?", value
            if wanted.text is not None:
                text = "query" if kind == 1 else "lists.mode || ' ' || lists.client"
                yield f"{text} LIKE ? ESCAPE '\\'", like(wanted.text)
        if self.part is FeedPart.MISSED:
            yield "NOT EXISTS (SELECT 1 FROM accesses WHERE search = searches.key)", None
        for place, sign in ((self.before, "<"), (self.after, ">")):
            if place is not None:
                yield from _beyond(table, kind, place, sign)


def _beyond(table: str, kind: int, place: FeedPlace, sign: str) -> Iterator[tuple[str, object]]:
    """Yield the conditions for records of one kind that come before or after a place."""
    if kind == place.kind:
        # The first condition is that of the index.
        yield f"{table}.at {sign}= ?", place.at
        yield f"({table}.at, {table}.id) {sign} ({place.at!r}, {place.id})", None
    else:
        is_equal_beyond = kind < place.kind if sign == "<" else kind > place.kind
        yield f"{table}.at {sign}{'=' if is_equal_beyond else ''} ?", place.at


def _search(row: tuple[Any, ...]) -> SearchEntry:
    number, at, client, program, mode, query, hits, calls = row
    named = [f"{server}:{tool}" for server, tool in json.loads(hits)]
    return SearchEntry(number, at, client, program, mode, query, len(named), tuple(named[:SHOWN_HITS]), calls)


_ENTRIES = (access_of, _search, lambda row: GivenList(*row))
