"""Runs without a server: conditions, loops, limits, shared reads and what answers show."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from pml_gateway.errors import GatewayError
from pml_gateway.workflow.execute import Run
from pml_gateway.workflow.outcome import StepStatus
from pml_gateway.workflow.plan import Budget
from pml_gateway.workflow.report import workflow_answer
from pml_gateway.workflow.sharing import Invocation
from tests.workflow.stand import Stand, data, plan_of, run_of

pytestmark = pytest.mark.anyio


async def listing(_: Invocation) -> dict[str, Any]:
    return data({"items": [{"id": n, "ok": n % 2 == 0} for n in range(4)], "big": "x" * 4000})


async def one(invocation: Invocation) -> dict[str, Any]:
    if invocation.arguments.get("id") == 3:
        return {"content": [{"type": "text", "text": "three is missing"}], "isError": True}
    return data(invocation.arguments)


async def never(_: Invocation) -> dict[str, Any]:
    await anyio.sleep_forever()
    raise AssertionError


TOOLS = {"list": listing, "one": one, "never": never}
EACH = {"id": "each", "tool": "one", "for_each": "$a.items", "arguments": {"id": "$item.id", "n": "$index"}}


def statuses(run: Run) -> list[str]:
    return [run.outcomes[step.index].status.value for step in run.plan.steps]


async def test_a_condition_chooses_a_branch_and_what_reads_both_goes_on() -> None:
    steps = [
        {"id": "a", "tool": "list"},
        {"id": "yes", "tool": "one", "when": "length($a.items) > `2`", "arguments": {"id": 1}},
        {"id": "no", "tool": "one", "when": "$a.nothing", "arguments": {"id": 2}},
        {"id": "both", "transform": "$yes.id || $no.id"},
        {"id": "after", "tool": "one", "depends_on": ["no"]},
        {"id": "needs", "tool": "one", "arguments": {"id": "$no.id"}},
    ]
    run = await run_of(steps, Stand(TOOLS))
    assert statuses(run) == ["ok", "ok", "skipped", "ok", "ok", "skipped"]
    assert run.outcomes[3].value == 1
    assert run.outcomes[5].blocked_by == ("no",)
    assert (await workflow_answer(run, Stand(), []))["status"] == "completed"


async def test_a_loop_keeps_the_order_of_its_items_and_names_the_failed_ones() -> None:
    stand = Stand(TOOLS)
    run = await run_of([{"id": "a", "tool": "list"}, {**EACH, "for_each": "$a.items[?ok]"}], stand)
    assert run.outcomes[1].value == [{"id": 0, "n": 0}, {"id": 2, "n": 1}]
    run = await run_of([{"id": "a", "tool": "list"}, EACH, {"tool": "one", "arguments": {"x": "$each[0]"}}], stand)
    assert statuses(run) == ["ok", "error", "skipped"]
    assert run.outcomes[1].value[:3] == [{"id": n, "n": n} for n in range(3)]
    error = run.outcomes[1].error or {}
    assert error["message"] == "1 of 4 items of step 'each' failed: three is missing"
    assert [item["index"] for item in error["details"]["items"]] == [3]
    answer = await workflow_answer(run, Stand(), [])
    assert answer["status"] == "partial"
    assert answer["steps"][1]["result"][3] is None


async def test_a_loop_beyond_the_budget_calls_nothing_and_names_the_setting() -> None:
    stand = Stand(TOOLS)
    limits = Budget(4, 50_000, 30.0, 8)
    run = await run_of([{"id": "a", "tool": "list"}, EACH], stand, limits)
    assert stand.called == ["list"]
    error = run.outcomes[1].error or {}
    assert (error["code"], error["details"]["setting"], error["details"]["value"]) == (
        "BUDGET_EXCEEDED",
        "workflow.max_steps",
        4,
    )
    assert (await workflow_answer(run, Stand(), []))["exceeded"] == [
        {"limit": "max_steps", "value": 4, "setting": "workflow.max_steps"}
    ]


async def test_continue_all_goes_on_with_null_and_stop_begins_nothing_more() -> None:
    steps = [
        {"id": "bad", "tool": "one", "arguments": {"id": 3}},
        {"id": "next", "tool": "one", "arguments": {"id": "$bad.id", "text": "got $bad.id"}},
    ]
    stand = Stand(TOOLS)
    run = await run_of(steps, stand, on_error="continue_all")
    assert run.outcomes[1].value == {"id": None, "text": "got "}
    assert (await workflow_answer(run, stand, []))["status"] == "partial"
    later = {"id": "later", "tool": "one", "depends_on": ["next"]}
    run = await run_of([steps[0], {"id": "next", "tool": "list", "depends_on": ["bad"]}, later], stand, on_error="stop")
    assert statuses(run) == ["error", "skipped", "skipped"]
    answer = await workflow_answer(run, stand, [])
    assert (answer["status"], answer["steps"][2]["reason"], answer["steps"][2]["blocked_by"]) == (
        "failed",
        "stopped",
        ["bad"],
    )


async def test_a_hung_step_ends_at_its_deadline_and_its_dependants_are_blocked() -> None:
    steps = [
        {"id": "hung", "tool": "never", "timeout": 0.01},
        {"id": "after", "tool": "one", "depends_on": ["hung"]},
        {"id": "beside", "tool": "one"},
    ]
    run = await run_of(steps, Stand(TOOLS))
    assert statuses(run) == ["error", "skipped", "ok"]
    assert (run.outcomes[0].error or {})["code"] == "TIMEOUT"
    assert run.outcomes[1].blocked_by == ("hung",)


async def test_the_time_of_a_run_ends_what_runs_and_skips_what_has_not_begun() -> None:
    steps = [{"id": "hung", "tool": "never"}, {"id": "after", "tool": "one", "depends_on": ["hung"]}]
    run = await run_of(steps, Stand(TOOLS), budget={"max_seconds": 0.5})
    assert statuses(run) == ["error", "skipped"]
    assert {(run.outcomes[index].error or {})["code"] for index in (0, 1)} == {"BUDGET_EXCEEDED"}
    answer = await workflow_answer(run, Stand(), [])
    assert (answer["status"], answer["exceeded"][0]["setting"]) == ("failed", "workflow.max_seconds")


async def test_identical_reads_are_one_call_unless_something_was_written_between() -> None:
    steps = [
        {"id": "a", "tool": "list"},
        {"id": "b", "tool": "list"},
        {"id": "c", "tool": "list", "depends_on": ["a"]},
        {"id": "write", "tool": "one", "depends_on": ["c"]},
        {"id": "d", "tool": "list", "depends_on": ["write"]},
    ]
    stand = Stand(TOOLS, reads=frozenset({"list"}))
    run = await run_of(steps, stand, trace=True)
    assert stand.called == ["list", "one", "list"]
    answer = await workflow_answer(run, stand, [])
    assert [step["trace"].get("shared_with") for step in answer["steps"]] == [None, "a", "a", None, None]
    assert [run.outcomes[index].value for index in (0, 1, 2)] == [run.outcomes[0].value] * 3


async def test_stored_results_take_their_place_and_are_not_scanned() -> None:
    stand = Stand(TOOLS, stored={"ref_1": {"text": "$a.x and $$", "$ref": "ref_2"}})
    run = await run_of([{"id": "a", "tool": "one", "arguments": {"x": {"$ref": "ref_1"}}}], stand)
    assert run.outcomes[0].value == {"x": {"text": "$a.x and $$", "$ref": "ref_2"}}
    assert stand.calls[0].refs == ("ref_1",)
    run = await run_of([{"id": "a", "tool": "one", "arguments": {"x": {"$ref": "ref_9"}}}], stand)
    assert (run.outcomes[0].error or {})["code"] == "NOT_FOUND"


async def test_large_results_are_kept_and_a_steps_own_limit_cuts_with_a_way_to_go_on() -> None:
    steps = [{"id": "a", "tool": "list", "max_tokens": 50}, {"id": "b", "tool": "list"}]
    stand = Stand(TOOLS, threshold=200)
    answer = await workflow_answer(await run_of(steps, stand), stand, [])
    first, second = answer["steps"]
    assert first["reference"]["ref"] == "ref_a"
    assert first["truncated"].startswith('{"items":[{"id":0')
    assert len(first["truncated"]) <= 150
    assert "truncated" not in second
    assert second["reference"]["ref"] == "ref_b"
    assert "exceeded" not in answer


async def test_an_answer_never_shows_more_tokens_than_its_budget() -> None:
    steps = [{"id": f"s{n}", "tool": "one", "arguments": {"text": f"{n} " * 100}} for n in range(4)]
    stand = Stand(TOOLS, threshold=10_000)
    answer = await workflow_answer(await run_of(steps, stand, budget={"max_tokens": 500}), stand, [])
    assert ["result" in step for step in answer["steps"]] == [True, True, False, False]
    assert answer["exceeded"] == [{"limit": "max_tokens", "value": 500, "setting": "workflow.max_tokens"}]
    assert stand.kept == ["s2", "s3"]
    assert answer["status"] == "completed"


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"tool": "t", "transform": "$0"}, "either a tool or a transform"),
        ({}, "either a tool or a transform"),
        ("text", "a step is an object"),
        ({"tool": "t", "argumnets": {}}, "unknown key 'argumnets'"),
        ({"tool": "t", "id": "item"}, "cannot be used"),
        ({"tool": "t", "id": "7"}, "cannot be used"),
        ({"tool": "t", "arguments": "no json"}, "arguments are a JSON object"),
        ({"tool": "t", "arguments": {"x": "$item.id"}}, "there is no step 'item'"),
        ({"tool": "t", "arguments": {"x": "$input.id"}}, "there is no step 'input'"),
        ({"tool": "t", "for_each": "text"}, "a list or a reference to one"),
        ({"tool": "t", "timeout": -1}, "no positive number"),
        ({"tool": "t", "when": "((("}, "no JMESPath"),
        ({"transform": "items[*].id"}, "reads no step"),
    ],
)
def test_a_step_that_cannot_be_read_says_what_is_wrong_with_it(step: Any, message: str) -> None:
    with pytest.raises(GatewayError) as caught:
        plan_of([step])
    assert message in caught.value.message
    assert caught.value.details["errors"][0]["path"].startswith("/steps/0")


async def test_progress_counts_finished_steps() -> None:
    stand = Stand(TOOLS)
    run = await run_of([{"id": "a", "tool": "one"}, {"id": "b", "tool": "one", "depends_on": ["a"]}], stand)
    assert stand.reports == [(1, 2, "a: ok"), (2, 2, "b: ok")]
    assert {outcome.status for outcome in run.outcomes.values()} == {StepStatus.OK}
