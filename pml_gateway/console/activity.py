"""The pages of what clients did: calls, searches and lists with filters and times, and one call's whole way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date, datetime, timedelta
from functools import partial

import anyio.to_thread

from pml_gateway.activity.accesses import OUTCOMES, AccessFilter, RecordedAccess, read_access, read_gaps
from pml_gateway.activity.feed import FeedEntry, FeedPart, FeedPlace, GivenList, SearchEntry, read_feed
from pml_gateway.activity.figures import HOUR, HourFigures, read_hours
from pml_gateway.console.request import PAGE_ROWS, PageRequest
from pml_gateway.console.workflow_graph import StepState, graph_of
from pml_gateway.errors import GatewayError
from pml_gateway.types import JsonObject

MAX_DIGITS = 18
"""Digits of the number of a record: more do not fit into the database."""

LEVELS = 8
"""Heights of the bar of an hour."""

_FILTERS = ("client", "program", "tool", "server", "outcome", "text")


async def activity(request: PageRequest) -> JsonObject:
    """Return what clients did, the latest first; how much in each hour of the day; and when records may be missing."""
    source, path = request.source, request.source.paths.activity_file
    asked = {name: request.text(name) for name in (*_FILTERS, "show", "from", "until")}
    part = asked["show"] or FeedPart.ALL.value
    if part not in [*FeedPart]:
        raise GatewayError(f"unknown part {part!r}", hint=f"known are {', '.join(FeedPart)}")
    since, until = _time(asked["from"]), _time(asked["until"])
    client, program, tool, server, outcome, text = (asked[name] or None for name in _FILTERS)
    wanted = AccessFilter(
        source.identity, client, tool, server, outcome, since, until=until, text=text, program=program
    )
    before, after = (FeedPlace.parsed(request.text(name)) for name in ("before", "after"))
    feed = await anyio.to_thread.run_sync(
        partial(read_feed, path, wanted, FeedPart(part), PAGE_ROWS, before=before, after=after)
    )
    shown = until - 1 if until is not None else since if since is not None else time.time()
    day = datetime.fromtimestamp(shown).date()
    hours = await anyio.to_thread.run_sync(
        read_hours, path, AccessFilter(source.identity, client, program=program), day
    )
    gaps = await anyio.to_thread.run_sync(read_gaps, path, feed.entries[-1].at if feed.entries else since)
    return {
        "asked": asked,
        "filters": {name: value for name, value in asked.items() if value},
        "outcomes": OUTCOMES,
        "parts": _PARTS,
        "rows": [{"kind": _KINDS[type(each)], **asdict(each)} for each in _without_repeats(feed.entries)],
        "older": feed.older,
        "newer": feed.newer,
        "looked_back_to": feed.looked_back_to,
        "day": _day(day, hours, since, until),
        "gaps": gaps,
    }


def _without_repeats(entries: Sequence[FeedEntry]) -> list[FeedEntry]:
    """Leave out uses of the gateway's own tools that another entry tells: the call passed on, the search made."""
    told = {
        (each.client, each.request, each.code)
        for each in entries
        if isinstance(each, RecordedAccess) and each.how == "call_tool"
    }
    searching = {each.client for each in entries if isinstance(each, SearchEntry)}

    def is_told(each: RecordedAccess) -> bool:
        match each.target:
            case "call_tool":
                return (each.client, each.request, each.code) in told
            case "search_tools":
                return each.code == "OK" and each.client in searching
            case _:
                return False

    return [each for each in entries if not (isinstance(each, RecordedAccess) and not each.server and is_told(each))]


_KINDS = {RecordedAccess: "call", SearchEntry: "search", GivenList: "list"}

_PARTS = {
    FeedPart.ALL.value: "everything",
    FeedPart.CALLS.value: "calls",
    FeedPart.SEARCHES.value: "searches",
    FeedPart.MISSED.value: "searches that led to no call",
    FeedPart.LISTS.value: "lists",
}


def _time(text: str) -> float | None:
    """Return the moment that is written as local time.

    Raises:
        GatewayError: it is none.
    """
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise GatewayError(f"invalid time {text!r}", hint="write it as 2026-11-30T09:00") from None


def _written(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%dT%H:%M")


def _day(day: date, hours: Sequence[HourFigures], since: float | None, until: float | None) -> JsonObject:
    """Return a day with its hours, each with the height of its bar and the times between which it lies."""
    most = max((each.accesses for each in hours), default=0)
    before, after = (datetime.combine(day + timedelta(step), datetime.min.time()) for step in (-1, 1))
    return {
        "date": day.isoformat(),
        "total": sum(each.accesses for each in hours),
        "before": {
            "date": before.date().isoformat(),
            "from": _written(before.timestamp()),
            "until": _written(hours[0].at),
        },
        "after": None
        if after.timestamp() > time.time()
        else {
            "date": after.date().isoformat(),
            "from": _written(after.timestamp()),
            "until": _written((after + timedelta(1)).timestamp()),
        },
        "from": _written(hours[0].at),
        "until": _written(after.timestamp()),
        "hours": [
            {
                **asdict(each),
                "hour": datetime.fromtimestamp(each.at).strftime("%H"),
                "from": _written(each.at),
                "until": _written(each.at + HOUR),
                "level": -(-each.accesses * LEVELS // most) if most else 0,
                "is_chosen": since == each.at and until == each.at + HOUR,
            }
            for each in hours
        ],
    }


async def access(request: PageRequest) -> JsonObject:
    """Return one access with its whole way, and everything of its request on one line of time."""
    given = request.text("id")
    number = int(given) if given.isascii() and given.isdecimal() and len(given) < MAX_DIGITS else 0
    way = await anyio.to_thread.run_sync(read_access, request.source.paths.activity_file, number)
    if way is None:
        raise GatewayError(f"no record {given!r}", hint="it was forgotten, or never there")
    together = [way.access, *way.request]
    return {
        "access": way.access,
        "steps": _steps(together) if way.request else [],
        "graph": await anyio.to_thread.run_sync(_graph, request, together),
    }


def _graph(request: PageRequest, accesses: Sequence[RecordedAccess]) -> list[list[StepState]]:
    try:
        return graph_of(accesses, request.source.load().settings)
    except GatewayError:
        # Without a readable configuration, no workflow is known.
        return []


def _steps(accesses: Sequence[RecordedAccess]) -> list[JsonObject]:
    """Return the accesses of one request as they began, with the part of its time that each took, in percent."""
    began = min(each.at for each in accesses)
    whole = max(max(each.at + each.seconds for each in accesses) - began, 1e-6)
    return [
        {
            **asdict(each),
            "begins": round(100 * (each.at - began) / whole, 2),
            "takes": max(round(100 * each.seconds / whole, 2), 0.5),
            "is_inner": each.how != "direct",
        }
        for each in sorted(accesses, key=lambda each: (each.at, each.how != "direct", each.id))
    ]
