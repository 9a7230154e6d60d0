"""What the runs with many clients demand, and that they would notice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.chaos.load import RESULT, UNTYPED, WRONG
from benchmarks.machine.residents import HERE, SHARED, VAULT, Errand, Resident, errands
from benchmarks.machine.stand import Place
from benchmarks.machine.storm import CANCELLED, Done, Storm, check_executions, judged

PLACE = Place("c00", Path("/projects/c00"))


def text(value: str) -> dict[str, Any]:
    return {"result": {"content": [{"type": "text", "text": value}]}}


def noticed(resident: Resident) -> list[str]:
    return [kind for kind, _ in resident.faults]


def test_the_same_seed_gives_the_same_errands_and_every_client_others() -> None:
    other = Place("c01", Path("/projects/c01"))
    assert errands(1, PLACE, 50) == errands(1, PLACE, 50)
    assert [each.tool for each in errands(1, PLACE, 50)] != [each.tool for each in errands(1, other, 50)]


def test_questions_progress_and_logs_of_other_clients_are_noticed() -> None:
    resident = Resident(PLACE)
    resident.in_flight.add("c00-1")
    resident.answer("elicitation/create", {"message": "c00-1"})
    resident.told("notifications/progress", {"progressToken": "c00-1", "message": "c00-1 1"})
    resident.told("notifications/message", {"data": "c00-1"})
    assert not noticed(resident)
    resident.answer("elicitation/create", {"message": "c01-1"})
    resident.told("notifications/progress", {"progressToken": "c00-1", "message": "c01-1 1"})
    resident.told("notifications/progress", {"progressToken": "c00-1", "message": "c00-1 1"})
    resident.told("notifications/message", {"data": "c01-1"})
    assert noticed(resident) == ["question", "progress", "progress", "log"]


def test_answers_count_with_the_nonce_and_errors_with_a_published_code_in_either_shape() -> None:
    errand = Errand("c00-1", "look", SHARED[0], {"nonce": "c00-1"})
    typed = {"code": -32000, "message": "m", "data": {"code": "UPSTREAM_UNAVAILABLE", "details": {"executed": "no"}}}
    assert judged(errand, text("c00-1 plain0 look"), "c00-1 plain0 look")[0].outcome == RESULT
    assert judged(errand, text("c01-1 plain0 look"), "c00-1 plain0 look")[0].outcome == WRONG
    assert judged(errand, {"error": {"code": -32603, "message": "oops"}}, "")[0].outcome == UNTYPED
    done, _ = judged(errand, {"error": typed}, "")
    assert (done.outcome, done.executed) == ("UPSTREAM_UNAVAILABLE", "no")


def test_the_folder_counts_where_a_server_belongs_to_it() -> None:
    seen = json.dumps({"nonce": "n", "folder": "/elsewhere", "TOKEN": "t", "PATH": "p"})
    anywhere = json.dumps({"nonce": "n", "folder": "", "TOKEN": "t", "PATH": "p"})
    assert judged(Errand("n", "whoami", VAULT, {}), text(seen), anywhere)[0].outcome == RESULT
    assert judged(Errand("n", "whoami", HERE, {}), text(seen), anywhere)[0].outcome == WRONG


def test_a_second_execution_a_denied_one_and_a_foreign_cancellation_are_noticed() -> None:
    storm = Storm(Path("/x"))
    for nonce, tool, outcome, executed in (
        ("a", "act", RESULT, ""),
        ("b", "look", RESULT, ""),
        ("c", "act", "UPSTREAM_UNAVAILABLE", "no"),
        ("d", "wait", RESULT, ""),
        ("e", "wait", CANCELLED, ""),
    ):
        storm.done[nonce] = Done(Errand(nonce, tool, "s", {}), outcome, executed)
    journal = {("a", "act"): 2, ("b", "look"): 2, ("c", "act"): 1}
    journal |= {("d", "wait"): 1, ("d", "cancelled"): 1, ("e", "wait"): 1, ("e", "cancelled"): 1}
    found = check_executions(storm, journal)
    assert {what: len(against) for what, against in found.items()} == {
        "executed twice": 1,
        "result without execution": 0,
        "executed though denied": 1,
        "cancelled by nobody": 1,
    }


def test_answers_are_compared_without_references_times_and_folders() -> None:
    one, other = Storm(Path("/one")), Storm(Path("/other"))
    errand = Errand("n", "lines", "s", {})
    for storm, ref in ((one, "ref_abcdefgh1"), (other, "ref_abcdefgh2")):
        answer = text(json.dumps({"ref": ref, "etag": ref, "at": f"{storm.folder}/x"}))
        storm.done["n"] = judged(errand, answer, None)[0]
    assert not one.differences(other)
    one.done["n"] = Done(errand, RESULT, seen="else")
    assert one.differences(other)
