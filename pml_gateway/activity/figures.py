"""Figures of the last hour and day, counted in the database: calls, faults, what lists and answers cost, servers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from pathlib import Path

from pml_gateway.activity.accesses import AccessFilter, conditions_of
from pml_gateway.activity.database import activity_tables
from pml_gateway.activity.history import INSIDE, count_bodies
from pml_gateway.storage.tables import Connection

HOUR, DAY = 3600.0, 86_400.0

CHARACTERS_PER_TOKEN = 4
"""Characters of JSON for one token, about: answers are not kept, so that their tokens cannot be counted."""

_CALL = "counts AND how != ?"
_FAILED = "code NOT IN ('OK', 'INPUT_REQUIRED')"


@dataclass(frozen=True, slots=True)
class SpanFigures:
    """Calls of tools in a span of time: how many, how many of them failed, and how many others were refused."""

    calls: int = 0
    failed: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class ReadTokens:
    """Tokens that one client in one mode read since midnight; those of answers are estimated.

    `everything` is what its lists would have cost with everything listed.
    """

    client: str
    mode: str
    calls: int = 0
    lists: int = 0
    listed: int = 0
    everything: int = 0
    answered: int = 0


@dataclass(frozen=True, slots=True)
class ActivityFigures:
    """Figures of one configuration, with a row for each client and mode of today."""

    hour: SpanFigures = SpanFigures()
    day: SpanFigures = SpanFigures()
    today: tuple[ReadTokens, ...] = ()


def read_figures(path: Path, config: str, now: float) -> ActivityFigures:
    """Return the figures of this moment.

    Raises:
        TablesError: the database cannot be read.
    """
    midnight = datetime.combine(datetime.fromtimestamp(now), datetime.min.time()).timestamp()
    count_bodies(path)

    def ask(connection: Connection) -> ActivityFigures:
        # Within an answer of the gateway's own tools, those of servers are read once.
        rows = connection.execute(
            f"SELECT at >= ?, at >= ?, client, mode, total({_CALL}), total({_CALL} AND {_FAILED}), total(refused),"
            " total(iif(how = 'direct', answered, 0)) FROM accesses WHERE at >= ? AND config = ? GROUP BY 1, 2, 3, 4",
            (now - HOUR, midnight, INSIDE, INSIDE, now - DAY, config),
        ).fetchall()
        lists = _lists(connection, config, midnight)
        today: dict[tuple[str, str], ReadTokens] = dict(lists)
        for _, is_today, client, mode, calls, _, _, answered in rows:
            if is_today:
                known = today.get((client, mode), ReadTokens(client, mode))
                tokens = known.answered + math.ceil(answered / CHARACTERS_PER_TOKEN)
                today[client, mode] = replace(known, calls=known.calls + int(calls), answered=tokens)
        return ActivityFigures(
            _summed([row[4:7] for row in rows if row[0]]),
            _summed([row[4:7] for row in rows]),
            tuple(sorted(today.values(), key=lambda row: (-row.listed - row.answered, row.client, row.mode))),
        )

    return activity_tables(path).read(ask, ActivityFigures())


def _summed(rows: Sequence[tuple[float, float, float]]) -> SpanFigures:
    calls, failed, refused = (int(sum(column)) for column in zip(*rows, strict=True)) if rows else (0, 0, 0)
    return SpanFigures(calls, failed, refused)


def _lists(connection: Connection, config: str, midnight: float) -> Iterator[tuple[tuple[str, str], ReadTokens]]:
    """Yield what lists cost since midnight, by client and mode."""
    # Lists that are not counted are judged by the tokens per byte of the others.
    tokens = "coalesce({0}.tokens, {0}.bytes * (SELECT total(tokens) / total(bytes) FROM bodies WHERE tokens > 0), 0)"
    lists = connection.execute(
        f"SELECT client, mode, count(*), total({tokens.format('shown')}), total({tokens.format('whole')}) FROM lists"
        " JOIN bodies shown ON shown.digest = lists.digest JOIN bodies whole ON whole.digest = lists.full_digest"
        " WHERE at >= ? AND config = ? GROUP BY client, mode",
        (midnight, config),
    )
    for client, mode, count, listed, everything in lists:
        told = ReadTokens(client, mode, lists=count, listed=round(listed), everything=round(everything))
        yield (client, mode), told


@dataclass(frozen=True, slots=True)
class LastFault:
    """The latest call of a server that failed."""

    id: int
    at: float
    tool: str
    code: str


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """Calls of one server in the last day; half of them were faster than `p50` seconds, and 95 % than `p95`."""

    calls: int
    failed: int
    p50: float
    p95: float
    last_fault: LastFault | None


def read_server_figures(path: Path, config: str, now: float) -> dict[str, ServerFigures]:
    """Return the figures of each server that was called in the last day.

    Raises:
        TablesError: the database cannot be read.
    """

    def ask(connection: Connection) -> dict[str, ServerFigures]:
        seconds: dict[str, list[float]] = defaultdict(list)
        faults: dict[str, list[LastFault]] = defaultdict(list)
        rows = connection.execute(
            f"SELECT server, seconds, {_FAILED}, id, at, target, code FROM accesses"
            f" WHERE at >= ? AND config = ? AND {_CALL} ORDER BY at",
            (now - DAY, config, INSIDE),
        )
        for server, taken, failed, *fault in rows:
            seconds[server].append(taken)
            if failed:
                faults[server].append(LastFault(*fault))
        return {server: _of_server(taken, faults[server]) for server, taken in seconds.items()}

    return activity_tables(path).read(ask, {})


def _of_server(seconds: list[float], faults: Sequence[LastFault]) -> ServerFigures:
    seconds.sort()
    p50, p95 = (seconds[math.ceil(share * len(seconds)) - 1] for share in (0.5, 0.95))
    return ServerFigures(len(seconds), len(faults), p50, p95, faults[-1] if faults else None)


@dataclass(frozen=True, slots=True)
class HourFigures:
    """Everything recorded in one hour, which begins at `at`."""

    at: float
    accesses: int
    failed: int


def read_hours(path: Path, wanted: AccessFilter, day: date) -> list[HourFigures]:
    """Return the hours of a local day with the accesses that a filter leaves in each.

    Raises:
        TablesError: the database cannot be read.
    """
    begins, ends = (datetime.combine(each, datetime.min.time()).timestamp() for each in (day, day + timedelta(1)))
    conditions = [*conditions_of(replace(wanted, since=begins, until=ends))]
    where = " AND ".join(condition for condition, _ in conditions)
    values = [value for _, value in conditions if value is not None]
    rows = activity_tables(path).rows(
        f"SELECT CAST((at - ?) / {HOUR} AS INTEGER) AS hour, count(*), total({_FAILED}) FROM accesses"
        f" WHERE {where} GROUP BY hour",
        (begins, *values),
    )
    counted = {hour: (count, int(failed)) for hour, count, failed in rows}
    # There are 23 or 25 on the days on which the clocks change.
    return [
        HourFigures(begins + hour * HOUR, *counted.get(hour, (0, 0))) for hour in range(round((ends - begins) / HOUR))
    ]
