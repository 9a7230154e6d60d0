"""The run of a plan: each step starts as soon as its dependencies are done, within the limits of the run."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from typing import Any, Protocol

import anyio

from pml_gateway.errors import ErrorCode, GatewayError, InvalidInputError, error_json
from pml_gateway.json_text.pieces import exceeds
from pml_gateway.mcp.deadlines import within
from pml_gateway.results.content import WRAPPED
from pml_gateway.results.settle import PresentedResult
from pml_gateway.storage.pending import waits_in_process
from pml_gateway.types import JsonObject
from pml_gateway.workflow.expressions import Expression, is_true
from pml_gateway.workflow.outcome import (
    BudgetExceeded,
    Question,
    SkipReason,
    StepOutcome,
    StepStatus,
    error_of,
    value_of,
)
from pml_gateway.workflow.plan import INDEX, INPUT, ITEM, OnError, Plan, Step
from pml_gateway.workflow.sharing import Invocation, SharedReads
from pml_gateway.workflow.snapshot import RunSnapshot
from pml_gateway.workflow.templates import render, roots_of

MAX_TOLD = 20
"""Maximum number of failed items whose errors are listed."""

MAX_REFS = 200
"""Maximum number of references that are recorded as the sources of a value."""

MAX_ARGUMENTS = 64 * 1024 * 1024
"""Maximum number of characters of one step's arguments; each reference in them may expand to a large value."""

NONE_REFUSED: Mapping[int, JsonObject] = {}

_Answers = dict[tuple[int, int], tuple[JsonObject, str | None]]
"""Answers by the tool's own keys, and the state that it wants back, by (step, item or -1)."""


def gathered(step: Step, items: tuple[StepOutcome, ...]) -> StepOutcome:
    """Combine the outcomes of a `for_each`: a list of values, null for each item that failed or was not called."""
    values = [item.value for item in items]
    refs = _merged(item.refs for item in items)
    if any(item.status is StepStatus.WAITING for item in items):
        return StepOutcome(StepStatus.WAITING, items=items)
    failed = [index for index, item in enumerate(items) if item.status is StepStatus.ERROR]
    stopped = [item for item in items if item.status is StepStatus.SKIPPED]
    if not failed and not stopped:
        return StepOutcome(StepStatus.OK, values, items=items, refs=refs)
    not_called = f"; {len(stopped)} were not called" if stopped else ""
    if failed:
        first = items[failed[0]].error or {}
        error = error_json(
            ErrorCode(first.get("code", ErrorCode.INTERNAL)),
            f"{len(failed)} of {len(items)} items of step {step.id!r} failed: {first.get('message', '')}{not_called}",
            retryable=bool(first.get("retryable")),
            hint=str(first.get("hint", "")),
            details={"items": [{"index": index, "error": items[index].error} for index in failed[:MAX_TOLD]]},
        )
        return StepOutcome(StepStatus.ERROR, values, error=error, items=items, refs=refs)
    by = stopped[0].blocked_by
    if len(stopped) == len(items):
        return StepOutcome(StepStatus.SKIPPED, reason=SkipReason.STOPPED, blocked_by=by)
    message = f"{len(stopped)} of {len(items)} items of step {step.id!r} were not called, because {by[0]!r} failed"
    return StepOutcome(StepStatus.ERROR, values, error=error_json(ErrorCode.CANCELLED, message), items=items)


