"""A stand for runs without a server: tools are functions of the test, and what reaches them is recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pml_gateway.errors import ReferenceNotFoundError, ToolNotFoundError
from pml_gateway.results.content import Content, content_of
from pml_gateway.results.settle import PresentedResult
from pml_gateway.results.stored import Source, StoredResult
from pml_gateway.workflow.execute import Run
from pml_gateway.workflow.outcome import StepOutcome
from pml_gateway.workflow.parse import parse_workflow
from pml_gateway.workflow.plan import Budget, Plan, PlanError, Step
from pml_gateway.workflow.sharing import Invocation

LIMITS = Budget(max_steps=50, max_tokens=50_000, max_seconds=30.0, max_parallel=8)

Tool = Callable[[Invocation], Awaitable[dict[str, Any]]]


def data(value: Any) -> dict[str, Any]:
    """A result with structured content."""
    return {"content": [{"type": "text", "text": "as structured content"}], "structuredContent": value}


async def echo(invocation: Invocation) -> dict[str, Any]:
    """Answers with its arguments."""
    return data(invocation.arguments)


@dataclass
class Stand:
    """`Tools` and `Keeper` over the functions of a test."""

    tools: Mapping[str, Tool] = field(default_factory=lambda: {"echo": echo})
    reads: frozenset[str] = frozenset()
    stored: Mapping[str, Any] = field(default_factory=dict)
    threshold: int | None = None
    media_bytes: int | None = None
    calls: list[Invocation] = field(default_factory=list)
    reports: list[tuple[int, int, str]] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def read_only(self, name: str) -> str | None:
        return name if name in self.reads else None

    def is_repeatable(self, name: str) -> bool:
        return name in self.reads

    async def call(self, invocation: Invocation) -> PresentedResult:
        self.calls.append(invocation)
        if invocation.tool not in self.tools:
            raise ToolNotFoundError(f"no tool named {invocation.tool!r}")
        result = await self.tools[invocation.tool](invocation)
        complete = not result.get("isError") and "resultType" not in result
        return PresentedResult(result, content_of(result) if complete else Content("json", None))

    async def load(self, node: dict[str, Any]) -> tuple[Any, tuple[str, ...]]:
        if node["$ref"] not in self.stored:
            raise ReferenceNotFoundError(node["$ref"])
        return self.stored[node["$ref"]], (node["$ref"],)

    async def report(self, done: int, total: int, message: str) -> None:
        self.reports.append((done, total, message))

    async def keep(
        self, step: Step, outcome: StepOutcome, made_from: frozenset[str], *, over: int | None
    ) -> StoredResult | None:
        if self.threshold is None:
            return None
        self.kept.append(step.id)
        source = Source(None, step.id)
        preview = {"first": ["word " * 20]}
        return StoredResult(f"ref_{step.id}", "json", None, 1, 1, "0" * 64, "{}", preview, {}, 0.0, source)

    @property
    def called(self) -> list[str]:
        """The names of the tools called, in order."""
        return [call.tool for call in self.calls]


def plan_of(steps: Sequence[Any], limits: Budget = LIMITS, **request: Any) -> Plan:
    """The plan of steps without a fault.

    Raises:
        PlanError: they have one.
    """
    plan, problems = parse_workflow({"steps": list(steps), **request}, limits)
    if problems:
        raise PlanError(problems)
    return plan


async def run_of(steps: Sequence[Any], stand: Stand, limits: Budget = LIMITS, **request: Any) -> Run:
    """A finished run."""
    run = Run(plan_of(steps, limits, **request))
    await run.advance(stand)
    return run
