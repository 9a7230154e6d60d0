"""The feed of what clients did: filters, pages that together have everything once, and figures of hours and servers."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.activity.accesses import AccessFilter, RecordedAccess, read_gaps
from pml_gateway.activity.database import activity_tables
from pml_gateway.activity.feed import FeedPart, FeedPlace, GivenList, SearchEntry, read_feed
from pml_gateway.activity.figures import DAY, read_figures, read_hours, read_server_figures
from pml_gateway.activity.history import read_queries
from pml_gateway.activity.recorder import AccessRow, ListRow, Recorder, Row, SearchRow

EVERYTHING = AccessFilter("test")
NINE = datetime(2026, 11, 30, 9).timestamp()


def use(at: float, target: str = "git__push", **fields: Any) -> AccessRow:
    server, _, name = target.partition("__")
    usual = {"config": "test", "client": "cursor", "code": "OK", "mode": "hybrid", "counts": True}
    given: dict[str, Any] = usual | fields
    return AccessRow(
        at=at, method="tools/call", server=server, tool=name, target=target, effect="write",
        refused=given.pop("code_refused", False), **given,
    )  # fmt: skip


def search(at: float, query: str, key: int, hits: tuple[tuple[str, str], ...] = (("git", "push"),)) -> SearchRow:
    return SearchRow(at, "test", key, "cursor", "hybrid", "custom", query, hits)


def given_list(at: float) -> ListRow:
    return ListRow(at, "test", "cursor", "hybrid", "custom", b'[{"name":"a"}]', lambda: b'[{"name":"a"},{"name":"b"}]')


def recorded(folder: Path, *rows: Row) -> Path:
    path = folder / "activity.db"
    with closing(Recorder(path)) as recorder:
        for row in rows:
            recorder.add(lambda row=row: row)  # type: ignore[misc]
        assert recorder.flush()
    return path


def test_pages_of_the_feed_have_every_record_once_also_of_the_same_moment(tmp_path: Path) -> None:
    times = [NINE + number // 3 for number in range(30)]
    rows = [make(at) for at in times for make in (use, given_list, lambda at: search(at, "words", int(at)))]
    path = recorded(tmp_path, *rows)
    down, before = [], None
    while True:
        page = read_feed(path, EVERYTHING, limit=7, before=before)
        down += [(type(each), each.id) for each in page.entries]
        if not page.older:
            break
        before = FeedPlace.parsed(page.older)
    assert len(down) == len(set(down)) == len(rows)
    up, after = [], FeedPlace(NINE - 1)
    while True:
        page = read_feed(path, EVERYTHING, limit=7, after=after)
        up += [(type(each), each.id) for each in reversed(page.entries)]
        if not page.newer:
            break
        found = FeedPlace.parsed(page.newer)
        assert found is not None
        after = found
    assert up == down[::-1]


def test_each_filter_leaves_what_it_names(tmp_path: Path) -> None:
    path = recorded(
        tmp_path,
        use(NINE, rule="rules[0]", search=5, rank=1),
        use(NINE + 60, "mail__send", code="TIMEOUT", arguments='{"to":"Ada"}', kept="masked"),
        use(NINE + 3600, client="claude"),
        search(NINE - 5, "push a branch", 5),
        search(NINE - 4, "100% sure", 6),
        given_list(NINE - 3),
    )

    def shown(part: FeedPart = FeedPart.ALL, **limits: Any) -> list[str]:
        found = read_feed(path, replace(EVERYTHING, **limits), part).entries
        return [
            each.target if isinstance(each, RecordedAccess) else each.query if isinstance(each, SearchEntry) else "list"
            for each in found
        ]

    assert shown() == ["git__push", "mail__send", "git__push", "list", "100% sure", "push a branch"]
    assert shown(client="claude") == ["git__push"]
    assert shown(server="mail") == shown(outcome="failed") == shown(tool="ma*") == ["mail__send"]
    assert shown(since=NINE, until=NINE + 3600) == ["mail__send", "git__push"]
    assert shown(text="ADA") == ["mail__send"]
    assert shown(text="100%") == ["100% sure"]
    assert shown(text="rules[0]") == ["git__push"]
    assert shown(FeedPart.MISSED) == ["100% sure"]
    assert shown(FeedPart.SEARCHES) == ["100% sure", "push a branch"]
    assert shown(FeedPart.LISTS) == ["list"]
    assert shown(FeedPart.CALLS, text="100") == []
    searches = {each.query: each for each in read_feed(path, EVERYTHING).entries if isinstance(each, SearchEntry)}
    assert searches["push a branch"].calls == 1
    assert searches["push a branch"].hits == ("git:push",)


def test_a_text_that_is_not_among_the_latest_records_is_found_on_a_further_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pml_gateway.activity.feed.MAX_LOOKED_AT", 10)
    path = recorded(tmp_path, use(NINE, "mail__send"), *(use(NINE + number) for number in range(1, 25)))
    page = read_feed(path, replace(EVERYTHING, text="mail"))
    pages = 1
    while not page.entries:
        assert page.looked_back_to is not None
        page, pages = read_feed(path, replace(EVERYTHING, text="mail"), before=FeedPlace.parsed(page.older)), pages + 1
    assert [each.at for each in page.entries] == [NINE]
    assert pages == 3
    assert not page.older


@pytest.mark.parametrize("text", ["", "x", "1_2", "nan_0_0", "inf_0_0", "1_x_0", "1_0_0_0"])
def test_a_text_that_is_no_place_is_none(text: str) -> None:
    assert FeedPlace.parsed(text) is None


def test_figures_count_the_last_hour_and_day_and_what_models_read_today(tmp_path: Path) -> None:
    path = recorded(
        tmp_path,
        use(NINE - 60, answered=400),
        use(NINE - 50, code="TIMEOUT"),
        use(NINE - 40, code="NOT_FOUND", code_refused=True, counts=False),
        use(NINE - 30, how="workflow", answered=4000),
        use(NINE - 2 * 3600, client="claude", mode="meta_only"),
        use(NINE - DAY - 1),
        given_list(NINE - 20),
    )
    found = read_figures(path, "test", NINE)
    assert (found.hour.calls, found.hour.failed, found.hour.refused) == (3, 1, 1)
    assert (found.day.calls, found.day.failed) == (4, 1)
    cursor = next(row for row in found.today if row.client == "cursor")
    assert (cursor.calls, cursor.lists, cursor.answered) == (3, 1, 100)
    assert 0 < cursor.listed < cursor.everything
    assert {(row.client, row.mode) for row in found.today} == {("cursor", "hybrid"), ("claude", "meta_only")}


def test_a_server_has_its_percentiles_and_its_last_fault(tmp_path: Path) -> None:
    calls = [use(NINE - number, seconds=number / 100) for number in range(1, 101)]
    fault = use(NINE - 200, "git__pull", code="TIMEOUT", seconds=0.5)
    path = recorded(tmp_path, *calls, fault, use(NINE - 2 * DAY, "old__x"))
    figures = read_server_figures(path, "test", NINE)
    assert [*figures] == ["git"]
    git = figures["git"]
    assert (git.calls, git.failed, git.p50, git.p95) == (101, 1, 0.5, 0.95)
    assert git.last_fault is not None
    assert (git.last_fault.tool, git.last_fault.code) == ("git__pull", "TIMEOUT")


def test_the_hours_of_a_day_have_their_counts(tmp_path: Path) -> None:
    path = recorded(tmp_path, use(NINE), use(NINE + 3599, code="TIMEOUT"), use(NINE + 3600), use(NINE - DAY))
    hours = read_hours(path, EVERYTHING, datetime.fromtimestamp(NINE).date())
    assert {datetime.fromtimestamp(each.at).hour: (each.accesses, each.failed) for each in hours if each.accesses} == {
        9: (2, 1),
        10: (1, 0),
    }


def test_a_list_is_told_with_its_size(tmp_path: Path) -> None:
    path = recorded(tmp_path, given_list(NINE))
    [given] = read_feed(path, EVERYTHING, FeedPart.LISTS).entries
    assert isinstance(given, GivenList)
    assert (given.tools, given.tokens) == (1, None)
    read_figures(path, "test", NINE)
    [counted] = read_feed(path, EVERYTHING, FeedPart.LISTS).entries
    assert isinstance(counted, GivenList)
    assert counted.tokens is not None


def test_a_file_that_was_set_aside_is_named_among_the_gaps_until_it_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "activity.db"
    path.write_bytes(b"no database" * 100)
    assert read_feed(path, EVERYTHING).entries == ()
    [(_, reason)] = read_gaps(path)
    aside = path.with_name("activity.db.damaged")
    assert str(aside) in reason
    aside.unlink()
    assert read_gaps(path) == []
    assert activity_tables(path).exist() is False


def test_the_latest_searches_are_read_without_any_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recorded(tmp_path, use(NINE), *(search(NINE + each, f"words {each}", each) for each in range(4)))
    monkeypatch.setattr("pml_gateway.activity.history.MAX_LOOKED_AT", 3)
    assert read_queries(path, "test") == ["words 1", "words 2", "words 3"]
    assert read_queries(path, "another") == []
