"""Figures of recorded usage: per day, per tool, how calls went, what searches found and lists saved."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pml_gateway.usage.history import History, RecordedCall, ToolKey

BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of calls: half and 95 % of them were faster."""

    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Usage of one tool."""

    tool: ToolKey
    calls: int
    success_rate: float
    latency: Latency


@dataclass(frozen=True, slots=True)
class Statistics:
    """The figures; rates and latency are None where there is nothing to take them from."""

    calls: int
    success_rate: float | None
    latency: Latency | None
    errors: tuple[tuple[str, int], ...]
    how: tuple[tuple[str, int], ...]
    days: tuple[tuple[str, int], ...]
    tools: tuple[ToolUse, ...]
    never_used: tuple[ToolKey, ...]
    searches: int
    missed_searches: int
    led_by_search: int
    lists: int
    listed_tokens: int
    saved_tokens: int


def statistics(history: History, known: Collection[ToolKey], *, now: float, days: int) -> Statistics:
    """Return the figures of a history over the last `days` days; `known` are the tools there are now."""
    calls = history.calls
    by_tool: dict[ToolKey, list[RecordedCall]] = defaultdict(list)
    for call in calls:
        by_tool[call.tool].append(call)
    tools = [ToolUse(key, len(its), success_rate(its) or 0.0, _latency(its)) for key, its in by_tool.items()]
    lists = history.lists
    return Statistics(
        calls=len(calls),
        success_rate=success_rate(calls),
        latency=_latency(calls) if calls else None,
        errors=_counted(call.code for call in calls if not call.succeeded),
        how=_counted(call.how for call in calls),
        days=_days(calls, now, days),
        tools=tuple(sorted(tools, key=lambda use: (-use.calls, use.tool))),
        never_used=tuple(sorted(key for key in known if key not in by_tool)),
        searches=len(history.searches),
        missed_searches=sum(search.missed for search in history.searches),
        led_by_search=sum(call.query is not None for call in calls),
        lists=lists.count,
        listed_tokens=lists.tokens,
        saved_tokens=max(lists.full_tokens - lists.tokens, 0),
    )


def success_rate(calls: Sequence[RecordedCall]) -> float | None:
    """Return the share of calls that succeeded."""
    return sum(call.succeeded for call in calls) / len(calls) if calls else None


def sparkline(counts: Sequence[int]) -> str:
    """One bar for each count; a blank where there was none."""
    top = max(counts, default=0)
    return "".join(" " if not count else BARS[math.ceil(count / top * len(BARS)) - 1] for count in counts)


def _latency(calls: Sequence[RecordedCall]) -> Latency:
    seconds = sorted(call.seconds for call in calls)
    p50, p95 = (seconds[math.ceil(share * len(seconds)) - 1] for share in (0.5, 0.95))
    return Latency(p50, p95)


def _counted(values: Iterable[str]) -> tuple[tuple[str, int], ...]:
    counts = Counter(values)
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _days(calls: Sequence[RecordedCall], now: float, days: int) -> tuple[tuple[str, int], ...]:
    today = datetime.fromtimestamp(now).date()
    counts = Counter(datetime.fromtimestamp(call.at).date() for call in calls)
    wanted = (today - timedelta(days=before) for before in range(days - 1, -1, -1))
    return tuple((day.isoformat(), counts[day]) for day in wanted)
