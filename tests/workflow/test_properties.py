"""Whatever the steps, their failures and their limits: each runs once, in order, and what is said of it is true."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pml_gateway.errors import GatewayError, InvalidInputError, UpstreamTimeoutError
from pml_gateway.workflow.execute import Run
from pml_gateway.workflow.outcome import RunStatus, SkipReason, StepStatus, run_status
from pml_gateway.workflow.plan import Budget, OnError
from pml_gateway.workflow.sharing import Invocation
from pml_gateway.workflow.templates import compile_template, render
from tests.support.examples import examples
from tests.workflow.stand import LIMITS, Stand, data, plan_of

pytestmark = pytest.mark.anyio

BEHAVIOURS = ("ok", "ok", "ok", "error", "raise", "hang")

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@st.composite
def graphs(draw: st.DrawFn) -> list[tuple[str, list[int], list[int]]]:
    """Up to 30 steps: how each behaves, which it refers to, which it waits for."""
    count = draw(st.integers(1, 30))
    steps = []
    for index in range(count):
        before = st.lists(st.integers(0, index - 1), max_size=3, unique=True) if index else st.just([])
        steps.append((draw(st.sampled_from(BEHAVIOURS)), draw(before), draw(before)))
    return steps


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(graphs(), st.sampled_from(list(OnError)), st.integers(1, 8), st.booleans())
def test_any_graph_runs_each_step_at_most_once_in_order_and_ends_with_the_right_status(
    graph: list[tuple[str, list[int], list[int]]], on_error: OnError, parallel: int, little_time: bool
) -> None:
    async def main() -> None:
        ended: list[int] = []
        begun: list[int] = []
        running = 0

        async def act(invocation: Invocation) -> dict[str, Any]:
            nonlocal running
            index = invocation.arguments["index"]
            for needed in (*graph[index][1], *graph[index][2]):
                assert needed in ended or plan.on_error is OnError.CONTINUE_ALL
                assert needed in run.outcomes
            begun.append(index)
            running += 1
            assert running <= parallel
            try:
                await anyio.lowlevel.checkpoint()
                match graph[index][0]:
                    case "error":
                        return {"content": [{"type": "text", "text": "no"}], "isError": True}
                    case "raise":
                        raise UpstreamTimeoutError("too late")
                    case "hang":
                        await anyio.sleep_forever()
                ended.append(index)
                return data({"index": index})
            finally:
                running -= 1

        steps = [
            {
                "id": f"s{index}",
                "tool": "act",
                "arguments": {"index": index, "values": [f"$s{needed}.index" for needed in reads]},
                "depends_on": [f"s{needed}" for needed in waits],
                # A step that should end has no limit of its own: on a busy machine it would not always keep one.
                **({"timeout": 0.002} if behaviour == "hang" and not little_time else {}),
            }
            for index, (behaviour, reads, waits) in enumerate(graph)
        ]
        limits = Budget(50, 50_000, 0.02 if little_time else 30.0, parallel)
        plan = plan_of(steps, limits, on_error=on_error.value)
        run = Run(plan)
        with anyio.fail_after(30):
            await run.advance(Stand({"act": act}))
        check(run, begun, ended)

    def check(run: Run, begun: list[int], ended: list[int]) -> None:
        assert len(begun) == len(set(begun))
        assert set(run.outcomes) == set(range(len(graph)))
        for index, (behaviour, reads, waits) in enumerate(graph):
            outcome = run.outcomes[index]
            before = [run.outcomes[needed] for needed in {*reads, *waits}]
            match outcome.status:
                case StepStatus.OK:
                    assert behaviour == "ok"
                    assert outcome.value == {"index": index}
                    assert on_error is OnError.CONTINUE_ALL or all(each.status is StepStatus.OK for each in before)
                case StepStatus.ERROR:
                    assert outcome.error is not None
                    assert behaviour != "ok" or outcome.error["code"] == "BUDGET_EXCEEDED"
                case StepStatus.SKIPPED:
                    assert index not in begun
                    assert outcome.blocked_by or outcome.reason is SkipReason.BUDGET
                    for cause in outcome.blocked_by:
                        assert run.outcomes[int(cause[1:])].status is not StepStatus.OK
                case _:
                    raise AssertionError(outcome.status)
        oks = [each for each in run.outcomes.values() if each.status is StepStatus.OK]
        status = run_status(list(run.outcomes.values()))
        assert (status is RunStatus.COMPLETED) == (len(oks) == len(graph))
        assert (status is RunStatus.FAILED) == (not oks)
        assert len(oks) == len(ended)

    anyio.run(main)


@settings(max_examples=examples(150))
@given(JSON)
def test_any_value_survives_a_reference_to_it_and_is_not_scanned_again(value: Any) -> None:
    async def main() -> None:
        stand = Stand({"make": lambda _: _answered({"v": value}), "take": lambda call: _answered(call.arguments)})
        run = Run(
            plan_of(
                [
                    {"id": "a", "tool": "make"},
                    {"id": "b", "tool": "take", "arguments": {"whole": "$a.v", "list": ["$0.v", {"deep": "$a.v"}]}},
                    {"id": "c", "transform": "$b.whole"},
                ]
            )
        )
        await run.advance(stand)
        given = stand.calls[1].arguments
        assert json.dumps(given["whole"]) == json.dumps(value)
        assert json.dumps(given["list"]) == json.dumps([value, {"deep": value}])
        assert run.outcomes[2].value == value

    anyio.run(main)


async def _answered(value: dict[str, Any]) -> dict[str, Any]:
    return data(value)


@settings(max_examples=examples(150))
@given(JSON)
def test_a_value_without_dollar_signs_is_its_own_template(value: Any) -> None:
    text = json.dumps(value)
    if "$" in text:
        return

    async def main() -> None:
        async def load(node: Any) -> Any:
            raise AssertionError(node)

        assert json.dumps(await render(compile_template(value), {}, load)) == text

    anyio.run(main)


@settings(max_examples=examples(200))
@given(st.text(alphabet="$0ab.[]*()'\"`\\{}@|&? -1", max_size=40))
def test_any_text_is_a_template_or_a_named_error(text: str) -> None:
    async def main() -> None:
        run = Run(plan_of([{"id": "a", "tool": "echo"}, {"tool": "echo", "arguments": {"t": text}}]))
        await run.advance(Stand())
        assert run.outcomes[1].status in (StepStatus.OK, StepStatus.ERROR)

    try:
        anyio.run(main)
    except GatewayError as error:
        assert error.message


HOSTILE = [
    "$0.__class__",
    "$0.__class__.__mro__[1].__subclasses__",
    "$0" + ".a" * 400,
    "$0[999999999999999999999]",
    "$0.items[-9999]",
    "$0.items.name",
    "$0.total.deeper",
    "$0.items[0][0]",
    "$0.items[*].missing",
    "$0" + "[" * 500 + "]" * 500,
]


@pytest.mark.parametrize("text", HOSTILE)
async def test_hostile_references_are_named_errors(text: str) -> None:
    stand = Stand({"list": lambda _: _items(), "echo": lambda call: _answered(call.arguments)})
    try:
        run = Run(plan_of([{"tool": "list"}, {"id": "bad", "tool": "echo", "arguments": {"x": text}}]))
        await run.advance(stand)
    except GatewayError as error:
        assert error.code == "INVALID_INPUT"
        assert error.message
        return
    outcome = run.outcomes[1]
    assert outcome.status is StepStatus.ERROR
    assert outcome.error is not None
    assert outcome.error["code"] == "INVALID_INPUT"
    assert "echo" not in stand.called


async def _items() -> dict[str, Any]:
    return data({"items": [{"id": 1}, {"id": 2}], "total": 2})


async def test_a_missing_path_names_the_keys_that_exist() -> None:
    stand = Stand({"list": lambda _: _items()})
    run = Run(plan_of([{"id": "a", "tool": "list"}, {"tool": "list", "arguments": {"x": "$a.itms[0].id"}}]))
    await run.advance(stand)
    error = run.outcomes[1].error
    assert error is not None
    assert "'items', 'total'" in error["message"]


@pytest.mark.parametrize(
    "expression",
    [
        " | ".join(["[@, @]"] * 60),
        "join('', [`\"" + "x" * 500 + '"`, @])' + " | join('', [@, @])" * 40,
        "$0.many[*].[$0.many[*].[$0.many[*]]]",
        "to_string([$0.many, $0.many])" + " | to_string([@, @, @, @])" * 30,
        "([@,@] | [@,@] | [@,@] | [@,@]) == " + " | ".join(["[@, @]"] * 50),
    ],
)
async def test_expressions_that_multiply_end_within_their_bounds(expression: str) -> None:
    async def many(_: Invocation) -> dict[str, Any]:
        return data({"many": list(range(2000))})

    stand = Stand({"many": many})
    run = Run(plan_of([{"tool": "many"}, {"transform": f"$0.many | {expression}"}]))
    with anyio.fail_after(30):
        await run.advance(stand)
    outcome = run.outcomes[1]
    assert outcome.status is StepStatus.ERROR
    assert outcome.error is not None
    assert outcome.error["code"] == "INVALID_INPUT"


def test_references_forward_in_circles_and_to_nobody_fail_by_name_before_any_call() -> None:
    a: dict[str, Any] = {"id": "a", "tool": "t"}
    b: dict[str, Any] = {"id": "b", "tool": "t"}
    forward = [{**a, "arguments": {"x": "$b.y"}}, b]
    circle = [{**a, "depends_on": ["b"]}, {**b, "arguments": {"x": "$a"}}]
    itself = [{**a, "arguments": {"x": "$a.y"}}]
    nobody = [{**a, "id": "alpha"}, {**b, "arguments": {"x": "$alpah.y"}}]
    for steps, text in ((forward, "'b', which comes after"), (circle, "a -> b -> a"), (itself, "a -> a")):
        with pytest.raises(GatewayError, match=text):
            plan_of(steps)
    with pytest.raises(GatewayError) as caught:
        plan_of(nobody)
    assert 'write "$alpha" instead of "$alpah"' in caught.value.hint


def test_a_budget_may_be_tightened_and_not_widened() -> None:
    plan = plan_of([{"tool": "t"}], budget={"max_steps": 1000, "max_seconds": 1, "max_tokens": 10})
    assert plan.budget == Budget(LIMITS.max_steps, 10, 1, LIMITS.max_parallel)
    assert plan_of([{"tool": "t"}], budget={"max_steps": "9", "maxSeconds": "1.5"}).budget.max_seconds == 1.5
    for wrong in (0, -1, "nine", True, 1.5):
        with pytest.raises(GatewayError, match="max_steps"):
            plan_of([{"tool": "t"}], budget={"max_steps": wrong})


def test_only_what_the_contract_calls_a_reference_is_one() -> None:
    for text in ("US$5.99", "$5 off", "a $b c", "${env:HOME}", "$(pwd)", "$-1", "50$", "$a,b", "$a/b"):
        assert getattr(compile_template(text), "value", None) == text
    assert getattr(compile_template("$$0.items"), "value", None) == "$0.items"
    with pytest.raises(InvalidInputError, match="no closing bracket"):
        compile_template("$a[0")
