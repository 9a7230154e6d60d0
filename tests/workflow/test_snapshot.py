"""A run that is stored and restored after each question answers exactly as one that stays."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pml_gateway.errors import UpstreamTimeoutError
from pml_gateway.results.content import content_of
from pml_gateway.results.settle import PresentedResult
from pml_gateway.results.stored import Source, StoredResult
from pml_gateway.storage.pending import IN_PROCESS
from pml_gateway.workflow.execute import Run
from pml_gateway.workflow.outcome import StepOutcome, StepStatus
from pml_gateway.workflow.plan import Budget, OnError, Plan
from pml_gateway.workflow.report import batch_answer, workflow_answer
from pml_gateway.workflow.sharing import Invocation
from pml_gateway.workflow.snapshot import RunSnapshot, dump, load
from tests.support.examples import examples
from tests.workflow.stand import LIMITS, Stand, data, plan_of

pytestmark = pytest.mark.anyio

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)

PNG = base64.b64encode(b"\x89PNG and so on").decode()
QUESTION = {"method": "elicitation/create", "params": {"message": "which?"}}


@dataclass
class Asking(Stand):
    """Tools that ask so often, then answer, fail or give media; results are stored if that is wanted."""

    answered: list[Any] = field(default_factory=list)

    async def call(self, invocation: Invocation) -> PresentedResult:
        self.calls.append(invocation)
        given = invocation.arguments
        seen = int(invocation.state or 0)
        if seen < given.get("asks", 0):
            asked = {f"q{seen}": QUESTION}
            return_value = {"resultType": "input_required", "inputRequests": asked, "requestState": str(seen + 1)}
            return PresentedResult(return_value, content_of({}))
        self.answered.append(invocation.responses)
        match given.get("how"):
            case "error":
                return PresentedResult({"content": [{"type": "text", "text": "no"}], "isError": True}, content_of({}))
            case "raise":
                raise UpstreamTimeoutError("too late")
            case "text":
                result: dict[str, Any] = {"content": [{"type": "text", "text": json.dumps(given.get("value"))}]}
            case "media":
                block = {"type": "image", "data": PNG, "mimeType": "image/png"}
                result = {"content": [{"type": "text", "text": "look"}, block]}
            case _:
                result = data({"value": given.get("value"), "said": invocation.responses})
        content = content_of(result)
        if given.get("stored"):
            source = Source(("up", "t"), "up__t", made_from=(("up", "x"),), refs=("ref_x",), at=1.5)
            stored = StoredResult(
                "ref_y", "json", None, 7, 8, "0" * 64, "{}", {"first": [1]}, {"limit": 2}, 3.5, source
            )
            return PresentedResult(data(stored.answer()), content, "e", stored=stored, coerced={"/a": "number"})
        return PresentedResult(result, content, etag="etag" if given.get("how") == "etag" else None)


@st.composite
def workflows(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Up to six steps, some of which ask, loop, fail, have a condition, or read earlier ones."""
    steps: list[dict[str, Any]] = []
    for index in range(draw(st.integers(1, 6))):
        arguments: dict[str, Any] = {
            "asks": draw(st.integers(0, 2)),
            "how": draw(st.sampled_from(["data", "data", "data", "text", "media", "etag", "error", "raise"])),
            "value": draw(VALUES.filter(lambda value: "$" not in json.dumps(value) and "{" not in json.dumps(value))),
            "stored": draw(st.sampled_from([False, False, True])),
        }
        step: dict[str, Any] = {"id": f"s{index}", "tool": draw(st.sampled_from(["up__t", "up__read"]))}
        if index and draw(st.booleans()):
            arguments["of"] = f"$s{draw(st.integers(0, index - 1))}"
        if draw(st.integers(0, 3)) == 0:
            step["for_each"] = draw(st.lists(st.integers(0, 3), max_size=3))
            arguments["asks"] = draw(st.sampled_from([0, 1, "$item"]))
        if index and draw(st.integers(0, 4)) == 0:
            step["depends_on"] = [f"s{draw(st.integers(0, index - 1))}"]
        steps.append({**step, "arguments": arguments})
    return steps


