"""What the chaos run demands of a gateway, and that it would notice."""

from __future__ import annotations

import anyio
import pytest

from benchmarks.chaos.answers import ACT, LOOK, proof
from benchmarks.chaos.faults import disturbances
from benchmarks.chaos.load import RESULT, UNTYPED, WRONG, Call, judge
from benchmarks.chaos.run import Plan, chaos
from benchmarks.chaos.verdict import Check, check_calls, check_growth, check_journals, check_memory
from benchmarks.figures import Figures

LIMIT_SECONDS = 400


def made(nonce: str, outcome: str = RESULT, *, tool: str = ACT, seconds: float = 0.1, executed: str = "") -> Call:
    return Call(nonce, "u00", tool, "direct", "2025-11-25", "fine", seconds, outcome, executed, "")


def broken(checks: list[Check]) -> list[str]:
    return [check.what for check in checks if not check.holds]


def text(value: str, **extra: object) -> dict[str, object]:
    return {"content": [{"type": "text", "text": value}], **extra}


def test_the_same_seed_gives_the_same_faults_and_another_gives_others() -> None:
    first = disturbances(1, ["a", "b"], calls=500, every=20)
    assert first == disturbances(1, ["a", "b"], calls=500, every=20)
    assert first != disturbances(2, ["a", "b"], calls=500, every=20)
    assert len(first) == 24


def test_an_answer_is_right_only_with_the_proof_of_its_own_call() -> None:
    right = proof("u00", ACT, "1")
    assert judge(text(right), right, fails=False)[0] == RESULT
    assert judge(text(right, isError=True), right, fails=True)[0] == RESULT
    assert judge(text(proof("u01", ACT, "1")), right, fails=False)[0] == WRONG
    assert judge(text(right, isError=True), right, fails=False)[0] == WRONG
    assert judge({"content": []}, right, fails=False)[0] == WRONG


def test_an_error_counts_only_with_a_published_code() -> None:
    def error(code: str) -> dict[str, object]:
        body = {"error": {"code": code, "message": "m", "details": {"executed": "no"}}}
        return text("m", isError=True, structuredContent=body)

    assert judge(error("TIMEOUT"), "x", fails=False) == ("TIMEOUT", "no", "m")
    assert judge(error("INTERNAL"), "x", fails=False)[0] == UNTYPED
    assert judge(error("WHATEVER"), "x", fails=False)[0] == UNTYPED


def test_lost_late_wrong_and_untyped_calls_are_noticed() -> None:
    good = [made(str(number)) for number in range(10)]
    assert not broken(check_calls(good, 10, limit_seconds=5, least_results=0.5))
    assert broken(check_calls(good, 11, limit_seconds=5, least_results=0.5)) == ["every call ended"]
    assert broken(check_calls([*good, made("x", seconds=6)], 11, limit_seconds=5, least_results=0.5)) == [
        "every call ended before its deadline"
    ]
    assert broken(check_calls([*good, made("x", WRONG)], 11, limit_seconds=5, least_results=0.5)) == [
        "no answer is wrong"
    ]
    assert broken(check_calls([*good, made("x", UNTYPED)], 11, limit_seconds=5, least_results=0.5)) == [
        "every failure is a typed error"
    ]
    assert broken(check_calls([made("x", "TIMEOUT")], 1, limit_seconds=5, least_results=0.5)) == [
        "enough calls have a result"
    ]


def test_a_second_execution_and_a_wrong_word_about_one_are_noticed() -> None:
    assert not broken(check_journals([made("1"), made("2", tool=LOOK)], {"1": 1, "2": 2}))
    assert broken(check_journals([made("1")], {"1": 2})) == ["no call was executed twice"]
    assert broken(check_journals([made("1")], {})) == ["every result was executed"]
    denied = made("1", "UPSTREAM_UNAVAILABLE", executed="no")
    assert broken(check_journals([denied], {"1": 1})) == ["nothing was executed that is said not to be"]


def test_more_descriptors_children_and_memory_than_before_are_noticed() -> None:
    before = Figures(rss_mib=100, descriptors=30, threads=10, children=4, zombies=0, tasks=50)
    more = Figures(rss_mib=111, descriptors=36, threads=10, children=5, zombies=0, tasks=50)
    assert check_growth(before, before, slack=5).holds
    assert check_growth(before, more, slack=5).found == "descriptors: 30 became 36; children: 4 became 5"
    assert not check_memory(before, more, limit=0.1).holds


@pytest.mark.heavy
@pytest.mark.timeout(LIMIT_SECONDS + 60)  # the limit of the run comes first, and its report says more
@pytest.mark.anyio
async def test_a_short_run_keeps_every_promise() -> None:
    # How many calls end in time depends on what else the machine does.
    plan = Plan(
        calls=800,
        upstreams=5,
        clients=4,
        every=30,
        call_timeout=2,
        late_seconds=None,
        least_results=0.1,
        memory_growth=None,
        seed=2,
    )
    with anyio.fail_after(LIMIT_SECONDS):
        report = await chaos(plan)
    assert not broken(report.checks), [check.row() for check in report.checks if not check.holds]
    assert report.counts["disturbances"], "something happened"
