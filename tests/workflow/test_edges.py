"""Runs at their edges: steps that queue, loops that stop, paths to nothing, plans with several faults at once."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from pml_gateway.errors import GatewayError
from pml_gateway.workflow.outcome import SkipReason, StepStatus
from pml_gateway.workflow.parse import parse_workflow
from pml_gateway.workflow.plan import Budget
from pml_gateway.workflow.report import workflow_answer
from pml_gateway.workflow.sharing import Invocation
from tests.workflow.stand import LIMITS, Stand, data, echo, plan_of, run_of

pytestmark = pytest.mark.anyio

ONE_AT_A_TIME = Budget(50, 50_000, 30.0, 1)


async def fail(_: Invocation) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": "no"}], "isError": True}


async def never(_: Invocation) -> dict[str, Any]:
    await anyio.sleep_forever()
    raise AssertionError


async def nothing(_: Invocation) -> dict[str, Any]:
    return data({"items": None})


TOOLS = {"fail": fail, "echo": echo, "never": never, "nothing": nothing}


async def test_stop_also_ends_steps_that_wait_for_a_place() -> None:
    stand = Stand(TOOLS)
    steps = [{"id": "bad", "tool": "fail"}, {"id": "queued", "tool": "echo"}]
    run = await run_of(steps, stand, ONE_AT_A_TIME, on_error="stop")
    assert stand.called == ["fail"]
    assert (run.outcomes[1].status, run.outcomes[1].reason) == (StepStatus.SKIPPED, SkipReason.STOPPED)
    assert run.outcomes[1].blocked_by == ("bad",)


async def test_a_loop_that_another_step_stopped_is_skipped_and_not_failed() -> None:
    stand = Stand(TOOLS)
    steps = [
        {"id": "bad", "tool": "fail"},
        {"id": "each", "tool": "echo", "for_each": [1, 2], "arguments": {"n": "$item"}},
    ]
    run = await run_of(steps, stand, ONE_AT_A_TIME, on_error="stop")
    assert stand.called == ["fail"]
    assert (run.outcomes[1].status, run.outcomes[1].blocked_by) == (StepStatus.SKIPPED, ("bad",))


async def test_a_loop_that_stops_itself_says_why_and_which_items_were_not_called() -> None:
    stand = Stand(TOOLS)
    steps = [{"id": "each", "tool": "fail", "for_each": [1, 2, 3], "max_parallel": 1}]
    run = await run_of(steps, stand, on_error="stop")
    assert stand.called == ["fail"]
    error = run.outcomes[0].error or {}
    assert error["message"] == "1 of 3 items of step 'each' failed: no; 2 were not called"
    assert [item["index"] for item in error["details"]["items"]] == [0]


async def test_a_step_that_still_waits_for_a_place_when_time_runs_out_was_not_begun() -> None:
    stand = Stand(TOOLS)
    steps = [{"id": "hung", "tool": "never"}, {"id": "queued", "tool": "echo"}]
    run = await run_of(steps, stand, ONE_AT_A_TIME, budget={"max_seconds": 0.5})
    assert stand.called == ["never"]
    assert [run.outcomes[n].status for n in (0, 1)] == [StepStatus.ERROR, StepStatus.SKIPPED]
    assert run.outcomes[1].reason is SkipReason.BUDGET


async def test_what_a_loop_had_done_when_time_ran_out_is_answered() -> None:
    async def some(invocation: Invocation) -> dict[str, Any]:
        return await (never if invocation.arguments["n"] == 2 else echo)(invocation)

    steps = [{"id": "each", "tool": "some", "for_each": [1, 2, 3], "arguments": {"n": "$item"}}]
    run = await run_of(steps, Stand({"some": some}), budget={"max_seconds": 0.5})
    answer = await workflow_answer(run, Stand(), [])
    [entry] = answer["steps"]
    assert answer["status"] == "partial"
    assert (entry["status"], entry["error"]["code"]) == ("error", "BUDGET_EXCEEDED")
    assert entry["result"] == [{"n": 1}, None, {"n": 3}]


async def test_a_loop_over_nothing_is_an_error_unless_its_step_has_no_result() -> None:
    steps = [{"id": "a", "tool": "nothing"}, {"id": "each", "tool": "echo", "for_each": "$a.items"}]
    for on_error in ("continue", "continue_all"):
        run = await run_of(steps, Stand(TOOLS), on_error=on_error)
        assert run.outcomes[1].status is StepStatus.ERROR, on_error
        assert "needs a list" in (run.outcomes[1].error or {})["message"]
    failed = [{"id": "a", "tool": "fail"}, steps[1]]
    run = await run_of(failed, Stand(TOOLS), on_error="continue_all")
    assert run.outcomes[1].value == []


async def test_a_wrong_path_of_a_transform_is_an_error_also_where_every_step_continues() -> None:
    steps = [{"id": "a", "tool": "echo", "arguments": {"x": 1}}, {"id": "t", "transform": "$a.y"}]
    run = await run_of(steps, Stand(TOOLS), on_error="continue_all")
    assert run.outcomes[1].status is StepStatus.ERROR
    run = await run_of([{"id": "a", "tool": "fail"}, steps[1]], Stand(TOOLS), on_error="continue_all")
    assert (run.outcomes[1].status, run.outcomes[1].value) == (StepStatus.OK, None)


async def test_a_read_does_not_take_over_the_deadline_of_an_identical_one() -> None:
    steps = [
        {"id": "long", "tool": "never", "timeout": 0.03},
        {"id": "short", "tool": "never", "timeout": 0.01},
    ]
    run = await run_of(steps, Stand(TOOLS, reads=frozenset({"never"})))
    assert ["'long'" in (run.outcomes[0].error or {})["message"], "'short'" in (run.outcomes[1].error or {})["message"]]
    assert "0.01 s" in (run.outcomes[1].error or {})["message"]


@pytest.mark.parametrize("later", [{"transform": "$b.x"}, {"tool": "echo", "when": "$b.x"}])
def test_transforms_and_conditions_cannot_read_a_later_step_either(later: dict[str, Any]) -> None:
    with pytest.raises(GatewayError, match="'b', which comes after it"):
        plan_of([{"id": "a", **later}, {"id": "b", "tool": "echo"}])


@pytest.mark.parametrize("text", ["$0.state == open", '$0.state == "open"', "state == 'open'", "$0.n = 5"])
def test_a_condition_that_could_never_hold_is_told_how_to_be_written(text: str) -> None:
    with pytest.raises(GatewayError) as caught:
        plan_of([{"tool": "echo"}, {"tool": "echo", "when": text}])
    assert "'open'" in caught.value.hint


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ("$0.n > 5", True),
        ("$0.n > 7.5", False),
        ("$0.n >= -1 && $0.on == true", True),
        ("$0.none == null", True),
        ("$0.state == 'open' && !contains($0.list, 3)", True),
        ("length($0.list[?@ > 1]) == 1", True),
        ("$0.nope || false", False),
    ],
)
async def test_numbers_and_truths_need_no_backticks_in_conditions(when: str, holds: bool) -> None:
    async def one(_: Invocation) -> dict[str, Any]:
        return data({"n": 7, "on": True, "none": None, "state": "open", "list": [1, 2]})

    run = await run_of([{"tool": "one"}, {"tool": "echo", "when": when}], Stand({"one": one, "echo": echo}))
    assert (run.outcomes[1].status is StepStatus.OK) == holds


@pytest.mark.parametrize(
    "text",
    [
        "$a.items[?state=='open' && n > `5`] | [0].id",
        "length(a.items) > `0` || !not_null($a.none, @)",
        "{x: $a.x, y: sort_by($a.items, &name)[*].{n: name}}",
        '"a"."b c"[].[d, e]',
    ],
)
def test_names_of_earlier_steps_and_of_what_is_in_them_are_no_fault(text: str) -> None:
    for key in ("when", "transform"):
        other = {"tool": "echo"} if key == "when" else {}
        plan_of([{"id": "a", "tool": "echo"}, {"depends_on": ["a"], key: text, **other}])


def test_a_mistyped_list_of_steps_is_told_its_name() -> None:
    with pytest.raises(GatewayError) as caught:
        parse_workflow({"stepz": [{"tool": "echo"}]}, LIMITS)
    assert "unknown key 'stepz'" in caught.value.message
    assert caught.value.hint == 'write "steps" instead of "stepz"'


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ("$0.n * 2 - 4 == 10", True),
        ("$0.n / 2 > 3.5 or $0.on", True),
        ("$0.n > 5 and not contains($0.list, 1)", False),
        ("-$my-step.n + 7 == 0", True),
        ("$0.n-$my-step.n == 0", True),
        ("not ($0.n < 5 or $0.state == 'closed')", True),
    ],
)
async def test_conditions_calculate(when: str, holds: bool) -> None:
    async def one(_: Invocation) -> dict[str, Any]:
        return data({"n": 7, "on": True, "none": None, "state": "open", "list": [1, 2]})

    steps = [{"tool": "one"}, {"id": "my-step", "tool": "one"}, {"tool": "echo", "when": when}]
    run = await run_of(steps, Stand({"one": one, "echo": echo}))
    assert (run.outcomes[2].status is StepStatus.OK) == holds


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        ("$0.none + 1", "$0.none is null, and + takes numbers; not_null($0.none, 0)"),
        ("$0.state * 2", "$0.state is a text"),
        ("$0.n / ($0.n - 7)", "the divisor is 0"),
        ("sum($0.list) / $0.zero", "$0.zero is 0"),
    ],
)
async def test_a_transform_that_cannot_be_calculated_says_why(transform: str, said: str) -> None:
    async def one(_: Invocation) -> dict[str, Any]:
        return data({"n": 7, "zero": 0, "none": None, "state": "open", "list": [1, 2]})

    run = await run_of([{"tool": "one"}, {"transform": transform}], Stand({"one": one}))
    assert said in (run.outcomes[1].error or {})["message"]
