"""The tables of `run_models`: a row for each way, a row for each task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.agents.intervals import Interval, bootstrap, wilson
from benchmarks.agents.transcripts import Transcript
from benchmarks.agents.ways import LISTED


def way_rows(transcripts: Sequence[Transcript]) -> list[dict[str, Any]]:
    """Success with Wilson's interval; means a task, and the share of what listing reads, with bootstrapped ones.

    Tasks of which the model gave out do not count. The share is that of the tasks that both ways have.
    """
    return [_way_row(way, transcripts) for way in dict.fromkeys(each.way for each in transcripts)]


def _way_row(way: str, transcripts: Sequence[Transcript]) -> dict[str, Any]:
    counted = _by_task(transcripts, way)
    runs = [each for group in counted.values() for each in group]
    done = sum(each.is_done for each in runs)
    return {
        "way": way,
        "done": f"{done} of {len(runs)}",
        "share": _with_interval(done / max(1, len(runs)), wilson(done, len(runs)), ".2f"),
        "gave out": sum(bool(each.error) for each in transcripts if each.way == way),
        "list": round(_mean([each.listed for each in runs])),
        "requests a task": _mean_with_interval(counted, "requests", ".1f"),
        "calls": _mean_with_interval(counted, "calls", ".1f"),
        "read, over all requests": _mean_with_interval(counted, "read", ",.0f"),
        "read and written, once": _mean_with_interval(counted, "once", ",.0f"),
        "written": _mean_with_interval(counted, "written", ",.0f"),
        "read, % of listed": _share_of_listed(counted, _by_task(transcripts, LISTED)),
    }


def task_rows(transcripts: Sequence[Transcript]) -> list[dict[str, Any]]:
    """Of each task under each way: runs that were done, mean requests, mean tokens read."""
    ways = {way: _by_task(transcripts, way) for way in dict.fromkeys(each.way for each in transcripts)}
    return [
        {"task": task, **{way: _cell(groups.get(task, [])) for way, groups in ways.items()}}
        for task in dict.fromkeys(each.task for each in transcripts)
    ]


def _cell(runs: Sequence[Transcript]) -> str:
    if not runs:
        return "not run"
    done = sum(each.is_done for each in runs)
    requests, read = _mean([each.requests for each in runs]), _mean([each.read for each in runs])
    return f"{done}/{len(runs)}, {requests:.1f}, {read / 1000:.1f}k"


def _by_task(transcripts: Sequence[Transcript], way: str) -> dict[str, list[Transcript]]:
    groups: dict[str, list[Transcript]] = {}
    for each in transcripts:
        if each.way == way and not each.error:
            groups.setdefault(each.task, []).append(each)
    return groups


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _means(groups: dict[str, list[Transcript]], figure: str) -> list[float]:
    return [_mean([getattr(each, figure) for each in group]) for group in groups.values()]


def _mean_with_interval(groups: dict[str, list[Transcript]], figure: str, form: str) -> str:
    means = _means(groups, figure)
    if not means:
        return "-"
    interval = bootstrap(len(means), lambda drawn: _mean([means[at] for at in drawn]))
    return _with_interval(_mean(means), interval, form)


def _share_of_listed(groups: dict[str, list[Transcript]], listed: dict[str, list[Transcript]]) -> str:
    tasks = [task for task in groups if task in listed]
    if not tasks:
        return "-"
    ours = _means({task: groups[task] for task in tasks}, "read")
    theirs = _means({task: listed[task] for task in tasks}, "read")

    def share(drawn: Sequence[int]) -> float:
        return 100 * sum(ours[at] for at in drawn) / sum(theirs[at] for at in drawn)

    return _with_interval(share(range(len(tasks))), bootstrap(len(tasks), share), ".1f")


def _with_interval(value: float, interval: Interval, form: str) -> str:
    low, high = (format(each, form) for each in interval)
    return f"{value:{form}} ({low} to {high})"