def _merged(several: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the references of several values without duplicates."""
    return tuple(dict.fromkeys(ref for refs in several for ref in refs))[:MAX_REFS]


class Tools(Protocol):
    """The tools that the steps of a run call."""

    def read_only(self, name: str) -> str | None:
        """Return the tool's own name, however it was spelled, if calling it twice is the same as calling it once."""

    def is_repeatable(self, name: str) -> bool:
        """Return True if a tool may be called again without knowing what became of the first call."""

    async def call(self, invocation: Invocation) -> PresentedResult:
        """Call a tool and return its result.

        Raises:
            GatewayError: the tool is unknown, its arguments are wrong, or its upstream did not answer.
        """

    async def load(self, node: JsonObject) -> tuple[Any, tuple[str, ...]]:
        """Return the value of a `{"$ref": ...}` node, and the references that it was made of.

        Raises:
            GatewayError: this client has no such reference.
        """

    async def report(self, done: int, total: int, message: str) -> None:
        """Report the progress of the run to the client."""


class RunClaim(AbstractAsyncContextManager[None], Protocol):
    """The right to go on with a run that others take over if this process is gone; hold it while the run advances."""

    @property
    def sent_before(self) -> Collection[int]:
        """Return the steps of which another process that is gone may have sent calls that must not be repeated."""

    async def note(self, step: int) -> None:
        """Note that a step is about to make such a call.

        Raises:
            GatewayError: it must not.
        """


class Run:
    """One run of one plan. If tools ask their users something, `advance` returns early and is called again."""

    def __init__(
        self,
        plan: Plan,
        given: Any = None,
        *,
        given_refs: tuple[str, ...] = (),
        refused: Mapping[int, JsonObject] = NONE_REFUSED,
    ) -> None:
        """Prepare a run.

        Args:
            plan: the steps to run.
            given: the value of `$input`.
            given_refs: the references that it was made of.
            refused: the errors of steps that cannot run, by position; the others run without them.
        """
        self.plan = plan
        self.outcomes = {index: StepOutcome(StepStatus.ERROR, error=error) for index, error in refused.items()}
        self.exceeded: list[BudgetExceeded] = []
        self._given = given
        self._given_refs = given_refs
        self._items: dict[int, dict[int, StepOutcome]] = {}
        self._spent = 0.0
        self._began = 0.0
        self._calls_left = plan.budget.max_steps - len(plan.steps)
        self._begun: set[int] = set()
        self._lengths: dict[int, int] = {}
        self._stopped_by: str | None = None
        self.claim: RunClaim | None = None
        """Held while a run that others could go on with advances."""

    @property
    def questions(self) -> dict[str, tuple[int, int, str, JsonObject]]:
        """Return the questions of waiting steps: surfaced key to (step, item or -1, the tool's own key, request)."""
        asked: dict[str, tuple[int, int, str, JsonObject]] = {}
        for step in self.plan.steps:
            for item, outcome in self._waiting(step.index):
                slot = step.id if item < 0 else f"{step.id}[{item}]"
                requests = outcome.question.requests if outcome.question else {}
                asked |= {f"{slot}.{key}": (step.index, item, key, request) for key, request in requests.items()}
        return asked

    @property
    def is_waiting(self) -> bool:
        """Return True if a step waits for its user."""
        return any(outcome.status is StepStatus.WAITING for outcome in self.outcomes.values())

    def is_done(self, step: Step) -> bool:
        """Return True if a step has its final outcome and will not be called again."""
        outcome = self.outcomes.get(step.index)
        return outcome is not None and outcome.status is not StepStatus.WAITING

    def snapshot(self) -> RunSnapshot:
        """Return the state of the run between two calls of `advance`."""
        return RunSnapshot(
            outcomes=self.outcomes,
            items=self._items,
            lengths=self._lengths,
            begun=self._begun,
            exceeded=self.exceeded,
            spent=self._spent,
            calls_left=self._calls_left,
            stopped_by=self._stopped_by,
        )

    def restore(self, snapshot: RunSnapshot) -> None:
        """Go on from the snapshot of a run of the same plan and input."""
        self.outcomes, self._items, self._lengths = snapshot.outcomes, snapshot.items, snapshot.lengths
        self._begun, self.exceeded, self._spent = snapshot.begun, snapshot.exceeded, snapshot.spent
        self._calls_left, self._stopped_by = snapshot.calls_left, snapshot.stopped_by

    @property
    def waits_in_process(self) -> bool:
        """Return True if a question waits in this process, where alone it can be answered."""
        states = (
            each.question.state
            for step in self.plan.steps
            for _, each in self._waiting(step.index)
            if each.question is not None
        )
        return any(waits_in_process(state) for state in states)

    async def known_calls(self, tools: Tools) -> list[Invocation]:
        """Return the calls whose arguments do not depend on the results of other steps, before any is made."""
        known = []

        async def load(node: JsonObject) -> Any:
            return (await tools.load(node))[0]

        for step in self.plan.steps:
            if step.tool is None or step.reads or step.for_each is not None or step.index in self.outcomes:
                continue
            roots, absent = self.roots(step.expressions)
            # A step with arguments of no use says so itself.
            with suppress(GatewayError):
                known.append(Invocation(step.tool, await render(step.arguments, roots, load, absent=absent)))
        return known

    async def advance(self, tools: Tools, responses: Mapping[str, Any] | None = None) -> None:
        """Run the steps that can run; afterwards every step has an outcome.

        Args:
            tools: the tools that the steps call, for this request.
            responses: answers by surfaced key, if steps asked before.
        """
        answers = self._answers(responses or {})
        self._began = time.monotonic() - self._spent
        waiting = [index for index, outcome in self.outcomes.items() if outcome.status is StepStatus.WAITING]
        for index in waiting:
            del self.outcomes[index]
        self._done = {step.index: anyio.Event() for step in self.plan.steps}
        for index in self.outcomes:
            self._done[index].set()
        self._places = anyio.Semaphore(self.plan.budget.max_parallel)
        self._reads = SharedReads()
        self._begun.difference_update(waiting)
        with within(self.plan.budget.max_seconds - self._spent) as deadline:
            async with anyio.create_task_group() as tasks:
                for step in self.plan.steps:
                    if step.index not in self.outcomes:
                        tasks.start_soon(self._follow, step, tools, answers)
        self._spent = self._now()
        if deadline.cancelled_caught:
            self._cut_off()

    async def _follow(self, step: Step, tools: Tools, answers: _Answers) -> None:
        for needed in sorted(step.after):
            await self._done[needed].wait()
        outcome = self._prevented(step)
        if outcome is None:
            began = self._now()
            try:
                outcome = await self._begin(step, tools, answers)
            except GatewayError as error:
                outcome = StepOutcome(StepStatus.ERROR, error=error.as_json())
            outcome = replace(outcome, began=began, ended=self._now())
        if outcome.status is StepStatus.ERROR and self.plan.on_error is OnError.STOP and self._stopped_by is None:
            self._stopped_by = step.id
        self.outcomes[step.index] = outcome
        if outcome.status is not StepStatus.WAITING:
            finished = sum(each.status is not StepStatus.WAITING for each in self.outcomes.values())
            await tools.report(finished, len(self.plan.steps), f"{step.id}: {outcome.status}")
        self._done[step.index].set()

    def _prevented(self, step: Step) -> StepOutcome | None:
        """Return the outcome of a step that does not run because of others, or None if it can run."""
        if self._stopped_by is not None:
            return self._stopped(self._stopped_by)
        before = {needed: self.outcomes[needed] for needed in sorted(step.after)}
        if any(outcome.status is StepStatus.WAITING for outcome in before.values()):
            return StepOutcome(StepStatus.WAITING)
        if self.plan.on_error is OnError.CONTINUE_ALL:
            return None
        causes: list[str] = []
        for needed, outcome in before.items():
            if outcome.status is StepStatus.ERROR or outcome.reason is SkipReason.BUDGET:
                causes.append(self.plan.steps[needed].id)
            elif outcome.reason is SkipReason.BLOCKED:
                causes += outcome.blocked_by
            elif outcome.reason is SkipReason.CONDITION and needed in step.reads:
                causes.append(self.plan.steps[needed].id)
        if not causes:
            return None
        return StepOutcome(StepStatus.SKIPPED, reason=SkipReason.BLOCKED, blocked_by=tuple(dict.fromkeys(causes)))

    async def _begin(self, step: Step, tools: Tools, answers: _Answers) -> StepOutcome:
        roots, absent = self.roots(step.expressions)
        if step.when is not None:
            current = self._results_of(step)
            if not is_true(await step.when.evaluate(roots, current, optional=True)):
                return StepOutcome(StepStatus.SKIPPED, reason=SkipReason.CONDITION)
        if step.for_each is None:
            return await self._once(step, roots, absent, tools, answers.get((step.index, -1)))
        source = await render(step.for_each, roots, _no_stored, absent=absent)
        items = [] if source is None and absent & roots_of(step.for_each) else source
        if not isinstance(items, list):
            kind = type(source).__name__
            raise InvalidInputError(f"for_each needs a list, and got {kind}", hint="name the list, as in $0.items")
        return await self._each(step, items, roots, absent, tools, answers)

    async def _each(
        self,
        step: Step,
        items: list[Any],
        roots: Mapping[str, Any],
        absent: frozenset[str],
        tools: Tools,
        answers: _Answers,
    ) -> StepOutcome:
        if step.index not in self._lengths:
            self._reserve(len(items) - 1)
            self._lengths[step.index] = len(items)
        done = self._items.setdefault(step.index, {})
        places = anyio.Semaphore(step.max_parallel or self.plan.budget.max_parallel)

        async def one(index: int, item: Any) -> None:
            known = done.get(index)
            if known is not None and known.status is not StepStatus.WAITING:
                return
            async with places:
                if self._stopped_by is not None:
                    done[index] = self._stopped(self._stopped_by)
                    return
                inside = {**roots, ITEM: item, INDEX: index}
                try:
                    outcome = await self._once(step, inside, absent, tools, answers.get((step.index, index)))
                except GatewayError as error:
                    outcome = StepOutcome(StepStatus.ERROR, error=error.as_json())
                if outcome.status is StepStatus.ERROR and self.plan.on_error is OnError.STOP:
                    self._stopped_by = self._stopped_by or step.id
                done[index] = outcome

        async with anyio.create_task_group() as tasks:
            for index, item in enumerate(items):
                tasks.start_soon(one, index, item)
        return gathered(step, tuple(done[index] for index in range(len(items))))

    async def _once(
        self,
        step: Step,
        roots: Mapping[str, Any],
        absent: frozenset[str],
        tools: Tools,
        answered: tuple[JsonObject, str | None] | None,
    ) -> StepOutcome:
        refs = [*self._refs_of(step)]

        async def load(node: JsonObject) -> Any:
            value, used = await tools.load(node)
            refs.extend(used)
            return value

        if step.transform is not None:
            self._begun.add(step.index)
            current = self._results_of(step)
            if step.input is not None:
                current = await render(step.input, roots, load, absent=absent)
            optional = self.plan.on_error is OnError.CONTINUE_ALL and bool(absent & step.transform.roots)
            value = await step.transform.evaluate(roots, current, optional=optional)
            return StepOutcome(StepStatus.OK, value, refs=_merged([tuple(refs)]))
        may_be_null = self.plan.on_error is OnError.CONTINUE_ALL
        arguments = await render(step.arguments, roots, load, absent=absent, may_be_null=may_be_null)
        if exceeds(arguments, MAX_ARGUMENTS):
            raise InvalidInputError(
                f"the arguments hold more than {MAX_ARGUMENTS // 1024**2} MiB", hint="pass less in one step"
            )
        responses, state = answered or (None, None)
        made_of = _merged([tuple(refs)])
        invocation = Invocation(step.tool or "", arguments, made_of, step.if_none_match, responses, state)
        if not self.plan.shares_reads:
            return await self._call(step, invocation, tools)
        read = tools.read_only(invocation.tool)
        if read is not None:
            same = replace(invocation, tool=read)
            return await self._reads.once(
                step.id, same, lambda: self._call(step, invocation, tools), timeout=step.timeout
            )
        with self._reads.write():
            return await self._call(step, invocation, tools)

    async def _call(self, step: Step, invocation: Invocation, tools: Tools) -> StepOutcome:
        async with self._places:
            if self._stopped_by is not None:
                return self._stopped(self._stopped_by)
            if self.claim is not None and not tools.is_repeatable(invocation.tool):
                if step.index in self.claim.sent_before:
                    return StepOutcome(StepStatus.ERROR, error=_interrupted(step), arguments=invocation.arguments)
                await self.claim.note(step.index)
            self._begun.add(step.index)
            with within(step.timeout):
                try:
                    return await _outcome(await tools.call(invocation), invocation)
                except GatewayError as error:
                    return StepOutcome(StepStatus.ERROR, error=error.as_json(), arguments=invocation.arguments)
        timed_out = error_json(
            ErrorCode.TIMEOUT,
            f"step {step.id!r}: no answer within its timeout of {step.timeout:g} s",
            hint="whether the call was executed is unknown; raise the step's timeout",
            details={"executed": "unknown"},
        )
        return StepOutcome(StepStatus.ERROR, error=timed_out, arguments=invocation.arguments)

    def _stopped(self, by: str) -> StepOutcome:
        return StepOutcome(StepStatus.SKIPPED, reason=SkipReason.STOPPED, blocked_by=(by,))

    def _reserve(self, calls: int) -> None:
        if calls <= self._calls_left:
            self._calls_left -= max(calls, 0)
            return
        limit = self.plan.budget.max_steps
        self._exceed("max_steps", limit)
        raise _BudgetError(
            f"for_each over {calls + 1} items; {self._calls_left + 1} calls are left of workflow.max_steps {limit}",
            hint="take fewer items, for example $0.items[0:10]",
            details={"limit": "max_steps", "value": limit, "setting": "workflow.max_steps"},
        )

    def _exceed(self, limit: str, value: float) -> None:
        if all(each.limit != limit for each in self.exceeded):
            self.exceeded.append(BudgetExceeded(limit, value))

    def _cut_off(self) -> None:
        """Give an outcome to every step that had none when the time ran out."""
        limit = self.plan.budget.max_seconds
        self._exceed("max_seconds", limit)
        for step in self.plan.steps:
            known = self.outcomes.get(step.index)
            if known is not None and known.status is not StepStatus.WAITING:
                continue
            begun = step.index in self._begun
            error = error_json(
                ErrorCode.BUDGET_EXCEEDED,
                f"max_seconds {limit:g} ran out {'during' if begun else 'before'} this step",
                hint="raise budget.max_seconds, up to workflow.max_seconds of the configuration, or do less",
                details={"limit": "max_seconds", "value": limit, "setting": "workflow.max_seconds"},
            )
            status = StepStatus.ERROR if begun else StepStatus.SKIPPED
            reason = None if begun else SkipReason.BUDGET
            items = self._items_so_far(step, error) if begun else None
            values = None if items is None else [item.value for item in items]
            self.outcomes[step.index] = StepOutcome(
                status, values, error=error, reason=reason, items=items, ended=self._spent
            )

    def _items_so_far(self, step: Step, error: JsonObject) -> tuple[StepOutcome, ...] | None:
        """Return the items of a loop that ran out of time; finished items keep their outcomes, as they had effects."""
        if step.index not in self._lengths:
            return None
        unfinished = StepOutcome(StepStatus.ERROR, error=error)
        done = self._items.get(step.index, {})
        return tuple(done.get(at, unfinished) for at in range(self._lengths[step.index]))

    def roots(self, readers: Iterable[Expression]) -> tuple[dict[str, Any], frozenset[str]]:
        """Return the value of every `$name` as these expressions read it, and the names that have no result."""
        roots: dict[str, Any] = {INPUT: self._given}
        absent: set[str] = set()
        texts = [expression.text for expression in readers]
        for step in self.plan.steps:
            outcome = self.outcomes.get(step.index)
            value = None if outcome is None else _read_by(texts, step, outcome)
            roots |= {str(step.index): value, step.id: value}
            if outcome is None or outcome.status is not StepStatus.OK:
                absent |= {str(step.index), step.id}
        return roots, frozenset(absent)

    def _results_of(self, step: Step) -> JsonObject:
        """Return the value at which a path without `$` starts: the results of earlier steps by id."""
        texts = [expression.text for expression in step.expressions]
        before = ((self.plan.steps[needed], self.outcomes[needed]) for needed in sorted(step.after))
        return {each.id: _read_by(texts, each, outcome) for each, outcome in before}

    def _refs_of(self, step: Step) -> tuple[str, ...]:
        """Return the references that the values read by a step were made of."""
        names = set(roots_of(step.arguments) | roots_of(step.input))
        if step.transform is not None:
            names |= step.transform.roots
            if step.input is None:
                names |= step.transform.fields or ({str(each) for each in step.after} if not names else set())
        if {ITEM, INDEX} & names:
            names |= roots_of(step.for_each)
        read = (each.index for each in self.plan.steps if names & {each.id, str(each.index)})
        outcomes = (self.outcomes[index] for index in read if index in self.outcomes)
        return _merged([*(outcome.refs for outcome in outcomes), self._given_refs if INPUT in names else ()])

    def _waiting(self, index: int) -> list[tuple[int, StepOutcome]]:
        outcome = self.outcomes.get(index)
        if outcome is None or outcome.status is not StepStatus.WAITING:
            return []
        if outcome.items is None:
            return [(-1, outcome)]
        return [(at, item) for at, item in enumerate(outcome.items) if item.status is StepStatus.WAITING]

    def _answers(self, responses: Mapping[str, Any]) -> _Answers:
        answers: _Answers = {}
        for step in self.plan.steps:
            for item, outcome in self._waiting(step.index):
                if outcome.question is not None:
                    answers[step.index, item] = ({}, outcome.question.state)
        for surfaced, (index, item, key, _) in self.questions.items():
            if surfaced in responses:
                answers[index, item][0][key] = responses[surfaced]
        return answers

    def _now(self) -> float:
        return time.monotonic() - self._began


def _interrupted(step: Step) -> JsonObject:
    return error_json(
        ErrorCode.UPSTREAM_UNAVAILABLE,
        f"step {step.id!r} was interrupted: a gateway ended while the step ran, or before its outcome was known",
        hint="whether the call was executed is unknown",
        details={"executed": "unknown"},
    )


class _BudgetError(GatewayError):
    code = ErrorCode.BUDGET_EXCEEDED


async def _no_stored(node: JsonObject) -> Any:
    raise InvalidInputError("for_each takes a reference to a step, not to a stored result")


def _read_by(texts: Iterable[str], step: Step, outcome: StepOutcome) -> Any:
    """Return a step's value for expressions: as `{"result": value}` if all of them read it as `$id.result`."""
    if not outcome.has_wrapper:
        return outcome.value
    # This includes items of a loop, and paths after a pipe. A name without `$` must begin the expression.
    name = rf"(^\s*\"?|\$)({step.index}|{re.escape(step.id)})"
    reads = re.compile(rf"{name}(?![\w-])")
    reads_wrapper = re.compile(rf"""{name}"?(\[[^\]]*\])*\s*[.|]\s*"?{WRAPPED}\b""")
    every = list(texts)
    wrapped = sum(len(reads_wrapper.findall(text)) for text in every)
    is_wrapped = wrapped > 0 and wrapped == sum(len(reads.findall(text)) for text in every)
    return outcome.wrapped if is_wrapped else outcome.value


async def _outcome(called: PresentedResult, invocation: Invocation) -> StepOutcome:
    result, arguments = called.result, invocation.arguments
    if result.get("resultType") == "input_required":
        requests, state = result.get("inputRequests"), result.get("requestState")
        question = Question(requests if isinstance(requests, dict) else {}, state if isinstance(state, str) else None)
        return StepOutcome(StepStatus.WAITING, question=question, arguments=arguments)
    if result.get("isError"):
        return StepOutcome(StepStatus.ERROR, called=called, error=error_of(result), arguments=arguments)
    refs = invocation.refs if called.stored is None else (called.stored.ref,)
    return StepOutcome(StepStatus.OK, await value_of(called.content), called, arguments=arguments, refs=refs)
