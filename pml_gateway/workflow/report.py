"""The answer to a run: small results whole, large ones by reference."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio.to_thread

from pml_gateway.errors import ErrorCode
from pml_gateway.results.content import exceeds
from pml_gateway.results.encoding import tokens_of
from pml_gateway.types import JsonObject
from pml_gateway.workflow.execute import Run
from pml_gateway.workflow.outcome import Exceeded, RunStatus, StepOutcome, StepStatus, error_json, run_status
from pml_gateway.workflow.plan import Plan, Step

CHARACTERS_PER_TOKEN = 3
"""Of JSON; a truncated result is cut by this, which leaves it below its limit."""

COUNTED_AT_ONCE = 64 * 1024
MAX_TRACED = 2000
"""Characters of arguments in a trace."""


class Keeper(Protocol):
    """Where results go that are too large for an answer."""

    @property
    def threshold(self) -> int | None:
        """Tokens above which a result is kept instead of answered; None where nothing is kept."""

    async def keep(self, step: Step, outcome: StepOutcome, made_from: frozenset[str]) -> JsonObject | None:
        """Keep the result of a step; the answer with its reference, or None where it cannot be kept."""


async def workflow_answer(run: Run, keeper: Keeper) -> JsonObject:
    """The answer of a workflow: its status, and every step in order."""
    outcomes = [run.outcomes[step.index] for step in run.plan.steps]
    status = run_status(outcomes)
    shown = _Shown(run.plan, keeper)
    steps = [await _step_entry(step, outcome, shown) for step, outcome in zip(run.plan.steps, outcomes, strict=True)]
    answer: JsonObject = {"status": status.value, "steps": steps}
    exceeded = [*run.exceeded, *shown.exceeded]
    if exceeded:
        answer["exceeded"] = [each.as_json() for each in exceeded]
    if status is RunStatus.FAILED:
        answer["error"] = first_error(run.plan, outcomes)
    return answer


async def batch_answer(run: Run, keeper: Keeper) -> JsonObject:
    """The answer of a batch: its slots in order, each with `ok` and a result or an error."""
    shown = _Shown(run.plan, keeper)
    slots: list[JsonObject] = []
    failed = 0
    for step in run.plan.steps:
        outcome = run.outcomes[step.index]
        ok = outcome.status is StepStatus.OK
        failed += not ok
        body = await shown.result(step, outcome) if ok else {"error": outcome.error}
        slots.append({"id": step.id, "ok": ok, **body})
    answer: JsonObject = {"slots": slots, "failed": failed}
    exceeded = [*run.exceeded, *shown.exceeded]
    if exceeded:
        answer["exceeded"] = [each.as_json() for each in exceeded]
    if failed == len(slots):
        answer["error"] = first_error(run.plan, [run.outcomes[step.index] for step in run.plan.steps])
    return answer


def first_error(plan: Plan, outcomes: list[StepOutcome]) -> JsonObject:
    """The error of a run, which is that of its first failed step."""
    failed = [(step, outcome) for step, outcome in zip(plan.steps, outcomes, strict=True) if outcome.error is not None]
    if not failed:
        return error_json(ErrorCode.INTERNAL, "no step succeeded")
    step, outcome = failed[0]
    error = dict(outcome.error or {})
    others = f" (and {len(failed) - 1} more steps failed)" if len(failed) > 1 else ""
    return {**error, "message": f"step {step.id!r}: {error.get('message', '')}{others}"}


async def _step_entry(step: Step, outcome: StepOutcome, shown: _Shown) -> JsonObject:
    entry: JsonObject = {"id": step.id, "status": outcome.status.value}
    if outcome.reason is not None:
        entry["reason"] = outcome.reason.value
    if outcome.blocked_by:
        entry["blocked_by"] = list(outcome.blocked_by)
    if outcome.error is not None:
        entry["error"] = outcome.error
    wanted = shown.plan.returned is None or step.index in shown.plan.returned
    if wanted and (outcome.status is StepStatus.OK or outcome.items is not None):
        entry |= await shown.result(step, outcome)
    if shown.plan.trace:
        entry["trace"] = _trace(step, outcome)
    return entry


def _trace(step: Step, outcome: StepOutcome) -> JsonObject:
    trace: JsonObject = {
        "began_ms": round(outcome.began * 1000, 1),
        "took_ms": round((outcome.ended - outcome.began) * 1000, 1),
    }
    if step.tool is not None:
        trace["tool"] = step.tool
    if outcome.arguments is not None and not exceeds(outcome.arguments, MAX_TRACED):
        trace["arguments"] = outcome.arguments
    if outcome.shared_with is not None and outcome.shared_with != step.id:
        trace["shared_with"] = outcome.shared_with
    if outcome.items is not None:
        trace["items"] = len(outcome.items)
    return trace


@dataclass(slots=True)
class _Shown:
    """Results as an answer shows them, as long as its tokens last."""

    plan: Plan
    keeper: Keeper
    used: int = 0
    exceeded: list[Exceeded] = field(default_factory=list)

    async def result(self, step: Step, outcome: StepOutcome) -> JsonObject:
        """The result of one step: whole, or by reference where it is too large."""
        called = outcome.called
        etag: JsonObject = {"etag": called.etag} if called is not None and called.etag else {}
        if called is not None and called.unchanged:
            return {"unchanged": True, **etag}
        value = shown_value(outcome)
        text, tokens = await _measured(value)
        left = max(self.plan.budget.max_tokens - self.used, 0)
        threshold = self.keeper.threshold
        own = step.max_tokens
        if tokens <= left and (threshold is None or tokens <= threshold) and (own is None or tokens <= own):
            self.used += tokens
            return {"result": value, **etag}
        if tokens > left and (threshold is None or tokens <= threshold) and (own is None or tokens <= own):
            self._exceed()
        stored = called.stored if called is not None else None
        kept = (
            stored.answer()
            if stored is not None
            else await self.keeper.keep(step, outcome, _tools_before(self.plan, step))
        )
        room = min(left, own if own is not None else 0)
        entry: JsonObject = {}
        if kept is not None:
            entry["reference"] = kept
        if room or kept is None:
            entry["truncated"] = text[: (room or min(left, 100)) * CHARACTERS_PER_TOKEN]
            entry["tokens"] = tokens
        if kept is None:
            entry["hint"] = "the whole result could not be kept; select less with a transform, or set references.mode"
        _, used = await _measured(entry)
        self.used += used
        return entry | etag

    def _exceed(self) -> None:
        if not self.exceeded:
            self.exceeded.append(Exceeded("max_tokens", self.plan.budget.max_tokens))


def _tools_before(plan: Plan, step: Step) -> frozenset[str]:
    """The tools, by the names they were called by, whose results may be in what a step made."""
    pending, seen = list(step.after), set[int]()
    while pending:
        index = pending.pop()
        if index not in seen:
            seen.add(index)
            pending += plan.steps[index].after
    return frozenset(tool for index in seen if (tool := plan.steps[index].tool) is not None)


def shown_value(outcome: StepOutcome) -> Any:
    """What an answer shows of a result: the value that references read, and media as the blocks they came in."""
    called = outcome.called
    if called is not None and called.content.kind == "binary":
        return called.result["content"][0]
    return outcome.value


async def _measured(value: Any) -> tuple[str, int]:
    """A value as text, and its tokens."""

    def measure() -> tuple[str, int]:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
        return text, tokens_of(text)

    return await anyio.to_thread.run_sync(measure) if exceeds(value, COUNTED_AT_ONCE) else measure()
