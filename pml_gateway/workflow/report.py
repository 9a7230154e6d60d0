"""The answer to a run: small results whole, large ones by reference."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Protocol

import anyio.to_thread

from pml_gateway.errors import ErrorCode, error_json
from pml_gateway.json_text.pieces import exceeds
from pml_gateway.results.content import is_seen, media_data, media_note, note_in_content, replace_media
from pml_gateway.results.encoding import tokens_of, tokens_of_json
from pml_gateway.results.settle import PresentedResult
from pml_gateway.results.stored import StoredResult
from pml_gateway.types import JsonObject
from pml_gateway.workflow.execute import Run
from pml_gateway.workflow.outcome import BudgetExceeded, RunStatus, StepOutcome, StepStatus, run_status
from pml_gateway.workflow.plan import Plan, Step

CHARACTERS_PER_TOKEN = (3, 2, 1)
"""Characters per token, for JSON and denser text: a result is truncated by the first that keeps it below its limit."""

COUNTED_AT_ONCE = 64 * 1024
FIRST_MEDIA = 2
"""Position of the first media block in the content of an answer, after the answer itself as text."""

MEDIA_TOKENS = 1600
"""Approximate tokens of an image or a minute of audio; smaller media count as half their characters."""

MIN_KEPT = 150
"""Minimum number of JSON characters of a result stored to save tokens: a shorter one saves hardly anything."""

SPARE = 3
"""Tolerance in tokens: parts of an answer may count slightly differently there than on their own."""

MAX_TRACED = 2000
"""Maximum number of characters of arguments in a trace."""


class Keeper(Protocol):
    """A store for results that are too large for an answer."""

    @property
    def threshold(self) -> int | None:
        """Return the tokens above which a result is stored instead of shown; None if size alone is no reason."""

    @property
    def media_bytes(self) -> int | None:
        """Return the characters above which an image or audio is stored; None as for `threshold`."""

    async def keep(
        self, step: Step, outcome: StepOutcome, made_from: frozenset[str], *, over: int | None
    ) -> StoredResult | None:
        """Store a step's result; None if it cannot be stored, or has no more tokens than `over` or its reference."""


async def workflow_answer(run: Run, keeper: Keeper, media: list[JsonObject]) -> JsonObject:
    """Return a workflow's answer, its status and every step in order; add the blocks that it names to `media`."""
    outcomes = [run.outcomes[step.index] for step in run.plan.steps]
    status = run_status(outcomes)
    shown = _Shown(run, keeper, media)
    steps = [await _step_entry(step, outcome, shown) for step, outcome in zip(run.plan.steps, outcomes, strict=True)]
    answer: JsonObject = {"status": status.value, "steps": steps}
    exceeded = [*run.exceeded, *shown.exceeded]
    if exceeded:
        answer["exceeded"] = [each.as_json() for each in exceeded]
    if status is RunStatus.FAILED:
        answer["error"] = first_error(run.plan, outcomes)
    return answer


async def batch_answer(run: Run, keeper: Keeper, media: list[JsonObject]) -> JsonObject:
    """Return a batch's answer, slots with `ok` and a result or an error; add the blocks that it names to `media`."""
    shown = _Shown(run, keeper, media)
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
    """Return the error of the first failed step as that of the run."""
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


class _Shown:
    """The results in one answer, within its limit of tokens; media follow the answer as separate blocks."""

    def __init__(self, run: Run, keeper: Keeper, media: list[JsonObject]) -> None:
        self.plan = run.plan
        self.exceeded: list[BudgetExceeded] = []
        self._keeper = keeper
        self._media = MediaCollector(run, keeper.threshold, keeper.media_bytes, media)
        self._used = 0

    async def result(self, step: Step, outcome: StepOutcome) -> JsonObject:
        """Return the result of one step: whole, or by reference if it is too large."""
        called = outcome.called
        etag: JsonObject = {"etag": called.etag} if called is not None and called.etag else {}
        if called is not None and called.unchanged:
            return {"unchanged": True, **etag}
        stored = called.stored if called is not None else None
        threshold, own = self._keeper.threshold, step.max_tokens
        value, blocks = (outcome.value, {}) if stored is not None else await self._media.set_apart(outcome.value)
        text, tokens = await _measured(value)
        if stored is None and threshold is not None and tokens > threshold:
            stored = await self._keeper.keep(step, outcome, _tools_before(self.plan, step), over=threshold)
        tokens, own_tokens = tokens + sum(blocks.values()), tokens
        usual: JsonObject = {"result": value} if stored is None else {"reference": stored.answer()}
        usual_tokens = tokens if stored is None else tokens_of_json(usual["reference"])
        left = max(self.plan.budget.max_tokens - self._used, 0)
        limit = left if own is None else min(left, own)
        # A result over its step's own limit is shown up to that limit, even if it is stored as well.
        if usual_tokens > limit or (own is not None and tokens > own):
            is_over = usual_tokens > left
            if blocks:
                text, own_tokens = await _measured((await self._media.set_apart(outcome.value, is_given=False))[0])
            cut = await self._cut(step, outcome, stored, (text, own_tokens), (left, limit))
            saved = usual_tokens - tokens_of_json(cut)
            note = tokens_of_json({"exceeded": [self._limit.as_json()]}) if is_over and not self.exceeded else 0
            if saved > note + SPARE:
                self.exceeded += [self._limit] if is_over and not self.exceeded else []
                self._used += usual_tokens - saved
                return cut | etag
        if stored is None:
            self._media.give(blocks)
        self._used += usual_tokens
        return usual | etag

    async def _cut(
        self,
        step: Step,
        outcome: StepOutcome,
        stored: StoredResult | None,
        measured: tuple[str, int],
        limits: tuple[int, int],
    ) -> JsonObject:
        """Return a reference to a result (or a hint), and as much of it as the two limits on tokens allow."""
        (text, tokens), (left, limit) = measured, limits
        if stored is None and len(text) > MIN_KEPT:
            stored = await self._keeper.keep(step, outcome, _tools_before(self.plan, step), over=None)
        hint = "the whole result could not be kept; select less with a transform, or set references.mode"
        cut: JsonObject = {"tokens": tokens, "hint": hint}
        if stored is not None:
            cut = {"reference": stored.brief()}
        for characters in CHARACTERS_PER_TOKEN:
            shown = {**cut, "truncated": text[: limit * characters]}
            if limit and tokens_of_json(shown) <= left:
                return shown
        return cut

    @property
    def _limit(self) -> BudgetExceeded:
        return BudgetExceeded("max_tokens", self.plan.budget.max_tokens)


