"""What was recorded becomes figures, and the decision whether a stage has shown that it works."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pml_gateway.activity.history import History, RecordedCall, RecordedLists, RecordedSearch
from pml_gateway.activity.recorder import AccessRow, SearchRow
from pml_gateway.activity.stages import StageProgress, read_progress, reasons_to_wait
from pml_gateway.activity.statistics import sparkline, statistics
from tests.activity.test_feed import recorded, use
from tests.activity.test_feed import search as search_row

DAY = 86400.0
NOW = 1_000 * DAY + DAY / 2
GOOD = StageProgress(calls=100, days=3, through_search=40, searches=10, missed=2, success=0.98, success_before=1.0)


def call(
    days_ago: float, name: str = "a", code: str = "OK", seconds: float = 0.1, query: str | None = None
) -> RecordedCall:
    return RecordedCall(
        NOW - days_ago * DAY, ("up", name), "local", code, seconds, "direct", "meta_only", None, query, None
    )


def search(days_ago: float, *, missed: bool) -> RecordedSearch:
    return RecordedSearch(NOW - days_ago * DAY, "local", "meta_only", "words", (("up", "a"),), missed)


def test_the_figures_of_calls_searches_and_lists() -> None:
    calls = (call(2), call(0, seconds=0.3, query="x"), call(0, code="TIMEOUT", seconds=9.0), call(0, "b"))
    history = History(calls, (search(0, missed=True), search(0, missed=False)), RecordedLists(2, 300, 1000))
    found = statistics(history, {("up", "a"): "up__a", ("up", "c"): "up__c"}, now=NOW, days=3)
    assert (found["calls"], found["success_rate"], found["errors"]) == (4, 0.75, {"TIMEOUT": 1})
    assert [day["calls"] for day in found["days"]] == [1, 0, 3]
    assert [(use["tool"], use["calls"], use["p50"], use["p95"]) for use in found["tools"]] == [
        ("up:a", 3, 0.3, 9.0),
        ("up:b", 1, 0.1, 0.1),
    ]
    assert found["never_used"] == ["up__c"]
    assert (found["searches"], found["missed_searches"], found["calls_led_by_search"]) == (2, 1, 1)
    assert (found["lists"], found["listed_tokens"], found["saved_tokens"]) == (2, 300, 700)


def test_nothing_recorded_has_no_rates() -> None:
    found = statistics(History(), {}, now=NOW, days=1)
    assert (found["calls"], found["success_rate"], found["latency_seconds"]) == (0, None, None)


def test_a_sparkline_shows_the_most_as_the_highest_bar() -> None:
    assert sparkline([0, 1, 4, 8]) == " ▁▄█"
    assert sparkline([]) == ""


def used(days_ago: float, code: str = "OK", key: int | None = None) -> AccessRow:
    return use(NOW - days_ago * DAY, code=code, search=key, client="local")


def asked(days_ago: float, key: int) -> SearchRow:
    return replace(search_row(NOW - days_ago * DAY, "words", key), client="local")


def test_a_stage_is_judged_from_its_beginning_against_what_was_before(tmp_path: Path) -> None:
    path = recorded(tmp_path, used(5), used(4, "TIMEOUT"), used(1, key=1), used(0), asked(5, 7), asked(1, 1))
    found = read_progress(path, "test", None, NOW - 2 * DAY, NOW)
    assert found == StageProgress(2, 2.0, 1, 1, 0, 1.0, 0.5)
    assert read_progress(path, "test", "local", NOW - 2 * DAY, NOW) == found
    assert read_progress(path, "test", "another", None, NOW) == StageProgress(0, 0.0, 0, 0, 0, None, None)
    assert read_progress(tmp_path / "none", "test", None, None, NOW) == StageProgress(0, 0.0, 0, 0, 0, None, None)


def test_the_search_that_led_to_the_first_recorded_call_counts(tmp_path: Path) -> None:
    path = recorded(tmp_path, used(1, key=1), used(0), asked(2, 1))
    assert read_progress(path, "test", None, None, NOW) == StageProgress(2, 2.0, 1, 1, 0, 1.0, None)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, None),
        ({"calls": 99}, "99 calls in this stage, at least 100 are advised"),
        ({"days": 2.5}, "2.5 days in this stage, at least 3 are advised"),
        ({"missed": 3}, "3 of 10 searches missed (30%), at most 20% are advised"),
        ({"success": 0.9}, "success fell from 100.0% to 90.0% in this stage"),
    ],
)
def test_it_is_time_to_move_on_when_every_criterion_holds(changed: dict[str, float], reason: str | None) -> None:
    found = reasons_to_wait(replace(GOOD, **changed))  # type: ignore[arg-type] # fields by name
    assert found == ([] if reason is None else [reason])
