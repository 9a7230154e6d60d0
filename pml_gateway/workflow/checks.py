"""Checks of a plan before anything is called, with the tools that its client may call."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.errors import GatewayError, UpstreamError
from pml_gateway.exposure.schema_text import signature
from pml_gateway.exposure.validation import open_problems, with_unfilled
from pml_gateway.text import shortened
from pml_gateway.types import Effect, JsonObject, strongest
from pml_gateway.workflow.composite import unfit_tool
from pml_gateway.workflow.members import result_problems
from pml_gateway.workflow.plan import Plan, Step, StepProblem
from pml_gateway.workflow.templates import references

MAX_TEXT = 400
MAX_LEVELS = 20
"""Maximum number of characters of a text, and of levels of nesting, in a call that is shown."""

FindTool = Callable[[str], CatalogTool]
"""A function that returns the tool with a name for this client.

Raises:
    GatewayError: there is none, or it cannot be reached now.
"""


@dataclass(frozen=True, slots=True)
class PlanCheck:
    """The problems of a plan, and the tools of its steps by position."""

    problems: list[StepProblem]
    tools: Mapping[int, CatalogTool]


def check_plan(plan: Plan, find: FindTool, meta_tools: Container[str], *, now: bool = False) -> PlanCheck:
    """Find steps whose tool does not exist or refuses their arguments, and fields that results do not have.

    With `now`, a server that cannot be reached is not reported: the call itself will show whether it is back.
    """
    tools: dict[int, CatalogTool] = {}
    problems: list[StepProblem] = []
    for step in plan.steps:
        if step.tool is None:
            continue
        try:
            tool = tools[step.index] = find(step.tool)
            problems += unfit_tool(step, tool) or refused_arguments(step, tool)
        except UpstreamError as error:
            if not now:
                problems.append(_problem(step, error))
        except GatewayError as error:
            problems.append(_meta_problem(step) if step.tool in meta_tools else _problem(step, error))
    return PlanCheck([*problems, *result_problems(plan, tools)], tools)


def refused_arguments(step: Step, tool: CatalogTool) -> list[StepProblem]:
    """Return a problem for each placeholder, and for each argument that the tool's schema refuses.

    A reference may stand for any value.
    """
    pointers = frozenset(pointer for pointer, _ in references(step.arguments))
    call = signature(tool.qualified_name, tool.definition["inputSchema"])
    return [
        StepProblem(
            step.id,
            f"/steps/{step.index}/arguments{problem['path']}",
            f"{problem['path'] or '/'}: {problem['message']}",
            "; ".join([*([problem["hint"]] if "hint" in problem else []), f"expected {call}"]),
        )
        for problem in with_unfilled(open_problems(tool, step.given, pointers), step.unfilled)
    ]


def dry_run_answer(plan: Plan, problems: list[StepProblem], checked: PlanCheck, *, questions: str) -> JsonObject:
    """Return the answer of a dry run: each step with its call, its effect and its problems.

    `questions` says whether the client could be asked something meanwhile.
    """
    layer_of = {step_id: number for number, layer in enumerate(plan.layers) for step_id in layer}
    steps: list[JsonObject] = []
    for step in plan.steps:
        wrong = [problem for problem in problems if problem.step == step.id]
        entry: JsonObject = {"id": step.id, "ok": not wrong, "layer": layer_of[step.id]}
        tool = checked.tools.get(step.index)
        if tool is not None:
            entry["call"] = {"tool": tool.qualified_name, "arguments": _cut(step.given)}
            entry["effect"] = tool.effect
            entry["signature"] = signature(tool.qualified_name, tool.definition["inputSchema"])
        if wrong:
            entry["problems"] = [{"path": each.path, "message": each.message, "hint": each.hint} for each in wrong]
        steps.append(entry)
    effect = strongest((tool.effect for tool in checked.tools.values()), Effect.READ)
    answer: JsonObject = {"dry_run": True, "valid": not problems, "effect": effect, "steps": steps, "calls": 0}
    answer["questions"] = questions
    general = [problem.as_json() for problem in problems if not problem.step]
    return {**answer, "problems": general} if general else answer


def _cut(value: Any, levels: int = MAX_LEVELS) -> Any:
    """Return the value with long texts shortened, and without parts nested deeper than `levels`."""
    match value:
        case str():
            return shortened(value, MAX_TEXT)
        case list() | dict() if not levels:
            return "…"
        case list():
            return [_cut(each, levels - 1) for each in value]
        case dict():
            return {key: _cut(each, levels - 1) for key, each in value.items()}
        case _:
            return value


def _problem(step: Step, error: GatewayError) -> StepProblem:
    return StepProblem(step.id, f"/steps/{step.index}/tool", error.message, error.hint, error.code)


def _meta_problem(step: Step) -> StepProblem:
    message = f"{step.tool} is a meta-tool, and steps call tools"
    return StepProblem(step.id, f"/steps/{step.index}/tool", message, "name the tool that it would call")