class MediaCollector:
    """Images, audio and other bytes of step values, moved to content blocks of their own."""

    def __init__(self, run: Run, threshold: int | None, media_bytes: int | None, given: list[JsonObject]) -> None:
        """Collect the media of a run; the blocks are added to `given`, after the answer itself."""
        self._threshold = threshold
        self._media_bytes = media_bytes
        self._given = given
        self._positions: dict[str, int] = {}
        self._blocks: dict[str, JsonObject] = {}
        self._stored: dict[str, JsonObject] = {}
        for outcome in run.outcomes.values():
            for each in outcome.items or (outcome,):
                if each.called is not None:
                    self._note(each.called)

    async def set_apart(self, value: Any, *, is_given: bool = True) -> tuple[Any, dict[str, int]]:
        """Replace media in a value by notes; return it with the tokens of each medium by its data.

        Unless `is_given`, the notes say that the media are left out.
        """
        if not self._blocks and not self._stored:
            return value, {}
        if exceeds(value, COUNTED_AT_ONCE):
            return await anyio.to_thread.run_sync(self._set_apart, value, is_given)
        return self._set_apart(value, is_given)

    def _set_apart(self, value: Any, is_given: bool) -> tuple[Any, dict[str, int]]:
        found: dict[str, int] = {}
        positions = dict(self._positions)

        def substitute(data: str) -> Any:
            block = self._blocks.get(data)
            if block is None:
                return self._stored.get(data)
            if data not in positions:
                is_small = is_seen(block) and (self._media_bytes is None or len(data) <= self._media_bytes)
                if not is_small and self._threshold is not None and tokens_of(data) > self._threshold:
                    return None
                tokens = min(len(data) // 2, MEDIA_TOKENS) if is_seen(block) else tokens_of(data)
                found[data], positions[data] = tokens, FIRST_MEDIA + len(positions)
            note = media_note(block) or ""
            return note_in_content(positions[data], note) if is_given else f"{note}, left out"

        return replace_media(value, substitute), found

    def give(self, found: Iterable[str]) -> None:
        """Add the media of a shown value to the blocks after the answer."""
        for data in found:
            self._positions[data] = FIRST_MEDIA + len(self._given)
            self._given.append(self._blocks[data])

    def _note(self, called: PresentedResult) -> None:
        if called.stored is not None:
            if called.content.kind == "binary":
                self._stored[called.content.value] = called.stored.brief()
            return
        content = called.result.get("content")
        for block in content if isinstance(content, list) else ():
            data = media_data(block)
            if data is not None:
                self._blocks[data] = block


def _tools_before(plan: Plan, step: Step) -> frozenset[str]:
    """Return the tools, by the names in the plan, whose results may be part of a step's result."""
    pending, seen = list(step.after), set[int]()
    while pending:
        index = pending.pop()
        if index not in seen:
            seen.add(index)
            pending += plan.steps[index].after
    return frozenset(tool for index in seen if (tool := plan.steps[index].tool) is not None)


async def _measured(value: Any) -> tuple[str, int]:
    """Return a value as JSON text, and its number of tokens."""

    def measure() -> tuple[str, int]:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
        return text, tokens_of(text)

    return await anyio.to_thread.run_sync(measure) if exceeds(value, COUNTED_AT_ONCE) else measure()
