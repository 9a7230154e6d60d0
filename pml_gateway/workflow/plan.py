"""The plan of a run: checked and compiled steps with their dependencies, and the limits of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pml_gateway.config.settings import WorkflowSettings
from pml_gateway.errors import ErrorCode, ToolCallError
from pml_gateway.types import JsonObject
from pml_gateway.workflow.expressions import Expression
from pml_gateway.workflow.templates import LiteralTemplate, StepReference, Template, references

INPUT = "input"
ITEM = "item"
INDEX = "index"
RESERVED_IDS = frozenset({INPUT, ITEM, INDEX})
"""Roots that are not steps: a composite tool's arguments, and the item of a `for_each` with its position."""


class OnError(StrEnum):
    """The effect of a failed step on the others."""

    CONTINUE = "continue"
    CONTINUE_ALL = "continue_all"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one run; tokens are those of the results in the answer."""

    max_steps: int
    max_tokens: int
    max_seconds: float
    max_parallel: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step: the call of a tool, or a transformation.

    `after` are the positions of all steps that it waits for, `reads` those whose results its arguments contain;
    `unfilled` are the problems of placeholders in its arguments.
    """

    index: int
    id: str
    tool: str | None = None
    transform: Expression | None = None
    arguments: Template = field(default_factory=lambda: LiteralTemplate({}))
    given: JsonObject = field(default_factory=dict)
    unfilled: tuple[JsonObject, ...] = ()
    input: Template | None = None
    when: Expression | None = None
    for_each: Template | None = None
    timeout: float | None = None
    max_tokens: int | None = None
    max_parallel: int | None = None
    if_none_match: str | None = None
    hidden: bool = False
    after: frozenset[int] = frozenset()
    reads: frozenset[int] = frozenset()

    @property
    def expressions(self) -> list[Expression]:
        """Return all expressions that the step evaluates."""
        templates = (template for template in (self.arguments, self.for_each, self.input) if template is not None)
        own = [each for each in (self.when, self.transform) if each is not None]
        return own + [each for template in templates for each in expressions_of(template)]


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps whose dependencies are known and free of cycles, and how to run them."""

    steps: tuple[Step, ...]
    budget: Budget
    on_error: OnError = OnError.CONTINUE
    returned: frozenset[int] | None = None
    trace: bool = False
    shares_reads: bool = True
    ignored: tuple[str, ...] = ()
    """JSON pointers to ignored keys, which clients add."""

    @property
    def layers(self) -> list[list[str]]:
        """Return the ids of the steps in layers, in order; the steps of one layer may run concurrently."""
        level: dict[int, int] = {}
        waiting = list(self.steps)
        while waiting:
            ready = [step for step in waiting if all(needed in level for needed in step.after)]
            level |= {step.index: 1 + max((level[needed] for needed in step.after), default=-1) for step in ready}
            waiting = [step for step in waiting if step.index not in level]
        layers: list[list[str]] = [[] for _ in range(1 + max(level.values(), default=-1))]
        for step in self.steps:
            layers[level[step.index]].append(step.id)
        return layers


@dataclass(frozen=True, slots=True)
class StepProblem:
    """A problem of one step (or of the request, if `step` is empty): its place, and how to fix it."""

    step: str
    path: str
    message: str
    hint: str = ""
    code: ErrorCode = ErrorCode.INVALID_INPUT

    def as_json(self) -> JsonObject:
        """Return the problem as an answer shows it."""
        return {"step": self.step, "path": self.path, "message": self.message, "hint": self.hint}


class PlanError(ToolCallError):
    """A plan that cannot run; nothing was called."""

    code = ErrorCode.INVALID_INPUT

    def __init__(self, problems: Sequence[StepProblem], *, subject: str = "the workflow") -> None:
        first = problems[0]
        # A batch has no dry run.
        hint = "dry_run checks every step and calls nothing" if subject == "the workflow" else ""
        count = len(problems) - 1
        more = f" (and {count} more problem{'s' if count > 1 else ''})" if count else ""
        where = f"step {first.step!r}: " if first.step else ""
        super().__init__(
            f"{subject} was not run: {where}{first.message}{more}",
            hint=first.hint or hint,
            details={"errors": [problem.as_json() for problem in problems]},
        )
        self.code = first.code
        self.problems = tuple(problems)


def expressions_of(template: Template) -> list[Expression]:
    """Return every expression in a template."""
    return [part.expression for _, part in references(template) if isinstance(part, StepReference)]


def topological_cycle(after: Sequence[frozenset[int]]) -> list[int]:
    """Return the positions of one cycle of steps that wait for each other, or an empty list."""
    finished: set[int] = set()
    for start in range(len(after)):
        path: list[int] = []
        at_work = [(start, iter(sorted(after[start])))] if start not in finished else []
        while at_work:
            step, needed = at_work[-1]
            if not path or path[-1] != step:
                path.append(step)
            found = next((each for each in needed if each not in finished), None)
            if found is None:
                finished.add(step)
                path.pop()
                at_work.pop()
            elif found in path:
                return path[path.index(found) :]
            else:
                at_work.append((found, iter(sorted(after[found]))))
    return []


def tightened(limit: float, wanted: Any, *, whole: bool) -> float | None:
    """Return the lower of a configured limit and a wanted one; None if the wanted one is not a positive number."""
    if wanted is None:
        return limit
    if isinstance(wanted, bool) or not isinstance(wanted, int if whole else int | float) or not wanted > 0:
        return None
    return min(limit, wanted)


def limits_of(settings: WorkflowSettings) -> Budget:
    """Return the configured limits, which requests may only lower."""
    return Budget(settings.max_steps, settings.max_tokens, settings.max_seconds, settings.max_parallel)