async def finished(plan: Plan, stand: Asking, again: Callable[[Run], Run]) -> tuple[Run, list[Any]]:
    """A run to its end, each question answered in turn, and what was asked."""
    run, asked = Run(plan, {"given": 1}), list[Any]()
    await run.advance(stand)
    while run.is_waiting:
        asked.append(run.questions)
        assert len(asked) < 50
        answers = {key: {"action": "accept", "content": {"key": key}} for key in run.questions}
        run = again(run)
        await run.advance(stand, answers)
    return run, asked


def restored(run: Run) -> Run:
    other = Run(run.plan, {"given": 1})
    other.restore(load(dump(run.snapshot())))
    return other


def comparable(value: Any) -> str:
    """All of a value with its types: `1`, `1.0` and `true` are not equal here; times are left out."""
    if isinstance(value, StepOutcome):
        fields = ("status", "value", "called", "error", "reason", "blocked_by", "arguments", "shared_with", "refs")
        items = None if value.items is None else [comparable(item) for item in value.items]
        return repr([*(getattr(value, name) for name in fields), items])
    return repr(value)


@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(workflows(), st.sampled_from(list(OnError)), st.sampled_from([3, 8, 50]), st.sampled_from([None, 10]))
def test_a_run_that_is_stored_after_each_question_answers_as_one_that_stays(
    steps: list[dict[str, Any]], on_error: OnError, max_steps: int, threshold: int | None
) -> None:
    async def main() -> None:
        limits = Budget(max(max_steps, len(steps)), LIMITS.max_tokens, LIMITS.max_seconds, LIMITS.max_parallel)
        seen = []
        for again in (lambda run: run, restored):
            stand = Asking(reads=frozenset({"up__read"}), threshold=threshold)
            run, asked = await finished(plan_of(steps, limits, on_error=on_error.value), stand, again)
            media: list[Any] = []
            answer = await workflow_answer(run, stand, media)
            slots = await batch_answer(run, stand, media)
            calls = [(each.tool, repr(each.arguments), repr(each.responses), each.state) for each in stand.calls]
            outcomes = [comparable(run.outcomes[index]) for index in sorted(run.outcomes)]
            seen.append((outcomes, repr(asked), calls, repr(answer), repr(slots), repr(media), run.snapshot().begun))
        assert seen[0] == seen[1]

    anyio.run(main)


async def test_the_time_and_the_calls_of_before_count_and_a_stop_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [
        {"tool": "up__t", "arguments": {"asks": 1}},
        {"tool": "up__t", "for_each": [1, 2], "arguments": {"asks": 1}},
        {"tool": "up__t", "arguments": {"how": "error"}, "depends_on": ["1"]},
    ]
    run = Run(plan_of(steps, Budget(4, 1000, 30.0, 2), on_error="stop"))
    await run.advance(Asking())
    before = run.snapshot()
    again = load(dump(before))
    assert again == before
    assert again.calls_left == 0
    assert again.spent > 0
    assert restored(run).snapshot() == before


@pytest.mark.parametrize("value", [float("inf"), "\ud800", 10**30, -0.0, "é\u2028", [[], {}, ""], {"": None}])
async def test_any_value_reads_back_as_it_was(value: Any) -> None:
    outcome = StepOutcome(StepStatus.OK, value, arguments={"a": value})
    snapshot = RunSnapshot({3: outcome}, {3: {0: outcome}}, {3: 1}, {3}, [], 0.5, 7, None)
    again = load(dump(snapshot))
    assert repr(again) == repr(snapshot)


async def test_what_is_no_json_is_refused_instead_of_changed() -> None:
    snapshot = RunSnapshot({0: StepOutcome(StepStatus.OK, object())}, {}, {}, set(), [], 0.0, 0, None)
    with pytest.raises(TypeError):
        dump(snapshot)


async def test_a_run_is_held_if_one_of_its_questions_is() -> None:
    for state, held in ((f"{IN_PROCESS}x", True), ("x", False)):

        async def ask(_: Invocation, state: str = state) -> dict[str, Any]:
            return {"resultType": "input_required", "inputRequests": {"k": QUESTION}, "requestState": state}

        run = Run(plan_of([{"tool": "ask", "for_each": [1, 2]}, {"tool": "ask"}]))
        await run.advance(Stand({"ask": ask}))
        assert run.waits_in_process is held
