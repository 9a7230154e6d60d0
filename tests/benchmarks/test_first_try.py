"""What calls as models write them come to, and that the judge of them would notice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import anyio
import pytest

from benchmarks.first_try.calls import written
from benchmarks.first_try.second_try import second_try
from benchmarks.first_try.written import Written
from benchmarks.run_first_try import Tried, error_of, run


def test_there_are_enough_calls_of_most_kinds() -> None:
    counts = Counter(call.kind for call in written())
    assert counts.total() >= 200
    assert [kind for kind, count in counts.items() if count < 15] == ["two readings"]


def test_a_call_that_must_be_refused_is_wrong_where_it_is_done() -> None:
    call = Written("any", "call_tool", {}, "call_tool", {}, "be refused")
    assert Tried(call, "done", None, {}).is_wrong
    assert Tried(call, "refused", "wrong", {}).is_wrong
    assert not Tried(call, "refused", "done", {}).is_wrong


def test_an_error_is_found_in_a_slot() -> None:
    slots = [{"id": "0", "ok": True}, {"id": "1", "ok": False, "error": {"code": "NOT_FOUND", "hint": "h"}}]
    assert error_of({"structuredContent": {"slots": slots}}) == {"code": "NOT_FOUND", "hint": "h"}
    assert error_of({"structuredContent": {"issues": []}}) is None


@pytest.mark.parametrize(
    ("sent", "error", "again"),
    [
        ({"nmae": "a"}, {"details": {"corrected": {"name": "a"}}}, {"name": "a"}),
        ({"name": "lst"}, {"code": "NOT_FOUND", "details": {"closest": ["list"]}}, {"name": "list"}),
        (
            {"name": "list", "arguments": {"status": "closed"}},
            {
                "hint": 'expected list(state?: "open" | "closed")',
                "details": {
                    "signature": "list()",
                    "errors": [{"path": "/status", "message": "no", "hint": 'write "state" instead of "status"'}],
                },
            },
            {"name": "list", "arguments": {"state": "closed"}},
        ),
        (
            {"name": "list", "arguments": {}},
            {"details": {"signature": "s", "errors": [{"path": "", "message": "'state' is a required property"}]}},
            {"name": "list", "arguments": {"state": "closed"}},
        ),
        ({"name": "list"}, {"message": "no", "hint": "think again"}, None),
    ],
)
def test_the_second_try_does_what_the_error_says(
    sent: dict[str, Any], error: dict[str, Any], again: dict[str, Any] | None
) -> None:
    meant = {"name": "list", "arguments": {"state": "closed"}}
    assert second_try(sent, {"message": "", "hint": "", **error}, meant) == again


@pytest.mark.slow
@pytest.mark.timeout(300)  # Twelve hundred calls.
def test_no_call_gives_what_was_not_meant_and_nearly_all_are_done_at_the_second_try() -> None:
    tried = anyio.run(run, None)
    assert [each.call for each in tried if each.is_wrong] == []
    clear = [each for each in tried if each.call.must == "be done"]
    assert sum(each.first == "done" for each in clear) >= 0.98 * len(clear)
    assert sum(each.is_done for each in tried) >= 0.99 * len(tried)
