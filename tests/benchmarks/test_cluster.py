"""What the benchmark of replicas demands, and that it would notice."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import pytest

from benchmarks.cluster.client import CONNECTION, RESULT, UNTYPED, Exchange, comparable, judge
from benchmarks.cluster.load import WRONG, Load, Turn
from benchmarks.cluster.rows import QUICK, RowReport, faults, mixed, redis_faults
from benchmarks.cluster.turns import Book
from benchmarks.cluster.verdict import Finding, answers, connection_errors, equal_answers, executions
from tests.support.skipping import unavailable

LIMIT_SECONDS = 400
"""Of a run that takes some two minutes on a machine with nothing else to do."""


def turn(outcome: str = RESULT, text: str = "") -> Turn:
    return Turn("00-1", "direct", "2026-07-28", outcome, text, 1.0, 2.0)


def exchange(outcome: str = RESULT, answer: str | None = "x", begun: float = 1.0) -> Exchange:
    return Exchange("00-1", "direct", "2026-07-28", outcome, "", begun, 1.0, "r0", answer)


def broken(findings: list[Finding]) -> list[str]:
    return [finding.what for finding in findings if not finding.holds]


def test_answers_are_compared_without_ids_and_times() -> None:
    one = {"structuredContent": {"ref": "ref_0a-XYZ_1", "expires_at": "2026-11-29T13:00:00Z", "seconds": 3, "kept": 1}}
    other = {"structuredContent": {"ref": "ref_77-abc", "expires_at": "2026-11-30T13:00:01Z", "seconds": 4, "kept": 1}}
    assert comparable(one) == comparable(other)
    assert comparable(one) != comparable({"structuredContent": {**other["structuredContent"], "kept": 2}})


def test_an_error_counts_only_with_a_published_code() -> None:
    def error(code: str) -> dict[str, object]:
        return {"result": {"isError": True, "structuredContent": {"error": {"code": code, "message": "m"}}}}

    assert judge(error("TIMEOUT"))[0] == "TIMEOUT"
    assert judge(error("INTERNAL"))[0] == UNTYPED
    assert judge({"result": {"isError": True, "content": []}})[0] == UNTYPED
    assert judge({"error": {"code": -32602, "message": "m"}})[0] == "-32602"
    assert judge({"error": {"code": -32603, "message": "m"}})[0] == UNTYPED
    assert judge({"result": {"content": []}})[0] == RESULT


def test_lost_doubled_and_denied_calls_that_were_made_are_noticed() -> None:
    load = Load(book=Book({"1": "echo", "2": "look", "3": "wipe"}, answered={"1", "2"}, never={"3"}))
    assert broken(executions("row", load, {"1": 1, "2": 2})) == []
    assert broken(executions("row", load, {"1": 2})) == [
        "calls lost: answered and not executed",
        "calls executed twice",
    ]
    assert broken(executions("row", load, {"1": 1, "2": 1, "3": 1})) == ["denied calls executed"]


def test_wrong_foreign_and_untyped_answers_are_noticed() -> None:
    assert broken(answers("row", [turn(), turn("TIMEOUT")], [exchange()])) == []
    assert broken(answers("row", [turn(WRONG, "1 instead of 2")], [])) == ["wrong answers"]
    assert broken(answers("row", [turn(WRONG, "mark-00 got an answer with ['mark-01']")], [])) == [
        "answers of other clients"
    ]
    assert broken(answers("row", [turn()], [exchange(UNTYPED)])) == ["errors without a code"]


def test_other_answers_than_those_of_one_gateway_are_noticed() -> None:
    expected = Load([turn()], [exchange(), exchange(answer=None)])
    assert broken(equal_answers("row", expected, Load([turn()], [exchange()]))) == []
    assert broken(equal_answers("row", expected, Load([turn()], [exchange(answer="y")])))
    assert broken(equal_answers("row", expected, Load([turn()], [])))


def test_connections_may_break_only_while_a_replica_is_killed() -> None:
    during, later = exchange(CONNECTION, begun=9.5), exchange(CONNECTION, begun=20.0)
    assert connection_errors("row", [during], {"kill": (10.0, 11.0)}).holds
    assert not connection_errors("row", [during, later], {"kill": (10.0, 11.0)}).holds


@pytest.mark.heavy
@pytest.mark.timeout(LIMIT_SECONDS + 60)  # the limit of the run comes first, and its report says more
@pytest.mark.anyio
async def test_replicas_answer_as_one_gateway_also_while_one_of_them_or_redis_fails(tmp_path: Path) -> None:
    if not all(map(shutil.which, ("haproxy", "redis-server"))):
        unavailable(FileNotFoundError("haproxy or redis-server is not installed"))
    reports: list[RowReport] = []
    with anyio.fail_after(LIMIT_SECONDS):
        for row in (mixed, faults, redis_faults):
            reports.append(await row(QUICK, tmp_path))
    against = [finding for report in reports for finding in report.findings if not finding.holds]
    assert not against
