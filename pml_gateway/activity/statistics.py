"""Figures of recorded usage: per day, per tool, how calls went, what searches found and lists saved."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypedDict

from pml_gateway.activity.history import History, RecordedCall, ToolKey

BARS = "▁▂▃▄▅▆▇█"


class Percentiles(TypedDict):
    """Seconds of calls: half and 95 % of them were faster."""

    p50: float
    p95: float


class DayCalls(TypedDict):
    """Number of calls on one day."""

    day: str
    calls: int


class ToolCalls(Percentiles):
    """Calls of one tool; `name` is its name now, None if it is gone."""

    tool: str
    name: str | None
    calls: int
    success_rate: float


class Figures(TypedDict):
    """Recorded usage; figures of searches and lists are None for one server, rates where there is nothing."""

    calls: int
    success_rate: float | None
    latency_seconds: Percentiles | None
    errors: dict[str, int]
    how: dict[str, int]
    programs: dict[str, int]
    days: list[DayCalls]
    tools: list[ToolCalls]
    never_used: list[str]
    searches: int | None
    missed_searches: int | None
    calls_led_by_search: int
    lists: int | None
    listed_tokens: int | None
    saved_tokens: int | None


def statistics(
    history: History, names: Mapping[ToolKey, str], *, now: float, days: int, of_all: bool = True
) -> Figures:
    """Return the figures of a history over the last `days` days; `names` are those of the tools there are now."""
    calls, searches, lists = history.calls, history.searches, history.lists
    by_tool: dict[ToolKey, list[RecordedCall]] = defaultdict(list)
    for call in calls:
        by_tool[call.tool].append(call)
    return {
        "calls": len(calls),
        "success_rate": success_rate(calls),
        "latency_seconds": _latency(calls) if calls else None,
        "errors": _counted(call.code for call in calls if not call.succeeded),
        "how": _counted(call.how for call in calls),
        "programs": _counted(call.program for call in calls),
        "days": _days(calls, now, days),
        "tools": [
            {
                "tool": ":".join(key),
                "name": names.get(key),
                "calls": len(its),
                "success_rate": success_rate(its) or 0.0,
                **_latency(its),
            }
            for key, its in sorted(by_tool.items(), key=lambda each: (-len(each[1]), each[0]))
        ],
        "never_used": [names[key] for key in sorted(names) if key not in by_tool],
        "searches": len(searches) if of_all else None,
        "missed_searches": sum(search.missed for search in searches) if of_all else None,
        "calls_led_by_search": sum(call.query is not None for call in calls),
        "lists": lists.count if of_all else None,
        "listed_tokens": lists.tokens if of_all else None,
        "saved_tokens": max(lists.full_tokens - lists.tokens, 0) if of_all else None,
    }


def success_rate(calls: Sequence[RecordedCall]) -> float | None:
    """Return the share of calls that succeeded."""
    return sum(call.succeeded for call in calls) / len(calls) if calls else None


def sparkline(counts: Sequence[int]) -> str:
    """One bar for each count; a blank where there was none."""
    top = max(counts, default=0)
    return "".join(" " if not count else BARS[math.ceil(count / top * len(BARS)) - 1] for count in counts)


def _latency(calls: Sequence[RecordedCall]) -> Percentiles:
    seconds = sorted(call.seconds for call in calls)
    p50, p95 = (seconds[math.ceil(share * len(seconds)) - 1] for share in (0.5, 0.95))
    return {"p50": p50, "p95": p95}


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items(), key=lambda item: (-item[1], item[0])))


def _days(calls: Sequence[RecordedCall], now: float, days: int) -> list[DayCalls]:
    today = datetime.fromtimestamp(now).date()
    counts = Counter(datetime.fromtimestamp(call.at).date() for call in calls)
    wanted = (today - timedelta(days=before) for before in range(days - 1, -1, -1))
    return [{"day": day.isoformat(), "calls": counts[day]} for day in wanted]
